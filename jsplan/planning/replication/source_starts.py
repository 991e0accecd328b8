"""Starts of new sources as sequences, where the server might begin later.

Measured on 2.10 to 2.15: a source begins no earlier than the last message of its stream was stored,
if it has a start time, or if the first messages of the stream are gone. That is how the stream is
when the source hears of its origin: a publisher or another source may be faster, and a leaf may be
offline for days. With a sequence it begins there, or behind the last message that the stream has of
it. Before 2.15 a server that restarts copies from that sequence again, if the stream has deleted
all of it: there a source without a start gets none before it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.health.losses import deletes_oldest
from jsplan.planning.merge import SOURCE_START_FIELDS
from jsplan.planning.model import Findings, Overrides
from jsplan.planning.replication.impact import origin_of
from jsplan.planning.revision import Revision
from jsplan.resources.fields import Config, sort_objects
from jsplan.resources.nested import origin_key, source_keys
from jsplan.resources.server_features import ORIGIN_IDENTITY_LEVEL
from jsplan.units import instant_of, parse_instant

if TYPE_CHECKING:
    from jsplan.planning.drafts import Draft
    from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision


#: The code of a source that may begin late, and why it gets no sequence.
BEGINS_LATE: Final = "JS486"
_UNKNOWN_START: Final = (
    "The sequence of its opt_start_time is not known, and it begins later if others store messages "
    "in the stream first. Apply when its origin answers, or set opt_start_seq."
)
_NO_START: Final = (
    "Before nats-server 2.15 it begins late if others have pushed out the first messages of the "
    "stream by then. Apply when its origin answers and no other client publishes. Or set "
    "opt_start_seq: 1: a server that restarts then copies again what the stream has deleted."
)


def list_start_times(inputs: PlanInputs, decisions: Decisions) -> set[tuple[Address, str]]:
    """Return the times whose sequence the plan needs, each with the stream."""
    touched = inputs.touched(decisions).values()
    late = (pair for decision in touched for pair in _late_sources(inputs, decision))
    times = ((origin, source.get("opt_start_time")) for source, origin in late)
    return {(origin, time) for origin, time in times if origin is not None and time}


def fix_source_starts(inputs: PlanInputs, decisions: Decisions) -> Overrides:
    """Set `source_starts` of the decisions, and show them in what the streams will have."""
    revision = Revision(decisions)
    for address, decision in inputs.touched(decisions).items():
        starts: dict[str, int] = {}
        for source, origin in _late_sources(inputs, decision):
            seq = _start_of(inputs, decisions, origin, source)
            if seq is not None:
                starts[origin_key(source)] = max(1, seq)
        if starts and decision.after is not None:
            sources = _with_starts(decision.after["sources"], starts)
            fields = list(decision.fields)
            for number, change in enumerate(fields):
                if change.path.startswith('sources["') and isinstance(change.after, dict):
                    fields[number] = replace(change, after=with_start(change.after, starts))
                elif change.path == "sources" and change.after:
                    fields[number] = replace(change, after=_with_starts(change.after, starts))
            after = decision.after | {"sources": sources}
            revision.change(address, source_starts=starts, after=after, fields=fields)
    return revision.overrides


def _late_sources(
    inputs: PlanInputs, decision: ResourceDecision
) -> Iterator[tuple[Config, Address | None]]:
    """Yield the new sources that the server would begin late, each with its origin, if known."""
    kept = decision.live if not decision.loses_content else None
    state = kept.state if kept is not None else decision.planned
    gone = int(state.get("first_seq") or 0) > 1 or (
        inputs.level(decision.address) >= ORIGIN_IDENTITY_LEVEL
        and _may_lose_first(decision.planned)
    )
    for source, origin in _new_sources(inputs, decision):
        if source.get("opt_start_time") or gone:
            yield source, origin


def _new_sources(
    inputs: PlanInputs, decision: ResourceDecision
) -> Iterator[tuple[Config, Address | None]]:
    """Yield the new sources without a sequence that begin now, each with its origin, if known."""
    if decision.address.parent is not None or not decision.writes or decision.comes_filled:
        return
    kept = decision.live if not decision.loses_content else None
    known = decision.sources_to_attach | decision.relocated_sources.keys()
    known |= source_keys(kept.compact if kept else {})
    for source in decision.planned.get("sources") or ():
        time = source.get("opt_start_time")
        # One with a consumer begins where that is; a start is refused (10215).
        if origin_key(source) in known or source.get("opt_start_seq") or source.get("consumer"):
            continue
        if not (time and parse_instant(time) > instant_of(inputs.now)):
            yield source, origin_of(inputs, decision.address, source)


def _start_of(
    inputs: PlanInputs, decisions: Decisions, origin: Address | None, source: Config
) -> int | None:
    """Return the sequence of a source that begins late; None if that is not known."""
    time = source.get("opt_start_time")
    if not time:
        return 1
    if origin is None:
        return None
    planned = decisions.get(inputs.topology.find_declared(origin))
    if planned is not None and planned.actions == ["create"] and not planned.comes_filled:
        return 1
    return inputs.measured.seqs_by_time.get((origin, time))


def _may_lose_first(config: Config) -> bool:
    """Check whether others store messages in a stream that deletes its first ones."""
    is_written = bool(config.get("subjects")) or len(config.get("sources") or ()) > 1
    by_messages = config.get("allow_msg_ttl") or config.get("allow_rollup_hdrs")
    return is_written and (deletes_oldest(config) or bool(by_messages))


def check_late_starts(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Warn about each new source that may begin late and gets no sequence."""
    for decision in inputs.touched(decisions).values():
        for source, origin in _new_sources(inputs, decision):
            if origin_key(source) in decision.source_starts:
                continue
            if source.get("opt_start_time"):
                why = _UNKNOWN_START
            elif _may_begin_late(inputs, decision.planned, origin):
                why = _NO_START
            else:
                continue
            name = str(origin or source["name"])
            text = f"its new source {name} may leave out what its origin has now"
            yield inputs.finding("warning", BEGINS_LATE, text, why, decision.address, "sources")


def _may_begin_late(inputs: PlanInputs, config: Config, origin: Address | None) -> bool:
    """Check whether the first messages of a stream may be gone when a source begins."""
    answers = origin is not None and inputs.live.is_reachable(origin.domain)
    at_once = int(config.get("max_msgs_per_subject") or 0) > 0
    return _may_lose_first(config) and (at_once or not answers)


def with_source_starts(draft: Draft, starts: Mapping[str, int]) -> Draft:
    """Return the call with these starts in its request, in what it expects and in its record."""
    payload = (draft.request or {}).get("payload") or {}
    if not starts or not payload.get("sources"):
        return draft
    assert draft.request is not None
    expect, record = draft.expect, draft.record
    if expect is not None and expect.get("sources"):
        expect = expect | {"sources": _with_starts(expect["sources"], starts)}
    if record is not None:
        record = record | {"starts": {**(record.get("starts") or {}), **starts}}
    request = draft.request | {
        "payload": payload | {"sources": [with_start(s, starts) for s in payload["sources"]]}
    }
    return replace(draft, request=request, expect=expect, record=record)


def _with_starts(sources: list[Config], starts: Mapping[str, int]) -> list[Config]:
    return sort_objects([with_start(source, starts) for source in sources])


def with_start(source: Config, starts: Mapping[str, int]) -> Config:
    """Return a source that begins at its start in `starts`, if it has one there.

    One with a consumer begins where that is.
    """
    start = starts.get(origin_key(source))
    if start is None or source.get("consumer"):
        return source
    rest = {name: value for name, value in source.items() if name not in SOURCE_START_FIELDS}
    return rest | {"opt_start_seq": start}
