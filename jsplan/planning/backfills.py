"""Which entries of `backfills:` are still to be done, which range each means, and how much that is, as far as the states of their streams
say. Pure.

What exactly is missing is found when the copy runs: it looks through the target. Here nothing is read but what a plan reads anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jsplan.address import Address, matches
from jsplan.backfill.choosing import (
    NATIVE,
    SAYS_WHERE_FROM,
    SNAPSHOT,
    Choice,
    Stream,
    choose,
    explained,
    not_possible,
    situation,
    unreadable,
)
from jsplan.backfill.estimating import estimate_for
from jsplan.backfill.records import Leg, Record, kept, legs_of, text_of
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import Deferred
from jsplan.topology.reach import is_import
from jsplan.units import instant_after

if TYPE_CHECKING:
    from jsplan.config.model import Backfill, BackfillSide
    from jsplan.facts.live import LiveObject
    from jsplan.planning.inputs import Inputs
    from jsplan.planning.verdict import Verdict
    from jsplan.state.document import State

IMPOSSIBLE: Final = "JS472"
#: Why what was begun is gone on with.
BEGUN: Final = {"native": Choice("native", f"{NATIVE}; begun so"), "snapshot": Choice("snapshot", f"{SNAPSHOT}; begun so")}


class Range(NamedTuple):
    """Sequences `first` to `last`, both included, of the stream that was `created` then."""

    first: int
    last: int
    created: str


def open_entries(inputs: Inputs) -> list[Backfill]:
    """Entries that are not done, in the order of the files, of those that the plan is about."""
    request = inputs.request
    if request.destroy or request.refresh_only or request.imports:
        return []
    return [entry for entry in inputs.workspace.backfills.values() if _meant(inputs, entry) and not _done(inputs, entry)]


def _meant(inputs: Inputs, entry: Backfill) -> bool:
    target = str(entry.target)
    wanted, without = inputs.request.targets, inputs.request.excludes
    return (not wanted or _any(wanted, target)) and not _any(without, target)


def _any(globs: Iterable[str], address: str) -> bool:
    return any(matches(glob, address) for glob in globs)


def _done(inputs: Inputs, entry: Backfill) -> bool:
    record = kept(inputs.state.backfills, entry)
    return record is not None and bool(record.done_at)


def streams_of(inputs: Inputs) -> set[Address]:
    """The streams at both ends of what is to be done."""
    sides = [side for entry in open_entries(inputs) for side in (*entry.origins, entry.target)]
    return {Address.of_stream(side.domain, side.stream) for side in sides if side.parquet is None}


def planned_backfills(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> list[dict[str, Any]]:
    """The elements of the plan's `backfills`. Messages and bytes are the most that there may be; null where nobody can tell."""
    return [_planned(inputs, verdicts, entry, sides) for entry in open_entries(inputs) if (sides := _to_copy(inputs, entry))]


def deferred_backfills(inputs: Inputs) -> list[Deferred]:
    """The ends in domains that are away of what is to be done: it waits for its target, and each of several origins for itself."""
    waiting = ((entry, side) for entry in open_entries(inputs) for side in _away(inputs, entry))
    return [Deferred(str(side), f"backfill {entry.name} waits: {inputs.live.domains[side.domain].absence}") for entry, side in waiting]


def _away(inputs: Inputs, entry: Backfill) -> list[BackfillSide]:
    return [side for side in (*entry.origins, entry.target) if side.parquet is None and not inputs.live.reachable(side.domain)]


def _to_copy(inputs: Inputs, entry: Backfill) -> list[BackfillSide]:
    """The origins that can be copied now: all of them, or of several those that can be reached and are not done."""
    away = _away(inputs, entry)
    if not away:
        return list(entry.origins)
    if entry.target in away:
        return []
    record = kept(inputs.state.backfills, entry)
    done = {leg.origin for leg in record.origins if leg.status == "done"} if record is not None else set()
    return [side for side in entry.origins if side not in away and str(side) not in done]


def _planned(inputs: Inputs, verdicts: Mapping[Address, Verdict], entry: Backfill, sides: Sequence[BackfillSide]) -> dict[str, Any]:
    record, choice = kept(inputs.state.backfills, entry), explained(entry, choice_of(inputs, entry))
    legs = legs_of(record, entry.origins)
    of_sides = [_range(inputs, side, leg) for side, leg in zip(entry.origins, legs, strict=True) if side in sides]
    amounts = [_amount(inputs, side, found) for side, found in zip(sides, of_sides, strict=True)]
    known = [amount for amount in amounts if amount is not None]
    messages, size = (sum(one) for one in zip((0, 0), *known, strict=True)) if len(known) == len(amounts) else (None, None)
    ends = [end_of(side) | _shown(inputs, verdicts, side, found) for side, found in zip(sides, of_sides, strict=True)]
    return {
        "name": entry.name, "from": ends, "to": end_of(entry.target), "entry_hash": text_of(entry), "strategy": choice.strategy,
        "reason": choice.reason, "messages": messages, "bytes": size, "estimate": _estimated(inputs, entry, choice, messages, size),
    }  # fmt: skip


def _estimated(inputs: Inputs, entry: Backfill, choice: Choice, messages: int | None, size: int | None) -> dict[str, Any] | None:
    if messages is None or size is None:
        return None
    now = inputs.request.now.timestamp()
    return estimate_for(entry, choice.strategy, messages, size, past_legs(inputs.state), now).to_json()


def past_legs(state: State) -> list[Leg]:
    """What was copied before, the newest last."""
    records = [Record.from_json(raw) for raw in state.backfills.values()]
    return [leg for record in sorted(records, key=lambda one: one.pinned_at) for leg in record.origins]


def choice_of(inputs: Inputs, entry: Backfill) -> Choice:
    """What copies an entry: what began it goes on with it."""
    record = kept(inputs.state.backfills, entry)
    if record is not None and not record.planned:
        return (
            BEGUN.get(record.origins[0].strategy, Choice("spark", SAYS_WHERE_FROM)) if record.origins else Choice("spark", SAYS_WHERE_FROM)
        )
    origins = [_stream(inputs, side) for side in entry.origins if side.parquet is None]
    target = _stream(inputs, entry.target) if entry.target.parquet is None else Stream()
    there = [origin for origin in origins if origin.exists]
    choice = choose(situation(inputs.topology, entry, there, target, inputs.request.now))
    declared = next(filter(None, (unreadable(origin.config) for origin in origins)), "") if choice.strategy == "spark" else ""
    return replace(choice, against=choice.against or declared)


def _stream(inputs: Inputs, side: BackfillSide) -> Stream:
    address = Address.of_stream(side.domain, side.stream)
    live, level = inputs.live.get(address), inputs.level(address)
    imported = is_import(inputs.workspace.domains[side.domain])
    if live is not None:
        return Stream(live.raw, live.state, level, imported=imported)
    declared = inputs.body(address) if address in inputs.workspace.resources else {}
    return Stream(declared, {}, level, exists=False, imported=imported)


def impossible_backfills(inputs: Inputs) -> Iterable[Diagnostic]:
    """Entries that ask for a tool that cannot do it."""
    for entry in open_entries(inputs):
        if not _away(inputs, entry) and (choice := choice_of(inputs, entry)).against:
            yield Diagnostic("error", IMPOSSIBLE, *not_possible(entry, choice), str(entry.target), entry.range)


def end_of(side: BackfillSide) -> dict[str, Any]:
    """One side, as documents have it."""
    if side.parquet is not None:
        return {"parquet": side.parquet}
    said = {
        "start_seq": side.start_seq, "end_seq": side.end_seq, "start_time": side.start_time, "end_time": side.end_time,
        "filter_subjects": list(side.filters) or None,
    }  # fmt: skip
    return {"domain": side.domain, "stream": side.stream} | {key: value for key, value in said.items() if value is not None}


def _range(inputs: Inputs, side: BackfillSide, leg: Leg | None) -> Range | None:
    """What of an origin is meant: what was pinned, else from and to where its bounds are now; None where nobody can tell yet."""
    if leg is not None:
        return Range(leg.first, leg.last, leg.created)
    live = inputs.live.get(Address.of_stream(side.domain, side.stream)) if side.parquet is None else None
    bounds = _bounds(inputs, side, live) if live is not None else None
    return Range(*bounds, live.created) if live is not None and bounds is not None else None


def _shown(inputs: Inputs, verdicts: Mapping[Address, Verdict], side: BackfillSide, found: Range | None) -> dict[str, Any]:
    """The range that an apply of the plan keeps. One without a message is not worth it, and one of a stream that the plan makes anew
    would be of another stream.
    """
    if found is None or found.first > found.last or is_made_anew(inputs, verdicts, Address.of_stream(side.domain, side.stream)):
        return {}
    return {"range": found._asdict()}


def is_made_anew(inputs: Inputs, verdicts: Mapping[Address, Verdict], origin: Address) -> bool:
    """Whether the plan takes the stream away, or puts another one in its place."""
    verdict = verdicts.get(inputs.topology.real(origin))
    return verdict is not None and verdict.deletes


def _amount(inputs: Inputs, side: BackfillSide, found: Range | None) -> tuple[int, int] | None:
    """Messages and bytes between two sequences, as if all were of the same size; None where the bounds are times or nobody answers."""
    live = inputs.live.get(Address.of_stream(side.domain, side.stream)) if side.parquet is None else None
    return between(live, found.first, found.last) if live is not None and found is not None else None


def _bounds(inputs: Inputs, side: BackfillSide, live: LiveObject) -> tuple[int, int] | None:
    """First and last sequence, both included, as a run would pin them; None where a bound is a time and nobody said where that is."""
    end = int(live.state["last_seq"])
    first, last = side.start_seq or int(live.state["first_seq"]), min(side.end_seq or end, end)
    for time, place in ((side.start_time, "start"), (_after_end(side), "end")):
        if time is None:
            continue
        seq = inputs.places.get((live.address, time))
        if seq is None:
            return None
        first, last = (seq, last) if place == "start" else (first, seq - 1)
    return max(1, first), last


def _after_end(side: BackfillSide) -> str | None:
    """The time at which the first message is that is not meant any more: an end is included."""
    return instant_after(side.end_time) if side.end_time is not None else None


def places_of(inputs: Inputs) -> set[tuple[Address, str]]:
    """The times of which a plan wants to know where in their stream they are."""
    sides = [side for entry in open_entries(inputs) for side in entry.origins if side.parquet is None]
    times = [(side, time) for side in sides for time in (side.start_time, _after_end(side)) if time is not None]
    return {(Address.of_stream(side.domain, side.stream), time) for side, time in times}


def between(live: LiveObject, first: int, last: int) -> tuple[int, int]:
    """At most so many messages and about so many bytes a stream has between two sequences."""
    state = live.state
    first, last = max(first, int(state["first_seq"])), min(last, int(state["last_seq"]))
    messages = min(max(0, last - first + 1), int(state["messages"]))
    return messages, int(state["bytes"]) * messages // max(1, int(state["messages"]))
