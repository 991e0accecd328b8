"""Steps for recreated origins and the sources that read them.

State records what must survive the end of the process before anything is lost: the first sequence
of a new origin among the `replacements`, the resume position of a source among the `starts` of its
stream, and detached sources among the `replacements` again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from jsplan.address import PARKING_PREFIX, Address
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.documents.base import plain
from jsplan.documents.plan import Step
from jsplan.facts.measurement import MAX_SEARCHED
from jsplan.facts.messages import ReadLimitExceeded, open_reader
from jsplan.jetstream import DomainApi
from jsplan.jetstream.api import message_headers
from jsplan.planning.replication.source_starts import with_start
from jsplan.resources.fields import Config, sort_objects
from jsplan.resources.nested import key_in_info, origin_api, origin_key, reported_seq
from jsplan.resources.source_header import SourceHeader, parse_source_header, source_name

#: Messages at the end of a stream that are searched for the last one of a source.
SEARCH_DEPTH = 1_000
#: Seconds until the copy that a source will read has all that the stream has of the earlier one.
COPY_TIMEOUT = 30.0
#: Messages that are requested at once.
BATCH_SIZE = 100


# --- origins -------------------------------------------------------------------------------------


async def delete_origin(context: StepContext, step: Step) -> None:
    """Quiesce a stream, record the first sequence of the new one, delete it.

    Raises StepFailed, StepNotStarted, ApiError and StateError.
    """
    live = await context.check_precondition(step)
    if live is None:
        raise StepFailed(f"{step.address} was deleted by another client since it was planned")
    if live.raw.get("subjects") and not live.raw.get("sealed"):
        parked = {"subjects": [PARKING_PREFIX + step.target_address.stream]}
        # A stream without sources gets a duplicate window.
        derived = {"duplicate_window": live.compact.get("duplicate_window")}
        expect = parked | ({"sources": None} | derived if live.raw.get("sources") else {})
        quiescing = replace(step, op="stream.update", expect=expect)
        quiesced = {name: value for name, value in live.raw.items() if name != "sources"} | parked
        await context.begin(quiescing, live)
        await context.send(step, f"STREAM.UPDATE.{step.target_address.stream}", quiesced)
        await context.verify_write(quiescing)
    await context.begin(step)
    now = await context.read(step.target_address)
    first = int((now or live).state.get("last_seq") or 0) + 1
    recorded = (step.params or {})["state_address"]
    await context.record({"replacing": {"address": recorded, "first_seq": first}})
    await context.call(step)
    await context.verify_write(step)


async def create_origin(context: StepContext, step: Step) -> None:
    """Create a stream whose first sequence follows the last one of the old stream.

    Raises as `delete_origin` does.
    """
    await context.check_precondition(step)
    recorded = (step.params or {})["state_address"]
    first = (context.state.replacements.get(recorded) or {}).get("first_seq")
    assert step.request is not None
    start = {"first_seq": first} if first and first > 1 else {}
    request = step.request | {"payload": step.request["payload"] | start}
    record = (step.record or {}) | {"replaced": recorded}
    create = replace(step, request=request, expect=(step.expect or {}) | start, record=record)
    await context.begin(create)
    await context.call(create)
    await context.verify_write(create)


# --- sources -------------------------------------------------------------------------------------


async def detach_sources(context: StepContext, step: Step) -> None:
    """Remove sources from a stream, and record the resume position of each.

    Raises as `delete_origin` does.
    """
    live = await context.check_precondition(step)
    keys, recorded = set((step.params or {})["sources"]), (step.params or {})["state_address"]
    api, stream = context.api(step), step.target_address.stream
    answer = await api.request(f"STREAM.INFO.{stream}")
    detached = [s for s in answer["config"].get("sources") or () if origin_key(s) in keys]
    copied = {
        origin_key(s): reported_seq(key_in_info(s), answer.get("sources") or ()) for s in detached
    }
    new_sources: dict[str, Config] = (step.params or {}).get("new_sources") or {}
    if new_sources:
        starts = await _resume_positions(api, stream, detached)
        starts |= {key: seq + 1 for key, seq in copied.items() if seq}
        for key, source in new_sources.items():
            await _wait_for_copy(context, step, source, starts.get(key, 1) - 1)
    await context.begin(step, live)
    before = (context.state.replacements.get(recorded) or {}).get("detached") or ()
    await context.record(
        {"replacing": {"address": recorded, "detached": sorted(keys.union(before))}}, durable=False
    )
    await _record_starts(context, recorded, {key: seq + 1 for key, seq in copied.items() if seq})
    await context.backend.sync()
    config = {name: value for name, value in answer["config"].items() if name != "sources"}
    rest = [s for s in answer["config"].get("sources") or () if origin_key(s) not in keys]
    if rest:
        config["sources"] = rest
    elif not config.get("subjects"):
        config["subjects"] = [PARKING_PREFIX + stream]
    request = {"api": f"STREAM.UPDATE.{stream}", "payload": config}
    await context.call(replace(step, request=request))
    await context.verify_write(step)
    await _record_starts(context, recorded, await _resume_positions(api, stream, detached))


async def attach_sources(context: StepContext, step: Step) -> None:
    """Update a stream to its planned configuration, with detached sources at their positions.

    Raises as `delete_origin` does.
    """
    live = await context.check_precondition(step)
    keys, recorded = set((step.params or {})["sources"]), (step.params or {})["state_address"]
    stream = step.target_address.stream
    assert step.request is not None
    attached = [s for s in step.request["payload"].get("sources") or () if origin_key(s) in keys]
    positions = await _resume_positions(context.api(step), stream, attached)
    entry = context.state.resources.get(Address.parse(recorded))
    positions |= await moved_positions(context, step, entry.starts if entry is not None else {})
    known = positions.keys() | (entry.starts.keys() if entry else set())
    unknown = [source for source in attached if origin_key(source) not in known]
    positions |= await resume_positions_by_scan(context, step, unknown)
    await _record_starts(context, recorded, positions)
    entry = context.state.resources.get(Address.parse(recorded))
    starts = {key: seq for key, seq in (entry.starts if entry else {}).items() if key in keys}
    for key in ((step.params or {}).get("relocated_sources") or {}).keys() & starts.keys():
        source = next(s for s in attached if origin_key(s) == key)
        await _wait_for_copy(context, step, source, starts[key] - 1)
    update = with_resume_positions(step, starts)
    update = replace(update, record=(update.record or {}) | {"replaced": recorded})
    await context.begin(update, live)
    await context.call(update)
    await context.verify_write(update)


async def _wait_for_copy(context: StepContext, step: Step, source: Config, seq: int) -> None:
    """Wait until the stream that a source will read has a sequence.

    A server before 2.15 would let a source with a later start begin behind its last message.
    Raises StepFailed, and ApiError.
    """
    name = source["name"]
    api = context.api(step).behind(origin_api(source))
    end = time.monotonic() + COPY_TIMEOUT
    while (last := int((await api.request(f"STREAM.INFO.{name}"))["state"]["last_seq"])) < seq:
        if time.monotonic() > end:
            raise StepFailed(
                f"{step.address} has copied up to sequence {seq:,} of its earlier source, and "
                f"{name} has only {last:,}: its messages would be copied again. Wait until jsplan "
                f"status shows that {name} follows, then run apply again"
            )
        await asyncio.sleep(0.5)


async def moved_positions(
    context: StepContext, step: Step, known: Mapping[str, int]
) -> dict[str, int]:
    """Return where the `relocated_sources` of a step begin: where those before them ended.

    They read a relocated stream, or belong to one: it has the sequences of its origin. `known` are
    positions of the sources before, by key. Raises ApiError.
    """
    moved: dict[str, Config] = (step.params or {}).get("relocated_sources") or {}
    found = await resume_positions_by_scan(context, step, moved.values())
    return {
        key: max(
            found.get(origin_key(old), 0),
            known.get(origin_key(old), 0),
            int(old.get("opt_start_seq") or 1),
        )
        for key, old in moved.items()
    }


def with_resume_positions(step: Step, starts: dict[str, int]) -> Step:
    """Return the step with resume positions in request, expectation and record."""
    assert step.request is not None
    payload = step.request["payload"] | {
        "sources": [with_start(s, starts) for s in step.request["payload"].get("sources") or ()]
    }
    expect, record = dict(step.expect or {}), dict(step.record or {})
    if expect.get("sources"):
        expect["sources"] = sort_objects([with_start(s, starts) for s in expect["sources"]])
    record["starts"] = (record.get("starts") or {}) | starts
    return replace(step, request=step.request | {"payload": payload}, expect=expect, record=record)


async def _record_starts(context: StepContext, recorded: str, starts: dict[str, int]) -> None:
    """Record the resume positions of sources, never before a recorded one."""
    address = Address.parse(recorded)
    entry = context.state.resources.get(address)
    if entry is None or not starts:
        return
    later = {key: max(seq, entry.starts.get(key, 0)) for key, seq in starts.items()}
    if later != {key: entry.starts.get(key) for key in later}:
        put = plain(replace(entry, starts=entry.starts | later))
        await context.record({"put": {"address": str(address), "entry": put}})


async def reported_positions(context: StepContext, step: Step) -> dict[str, int]:
    """Return behind which sequence each source of a stream continues, as its server reports it.

    Only since 2.15. Its messages say less: it may have deleted the newest of a source.
    """
    answer = await context.api(step).request(f"STREAM.INFO.{step.target_address.stream}")
    reported = answer.get("sources") or ()
    seqs = {
        origin_key(source): reported_seq(key_in_info(source), reported)
        for source in answer["config"].get("sources") or ()
    }
    return {key: seq + 1 for key, seq in seqs.items() if seq}


async def _resume_positions(
    api: DomainApi, stream: str, sources: Iterable[Config]
) -> dict[str, int]:
    """Find the resume position of each source in the newest messages of the stream.

    Sources without a message there are omitted.
    """
    state = (await api.request(f"STREAM.INFO.{stream}"))["state"]
    seqs = await newest_origin_seqs(
        api, stream, state, sources, int(state["last_seq"]) - SEARCH_DEPTH + 1
    )
    return {key: seq + 1 for key, seq in seqs.items()}


async def newest_origin_seqs(
    api: DomainApi, stream: str, state: Config, sources: Iterable[Config], down_to: int
) -> dict[str, int]:
    """Return the origin sequence of each source's newest message, searching back to `down_to`."""
    wanted = {source_name(source): origin_key(source) for source in sources}
    seqs = dict[str, int]()
    end, first = int(state["last_seq"]), max(down_to, int(state["first_seq"]), 1)
    while state["messages"] and end >= first and len(seqs) < len(wanted):
        batch = range(end, max(first, end - BATCH_SIZE + 1) - 1, -1)
        for header in await asyncio.gather(
            *(_read_source_header(api, stream, seq) for seq in batch)
        ):
            if header is not None and header.source in wanted:
                seqs.setdefault(wanted[header.source], header.seq)
        end -= len(batch)
    return seqs


async def resume_positions_by_scan(
    context: StepContext, step: Step, sources: Iterable[Config]
) -> dict[str, int]:
    """Find resume positions in all messages of the stream, for sources without a known one."""
    api, positions = context.api(step), dict[str, int]()
    wanted = {source_name(source): origin_key(source) for source in sources}
    if not wanted:
        return positions
    info = await api.request(f"STREAM.INFO.{step.target_address.stream}")
    reader = await open_reader(
        api, info, int(context.plan.domains[step.domain]["api_level"]), MAX_SEARCHED
    )
    try:
        async for message in reader.read_backward():
            if message.source is not None and message.source.source in wanted:
                positions.setdefault(wanted[message.source.source], message.source.seq + 1)
            if len(positions) == len(wanted):
                break
    except ReadLimitExceeded:
        pass  # the plan has a hazard for that many messages
    return positions


async def _read_source_header(api: DomainApi, stream: str, seq: int) -> SourceHeader | None:
    message = await api.get_message(stream, {"seq": seq})
    return parse_source_header(message_headers(message)) if message is not None else None
