"""Starts of new sources as sequences, where the server would begin later.

Measured on 2.10 to 2.15: a new source begins no earlier than the last message of its stream was
stored, if it has a start time, or if the first messages of the stream are gone. With a sequence it
begins there, or behind the last message that the stream has of it. So does each of several sources
of a new stream with start times, whose messages would hold up each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.planning.merge import SOURCE_START_FIELDS
from jsplan.planning.model import Overrides
from jsplan.planning.replication.impact import origin_of
from jsplan.planning.revision import Revision
from jsplan.resources.fields import Config, sort_objects
from jsplan.resources.nested import origin_key, source_keys
from jsplan.units import instant_of, parse_instant

if TYPE_CHECKING:
    from jsplan.planning.drafts import Draft
    from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision


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
            time = source.get("opt_start_time")
            seq = inputs.measured.seqs_by_time.get((origin, time)) if time and origin else 1
            if seq is not None:
                starts[origin_key(source)] = max(1, seq)
        if starts and decision.after is not None:
            sources = _with_starts(decision.after["sources"], starts)
            fields = list(decision.fields)
            for number, change in enumerate(fields):
                if change.path.startswith('sources["') and isinstance(change.after, dict):
                    fields[number] = replace(change, after=with_start(change.after, starts))
            after = decision.after | {"sources": sources}
            revision.change(address, source_starts=starts, after=after, fields=fields)
    return revision.overrides


def _late_sources(
    inputs: PlanInputs, decision: ResourceDecision
) -> Iterator[tuple[Config, Address | None]]:
    """Yield the new sources that the server would begin late, each with its origin, if known."""
    sources = decision.planned.get("sources") or ()
    if decision.address.parent is not None or not decision.writes or decision.comes_filled:
        return
    kept = decision.live if not decision.loses_content else None
    known = decision.sources_to_attach | decision.relocated_sources.keys()
    known |= source_keys(kept.compact if kept else {})
    state = kept.state if kept is not None else decision.planned
    gone = int(state.get("first_seq") or 0) > 1
    filled = kept is not None and int(kept.state.get("last_seq") or 0) > 0
    for source in sources:
        time = source.get("opt_start_time")
        # One with a consumer begins where that is; a start is refused (10215).
        if origin_key(source) in known or source.get("opt_start_seq") or source.get("consumer"):
            continue
        if time and parse_instant(time) > instant_of(inputs.now):
            continue  # it has not begun
        if (time and (filled or len(sources) > 1)) or (not time and gone):
            yield source, origin_of(inputs, decision.address, source)


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
    """Return a source that begins at its start in `starts`, if it has one there."""
    start = starts.get(origin_key(source))
    if start is None:
        return source
    rest = {name: value for name, value in source.items() if name not in SOURCE_START_FIELDS}
    return rest | {"opt_start_seq": start}
