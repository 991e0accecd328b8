"""Origins that are made anew, and the sources that read them. What has to be done when is left to `planning.downstream`.

What must survive a death is in state before anything is lost: where a new origin begins among the `replacements`, where a
source goes on among the `starts` of its stream; and which sources are out, among the `replacements` again.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from jsplan.address import PARKING_PREFIX, Address
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.documents.plan import Step
from jsplan.errors import ServerRefusedError
from jsplan.facts.duplicates import MAX_SEARCHED
from jsplan.facts.messages import ReadLimitExceeded, open_reader
from jsplan.jetstream import DomainApi
from jsplan.jetstream.api import NO_MESSAGE
from jsplan.resources.fields import Config, sort_objects
from jsplan.resources.nested import origin_key, source_header

#: So many messages back a stream is searched for the last one of a source: those that came while it was taken out.
SEARCH_DEPTH = 1_000
#: So many of them are asked for at once.
BATCH_SIZE = 100


# --- origins --------------------------------------------------------------------------------------------------


async def delete_origin(work: StepContext, step: Step) -> None:
    """Stop a stream, write down where the new one begins, delete it. Raises StepFailed, NotBegun, ApiError and StateError."""
    live = await work.check_precondition(step)
    if live is None:
        raise StepFailed(f"{step.address} was deleted by somebody else since it was planned")
    if live.raw.get("subjects") and not live.raw.get("sealed"):
        parked = {"subjects": [PARKING_PREFIX + step.target_address.stream]}
        derived = {
            "duplicate_window": live.compact.get("duplicate_window")
        }  # a stream without sources gets one
        expect = parked | ({"sources": None} | derived if live.raw.get("sources") else {})
        stopping = replace(step, op="stream.update", expect=expect)
        stopped = {name: value for name, value in live.raw.items() if name != "sources"} | parked
        await work.begin(stopping, live)
        await work.send(step, f"STREAM.UPDATE.{step.target_address.stream}", stopped)
        await work.verify_write(stopping)
    await work.begin(step)
    now = await work.read(step.target_address)
    first = int((now or live).state.get("last_seq") or 0) + 1
    recorded = (step.params or {})["state_address"]
    await work.record({"replacing": {"address": recorded, "first_seq": first}})
    await work.call(step)
    await work.verify_write(step)


async def create_origin(work: StepContext, step: Step) -> None:
    """Make a stream whose first message gets the number behind the last one of the old stream. Raises as `delete_origin` does."""
    await work.check_precondition(step)
    recorded = (step.params or {})["state_address"]
    first = (work.state.replacements.get(recorded) or {}).get("first_seq")
    assert step.request is not None
    begins = {"first_seq": first} if first and first > 1 else {}
    request = step.request | {"payload": step.request["payload"] | begins}
    record = (step.record or {}) | {"replaced": recorded}
    made = replace(step, request=request, expect=(step.expect or {}) | begins, record=record)
    await work.begin(made)
    await work.call(made)
    await work.verify_write(made)


# --- sources --------------------------------------------------------------------------------------------------


async def detach_sources(work: StepContext, step: Step) -> None:
    """Take sources out of a stream, and remember behind which sequence each goes on. Raises as `delete_origin` does."""
    live = await work.check_precondition(step)
    keys, recorded = set((step.params or {})["sources"]), (step.params or {})["state_address"]
    api, stream = work.api(step), step.target_address.stream
    answer = await api.request(f"STREAM.INFO.{stream}")
    going = [s for s in answer["config"].get("sources") or () if origin_key(s) in keys]
    copied = {origin_key(s): _reported_seq(s, answer.get("sources") or ()) for s in going}
    await work.begin(step, live)
    before = (work.state.replacements.get(recorded) or {}).get("detached") or ()
    await work.record(
        {"replacing": {"address": recorded, "detached": sorted(keys.union(before))}}, durable=False
    )
    await _record_starts(work, recorded, {key: seq + 1 for key, seq in copied.items() if seq})
    await work.backend.sync()
    config = {name: value for name, value in answer["config"].items() if name != "sources"}
    rest = [s for s in answer["config"].get("sources") or () if origin_key(s) not in keys]
    without = config | (
        {"sources": rest}
        if rest
        else {}
        if config.get("subjects")
        else {"subjects": [PARKING_PREFIX + stream]}
    )
    await work.call(replace(step, request={"api": f"STREAM.UPDATE.{stream}", "payload": without}))
    await work.verify_write(step)
    await _record_starts(work, recorded, await _resume_positions(api, stream, going))


async def attach_sources(work: StepContext, step: Step) -> None:
    """Update a stream to what it shall be, with the sources that were taken out where they go on. Raises as `delete_origin` does."""
    live = await work.check_precondition(step)
    keys, recorded = set((step.params or {})["sources"]), (step.params or {})["state_address"]
    stream = step.target_address.stream
    assert step.request is not None
    coming = [s for s in step.request["payload"].get("sources") or () if origin_key(s) in keys]
    behind = await _resume_positions(work.api(step), stream, coming)
    entry = work.state.resources.get(Address.parse(recorded))
    known = behind.keys() | (entry.starts.keys() if entry else set())
    await _record_starts(
        work,
        recorded,
        behind
        | await resume_positions_by_scan(
            work, step, [s for s in coming if origin_key(s) not in known]
        ),
    )
    entry = work.state.resources.get(Address.parse(recorded))
    starts = {key: seq for key, seq in (entry.starts if entry else {}).items() if key in keys}
    made = with_resume_positions(step, starts)
    made = replace(made, record=(made.record or {}) | {"replaced": recorded})
    await work.begin(made, live)
    await work.call(made)
    await work.verify_write(made)


def with_resume_positions(step: Step, starts: dict[str, int]) -> Step:
    """The step with its sources where they go on: in what is sent, in what is expected, in what is recorded."""
    assert step.request is not None
    payload = step.request["payload"] | {
        "sources": [_with_start(s, starts) for s in step.request["payload"]["sources"]]
    }
    expect, record = dict(step.expect or {}), dict(step.record or {})
    if expect.get("sources"):
        expect["sources"] = sort_objects([_with_start(s, starts) for s in expect["sources"]])
    record["starts"] = (record.get("starts") or {}) | starts
    return replace(step, request=step.request | {"payload": payload}, expect=expect, record=record)


def _with_start(source: Config, starts: dict[str, int]) -> Config:
    start = starts.get(origin_key(source))
    if start is None:
        return source
    return {name: value for name, value in source.items() if name != "opt_start_time"} | {
        "opt_start_seq": start
    }


async def _record_starts(work: StepContext, recorded: str, starts: dict[str, int]) -> None:
    """Remember where sources go on, never before where they went on already."""
    address = Address.parse(recorded)
    entry = work.state.resources.get(address)
    if entry is None or not starts:
        return
    later = {key: max(seq, entry.starts.get(key, 0)) for key, seq in starts.items()}
    if later != {key: entry.starts.get(key) for key in later}:
        put = replace(entry, starts=entry.starts | later).to_json()
        await work.record({"put": {"address": str(address), "entry": put}})


def _reported_seq(source: Config, reported: Iterable[dict[str, Any]]) -> int:
    """The last sequence that was copied of a source, as servers since 2.15 report it; 0 where it is not said."""
    return next(
        (int(info.get("seq") or 0) for info in reported if origin_key(info) == origin_key(source)),
        0,
    )


async def _resume_positions(
    api: DomainApi, stream: str, sources: Iterable[Config]
) -> dict[str, int]:
    """Behind which sequence each source goes on, by the newest messages of the stream; those of which there is none are left out."""
    state = (await api.request(f"STREAM.INFO.{stream}"))["state"]
    found = await newest_origin_seqs(
        api, stream, state, sources, int(state["last_seq"]) - SEARCH_DEPTH + 1
    )
    return {key: seq + 1 for key, seq in found.items()}


async def newest_origin_seqs(
    api: DomainApi, stream: str, state: Config, sources: Iterable[Config], down_to: int
) -> dict[str, int]:
    """The sequence that the newest message of each source had there, among the messages of the stream from `down_to` on."""
    wanted, found = (
        {source_header(source): origin_key(source) for source in sources},
        dict[str, int](),
    )
    end, first = int(state["last_seq"]), max(down_to, int(state["first_seq"]), 1)
    while state["messages"] and end >= first and len(found) < len(wanted):
        some = range(end, max(first, end - BATCH_SIZE + 1) - 1, -1)
        for header in await asyncio.gather(
            *(_read_source_header(api, stream, seq) for seq in some)
        ):
            where, sequence = _parse_source_header(header)
            if where in wanted:
                found.setdefault(wanted[where], sequence)
        end -= len(some)
    return found


async def resume_positions_by_scan(
    work: StepContext, step: Step, sources: Iterable[Config]
) -> dict[str, int]:
    """The same by all messages of the stream, for sources that nobody knows anything about."""
    api, wanted, found = (
        work.api(step),
        {source_header(source): origin_key(source) for source in sources},
        dict[str, int](),
    )
    if not wanted:
        return found
    info = await api.request(f"STREAM.INFO.{step.target_address.stream}")
    reader = await open_reader(
        api, info, int(work.plan.domains[step.domain]["api_level"]), MAX_SEARCHED
    )
    try:
        async for message in reader.read_backward():
            where, sequence = _parse_source_header(message.source)
            if where in wanted:
                found.setdefault(wanted[where], sequence + 1)
            if len(found) == len(wanted):
                break
    except ReadLimitExceeded:
        pass  # the plan said so: that many messages are a hazard
    return found


async def _read_source_header(api: DomainApi, stream: str, seq: int) -> str:
    """The `Nats-Stream-Source` of a message; empty where there is none."""
    try:
        answer = await api.request(f"STREAM.MSG.GET.{stream}", {"seq": seq})
    except ServerRefusedError as error:
        if error.err_code != NO_MESSAGE:
            raise
        return ""
    lines = (
        base64.b64decode(answer["message"].get("hdrs") or "")
        .decode("utf-8", "replace")
        .split("\r\n")
    )
    return next(
        (
            line.partition(":")[2].strip()
            for line in lines
            if line.startswith("Nats-Stream-Source:")
        ),
        "",
    )


def _parse_source_header(header: str) -> tuple[tuple[str, str, str], int]:
    """Which source a message came from, and its sequence there. Several filters of one source have a form feed between them."""
    words = header.split(" ")
    return (
        ((words[0], words[2], words[3]), int(words[1]))
        if len(words) >= 4 and words[1].isdigit()
        else (("", "", ""), 0)
    )
