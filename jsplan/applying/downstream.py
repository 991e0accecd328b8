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

from jsplan.address import PARKING, Address
from jsplan.applying.work import StepFailed, Work
from jsplan.documents.plan import Step
from jsplan.errors import ServerRefusedError
from jsplan.facts.messages import TooManyReads, reader_of
from jsplan.facts.recopy import SEARCHED
from jsplan.jetstream import DomainApi
from jsplan.jetstream.api import NO_MESSAGE
from jsplan.resources.fields import Config, in_order
from jsplan.resources.nested import header_of, origin_key

#: So many messages back a stream is searched for the last one of a source: those that came while it was taken out.
FAR_ENOUGH = 1_000
#: So many of them are asked for at once.
AT_ONCE = 100


# --- origins --------------------------------------------------------------------------------------------------


async def delete_origin(work: Work, step: Step) -> None:
    """Stop a stream, write down where the new one begins, delete it. Raises StepFailed, NotBegun, ApiError and StateError."""
    live = await work.check(step)
    if live is None:
        raise StepFailed(f"{step.address} was deleted by somebody else since it was planned")
    if live.raw.get("subjects") and not live.raw.get("sealed"):
        parked = {"subjects": [PARKING + step.touches.stream]}
        derived = {"duplicate_window": live.compact.get("duplicate_window")}  # a stream without sources gets one
        expect = parked | ({"sources": None} | derived if live.raw.get("sources") else {})
        stopping = replace(step, op="stream.update", expect=expect)
        stopped = {name: value for name, value in live.raw.items() if name != "sources"} | parked
        await work.begin(stopping, live)
        await work.send(step, f"STREAM.UPDATE.{step.touches.stream}", stopped)
        await work.read_back(stopping)
    await work.begin(step)
    now = await work.read(step.touches)
    first = int((now or live).state.get("last_seq") or 0) + 1
    recorded = (step.params or {})["state_address"]
    await work.record({"replacing": {"address": recorded, "first_seq": first}})
    await work.call(step)
    await work.read_back(step)


async def create_origin(work: Work, step: Step) -> None:
    """Make a stream whose first message gets the number behind the last one of the old stream. Raises as `delete_origin` does."""
    await work.check(step)
    recorded = (step.params or {})["state_address"]
    first = (work.state.replacements.get(recorded) or {}).get("first_seq")
    assert step.request is not None
    begins = {"first_seq": first} if first and first > 1 else {}
    request = step.request | {"payload": step.request["payload"] | begins}
    record = (step.record or {}) | {"replaced": recorded}
    made = replace(step, request=request, expect=(step.expect or {}) | begins, record=record)
    await work.begin(made)
    await work.call(made)
    await work.read_back(made)


# --- sources --------------------------------------------------------------------------------------------------


async def leave(work: Work, step: Step) -> None:
    """Take sources out of a stream, and remember behind which sequence each goes on. Raises as `delete_origin` does."""
    live = await work.check(step)
    keys, recorded = set((step.params or {})["sources"]), (step.params or {})["state_address"]
    api, stream = work.api(step), step.touches.stream
    answer = await api.request(f"STREAM.INFO.{stream}")
    going = [s for s in answer["config"].get("sources") or () if origin_key(s) in keys]
    copied = {origin_key(s): _seq_of(s, answer.get("sources") or ()) for s in going}
    await work.begin(step, live)
    before = (work.state.replacements.get(recorded) or {}).get("detached") or ()
    await work.record({"replacing": {"address": recorded, "detached": sorted(keys.union(before))}}, durable=False)
    await _mark(work, recorded, {key: seq + 1 for key, seq in copied.items() if seq})
    await work.backend.sync()
    config = {name: value for name, value in answer["config"].items() if name != "sources"}
    rest = [s for s in answer["config"].get("sources") or () if origin_key(s) not in keys]
    without = config | ({"sources": rest} if rest else {} if config.get("subjects") else {"subjects": [PARKING + stream]})
    await work.call(replace(step, request={"api": f"STREAM.UPDATE.{stream}", "payload": without}))
    await work.read_back(step)
    await _mark(work, recorded, await _behind(api, stream, going))


async def rejoin(work: Work, step: Step) -> None:
    """Update a stream to what it shall be, with the sources that were taken out where they go on. Raises as `delete_origin` does."""
    live = await work.check(step)
    keys, recorded = set((step.params or {})["sources"]), (step.params or {})["state_address"]
    stream = step.touches.stream
    assert step.request is not None
    coming = [s for s in step.request["payload"].get("sources") or () if origin_key(s) in keys]
    behind = await _behind(work.api(step), stream, coming)
    entry = work.state.resources.get(Address.parse(recorded))
    known = behind.keys() | (entry.starts.keys() if entry else set())
    await _mark(work, recorded, behind | await long_ago(work, step, [s for s in coming if origin_key(s) not in known]))
    entry = work.state.resources.get(Address.parse(recorded))
    starts = {key: seq for key, seq in (entry.starts if entry else {}).items() if key in keys}
    made = told_where(step, starts)
    made = replace(made, record=(made.record or {}) | {"replaced": recorded})
    await work.begin(made, live)
    await work.call(made)
    await work.read_back(made)


def told_where(step: Step, starts: dict[str, int]) -> Step:
    """The step with its sources where they go on: in what is sent, in what is expected, in what is recorded."""
    assert step.request is not None
    payload = step.request["payload"] | {"sources": [_from(s, starts) for s in step.request["payload"]["sources"]]}
    expect, record = dict(step.expect or {}), dict(step.record or {})
    if expect.get("sources"):
        expect["sources"] = in_order([_from(s, starts) for s in expect["sources"]])
    record["starts"] = (record.get("starts") or {}) | starts
    return replace(step, request=step.request | {"payload": payload}, expect=expect, record=record)


def _from(source: Config, starts: dict[str, int]) -> Config:
    start = starts.get(origin_key(source))
    if start is None:
        return source
    return {name: value for name, value in source.items() if name != "opt_start_time"} | {"opt_start_seq": start}


async def _mark(work: Work, recorded: str, starts: dict[str, int]) -> None:
    """Remember where sources go on, never before where they went on already."""
    address = Address.parse(recorded)
    entry = work.state.resources.get(address)
    if entry is None or not starts:
        return
    later = {key: max(seq, entry.starts.get(key, 0)) for key, seq in starts.items()}
    if later != {key: entry.starts.get(key) for key in later}:
        put = replace(entry, starts=entry.starts | later).to_json()
        await work.record({"put": {"address": str(address), "entry": put}})


def _seq_of(source: Config, reported: Iterable[dict[str, Any]]) -> int:
    """The last sequence that was copied of a source, as servers since 2.15 report it; 0 where it is not said."""
    return next((int(info.get("seq") or 0) for info in reported if origin_key(info) == origin_key(source)), 0)


async def _behind(api: DomainApi, stream: str, sources: Iterable[Config]) -> dict[str, int]:
    """Behind which sequence each source goes on, by the newest messages of the stream; those of which there is none are left out."""
    state = (await api.request(f"STREAM.INFO.{stream}"))["state"]
    found = await newest_of(api, stream, state, sources, int(state["last_seq"]) - FAR_ENOUGH + 1)
    return {key: seq + 1 for key, seq in found.items()}


async def newest_of(api: DomainApi, stream: str, state: Config, sources: Iterable[Config], down_to: int) -> dict[str, int]:
    """The sequence that the newest message of each source had there, among the messages of the stream from `down_to` on."""
    wanted, found = {header_of(source): origin_key(source) for source in sources}, dict[str, int]()
    end, first = int(state["last_seq"]), max(down_to, int(state["first_seq"]), 1)
    while state["messages"] and end >= first and len(found) < len(wanted):
        some = range(end, max(first, end - AT_ONCE + 1) - 1, -1)
        for header in await asyncio.gather(*(_header(api, stream, seq) for seq in some)):
            where, sequence = _came_from(header)
            if where in wanted:
                found.setdefault(wanted[where], sequence)
        end -= len(some)
    return found


async def long_ago(work: Work, step: Step, sources: Iterable[Config]) -> dict[str, int]:
    """The same by all messages of the stream, for sources that nobody knows anything about."""
    api, wanted, found = work.api(step), {header_of(source): origin_key(source) for source in sources}, dict[str, int]()
    if not wanted:
        return found
    info = await api.request(f"STREAM.INFO.{step.touches.stream}")
    reader = await reader_of(api, info, int(work.plan.domains[step.domain]["api_level"]), SEARCHED)
    try:
        async for message in reader.backward():
            where, sequence = _came_from(message.source)
            if where in wanted:
                found.setdefault(wanted[where], sequence + 1)
            if len(found) == len(wanted):
                break
    except TooManyReads:
        pass  # the plan said so: that many messages are a hazard
    return found


async def _header(api: DomainApi, stream: str, seq: int) -> str:
    """The `Nats-Stream-Source` of a message; empty where there is none."""
    try:
        answer = await api.request(f"STREAM.MSG.GET.{stream}", {"seq": seq})
    except ServerRefusedError as error:
        if error.err_code != NO_MESSAGE:
            raise
        return ""
    lines = base64.b64decode(answer["message"].get("hdrs") or "").decode("utf-8", "replace").split("\r\n")
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Nats-Stream-Source:")), "")


def _came_from(header: str) -> tuple[tuple[str, str, str], int]:
    """Which source a message came from, and its sequence there. Several filters of one source have a form feed between them."""
    words = header.split(" ")
    return ((words[0], words[2], words[3]), int(words[1])) if len(words) >= 4 and words[1].isdigit() else (("", "", ""), 0)
