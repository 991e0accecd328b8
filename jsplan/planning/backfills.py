"""Which entries of `backfills:` are still to be done, which range each means, and how much that is, as far as the states of their streams
say. Pure.

What exactly is missing is found when the copy runs: it looks through the target. Here nothing is read but what a plan reads anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jsplan.address import Address, matches
from jsplan.backfill.estimate import estimate_backfill
from jsplan.backfill.model import (
    BackfillState,
    OriginState,
    find_stored_state,
    hash_config,
    match_origin_states,
)
from jsplan.backfill.strategy import (
    NATIVE_REASON,
    SNAPSHOT_REASON,
    TAGGED_REASON,
    StrategyChoice,
    StreamTraits,
    build_strategy_facts,
    choose_strategy,
    complete_reason,
    explain_obstacle,
    find_read_obstacle,
)
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import Deferred
from jsplan.topology.routes import is_import
from jsplan.units import next_instant

if TYPE_CHECKING:
    from jsplan.config.model import Backfill, BackfillSide
    from jsplan.facts.live import LiveObject
    from jsplan.planning.decide import ResourceDecision
    from jsplan.planning.model import PlanInputs
    from jsplan.state.document import State

IMPOSSIBLE_CODE: Final = "JS472"
#: Why what was begun is gone on with.
RESUMED_CHOICES: Final = {
    "native": StrategyChoice("native", f"{NATIVE_REASON}; begun so"),
    "snapshot": StrategyChoice("snapshot", f"{SNAPSHOT_REASON}; begun so"),
}


class PlannedRange(NamedTuple):
    """Sequences `first` to `last`, both included, of the stream that was `created` then."""

    first: int
    last: int
    created: str


def list_open_entries(inputs: PlanInputs) -> list[Backfill]:
    """Entries that are not done, in the order of the files, of those that the plan is about."""
    request = inputs.request
    if request.destroy or request.refresh_only or request.imports:
        return []
    return [
        entry
        for entry in inputs.workspace.backfills.values()
        if _is_targeted(inputs, entry) and not _is_done(inputs, entry)
    ]


def _is_targeted(inputs: PlanInputs, entry: Backfill) -> bool:
    target = str(entry.target)
    wanted, without = inputs.request.targets, inputs.request.excludes
    return (not wanted or _matches_any(wanted, target)) and not _matches_any(without, target)


def _matches_any(globs: Iterable[str], address: str) -> bool:
    return any(matches(glob, address) for glob in globs)


def _is_done(inputs: PlanInputs, entry: Backfill) -> bool:
    record = find_stored_state(inputs.state.backfills, entry)
    return record is not None and bool(record.done_at)


def list_streams(inputs: PlanInputs) -> set[Address]:
    """The streams at both ends of what is to be done."""
    sides = [side for entry in list_open_entries(inputs) for side in (*entry.origins, entry.target)]
    return {Address.of_stream(side.domain, side.stream) for side in sides if side.parquet is None}


def plan_backfills(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> list[dict[str, Any]]:
    """The elements of the plan's `backfills`. Messages and bytes are the most that there may be; null where nobody can tell."""
    return [
        _plan_entry(inputs, verdicts, entry, sides)
        for entry in list_open_entries(inputs)
        if (sides := _copyable_sides(inputs, entry))
    ]


def defer_backfills(inputs: PlanInputs) -> list[Deferred]:
    """The ends in domains that are away of what is to be done: it waits for its target, and each of several origins for itself."""
    waiting = (
        (entry, side)
        for entry in list_open_entries(inputs)
        for side in _offline_sides(inputs, entry)
    )
    return [
        Deferred(
            str(side),
            f"backfill {entry.name} waits: {inputs.live.domains[side.domain].offline_text}",
        )
        for entry, side in waiting
    ]


def _offline_sides(inputs: PlanInputs, entry: Backfill) -> list[BackfillSide]:
    return [
        side
        for side in (*entry.origins, entry.target)
        if side.parquet is None and not inputs.live.is_reachable(side.domain)
    ]


def _copyable_sides(inputs: PlanInputs, entry: Backfill) -> list[BackfillSide]:
    """The origins that can be copied now: all of them, or of several those that can be reached and are not done."""
    away = _offline_sides(inputs, entry)
    if not away:
        return list(entry.origins)
    if entry.target in away:
        return []
    record = find_stored_state(inputs.state.backfills, entry)
    done = (
        {leg.origin for leg in record.origins if leg.status == "done"}
        if record is not None
        else set()
    )
    return [side for side in entry.origins if side not in away and str(side) not in done]


def _plan_entry(
    inputs: PlanInputs,
    verdicts: Mapping[Address, ResourceDecision],
    entry: Backfill,
    sides: Sequence[BackfillSide],
) -> dict[str, Any]:
    record, choice = (
        find_stored_state(inputs.state.backfills, entry),
        complete_reason(entry, choose_entry_strategy(inputs, entry)),
    )
    legs = match_origin_states(record, entry.origins)
    of_sides = [
        _find_range(inputs, side, leg)
        for side, leg in zip(entry.origins, legs, strict=True)
        if side in sides
    ]
    amounts = [
        _estimate_amount(inputs, side, found) for side, found in zip(sides, of_sides, strict=True)
    ]
    known = [amount for amount in amounts if amount is not None]
    messages, size = (
        (sum(one) for one in zip((0, 0), *known, strict=True))
        if len(known) == len(amounts)
        else (None, None)
    )
    ends = [
        side_to_document(side) | _range_to_document(inputs, verdicts, side, found)
        for side, found in zip(sides, of_sides, strict=True)
    ]
    return {
        "name": entry.name,
        "from": ends,
        "to": side_to_document(entry.target),
        "entry_hash": hash_config(entry),
        "strategy": choice.strategy,
        "reason": choice.reason,
        "messages": messages,
        "bytes": size,
        "estimate": _estimate_entry(inputs, entry, choice, messages, size),
    }


def _estimate_entry(
    inputs: PlanInputs,
    entry: Backfill,
    choice: StrategyChoice,
    messages: int | None,
    size: int | None,
) -> dict[str, Any] | None:
    if messages is None or size is None:
        return None
    now = inputs.request.now.timestamp()
    return estimate_backfill(
        entry, choice.strategy, messages, size, list_past_copies(inputs.state), now
    ).to_json()


def list_past_copies(state: State) -> list[OriginState]:
    """What was copied before, the newest last."""
    records = [BackfillState.from_json(raw) for raw in state.backfills.values()]
    return [
        leg for record in sorted(records, key=lambda one: one.pinned_at) for leg in record.origins
    ]


def choose_entry_strategy(inputs: PlanInputs, entry: Backfill) -> StrategyChoice:
    """What copies an entry: what began it goes on with it."""
    record = find_stored_state(inputs.state.backfills, entry)
    if record is not None and not record.planned:
        return (
            RESUMED_CHOICES.get(record.origins[0].strategy, StrategyChoice("spark", TAGGED_REASON))
            if record.origins
            else StrategyChoice("spark", TAGGED_REASON)
        )
    origins = [_build_traits(inputs, side) for side in entry.origins if side.parquet is None]
    target = _build_traits(inputs, entry.target) if entry.target.parquet is None else StreamTraits()
    there = [origin for origin in origins if origin.exists]
    choice = choose_strategy(
        build_strategy_facts(inputs.topology, entry, there, target, inputs.request.now)
    )
    declared = (
        next(filter(None, (find_read_obstacle(origin.config) for origin in origins)), "")
        if choice.strategy == "spark"
        else ""
    )
    return replace(choice, obstacle=choice.obstacle or declared)


def _build_traits(inputs: PlanInputs, side: BackfillSide) -> StreamTraits:
    address = Address.of_stream(side.domain, side.stream)
    live, level = inputs.live.get(address), inputs.level(address)
    imported = is_import(inputs.workspace.domains[side.domain])
    if live is not None:
        return StreamTraits(live.raw, live.state, level, imported=imported)
    declared = inputs.body(address) if address in inputs.workspace.resources else {}
    return StreamTraits(declared, {}, level, exists=False, imported=imported)


def diagnose_impossible(inputs: PlanInputs) -> Iterable[Diagnostic]:
    """Entries that ask for a tool that cannot do it."""
    for entry in list_open_entries(inputs):
        if (
            not _offline_sides(inputs, entry)
            and (choice := choose_entry_strategy(inputs, entry)).obstacle
        ):
            yield Diagnostic(
                "error",
                IMPOSSIBLE_CODE,
                *explain_obstacle(entry, choice),
                str(entry.target),
                entry.range,
            )


def side_to_document(side: BackfillSide) -> dict[str, Any]:
    """One side, as documents have it."""
    if side.parquet is not None:
        return {"parquet": side.parquet}
    said = {
        "start_seq": side.start_seq,
        "end_seq": side.end_seq,
        "start_time": side.start_time,
        "end_time": side.end_time,
        "filter_subjects": list(side.filters) or None,
    }
    return {"domain": side.domain, "stream": side.stream} | {
        key: value for key, value in said.items() if value is not None
    }


def _find_range(
    inputs: PlanInputs, side: BackfillSide, leg: OriginState | None
) -> PlannedRange | None:
    """What of an origin is meant: what was pinned, else from and to where its bounds are now; None where nobody can tell yet."""
    if leg is not None:
        return PlannedRange(leg.first, leg.last, leg.created)
    live = (
        inputs.live.get(Address.of_stream(side.domain, side.stream))
        if side.parquet is None
        else None
    )
    bounds = _resolve_bounds(inputs, side, live) if live is not None else None
    return PlannedRange(*bounds, live.created) if live is not None and bounds is not None else None


def _range_to_document(
    inputs: PlanInputs,
    verdicts: Mapping[Address, ResourceDecision],
    side: BackfillSide,
    found: PlannedRange | None,
) -> dict[str, Any]:
    """The range that an apply of the plan keeps. One without a message is not worth it, and one of a stream that the plan makes anew
    would be of another stream.
    """
    if (
        found is None
        or found.first > found.last
        or is_recreated(inputs, verdicts, Address.of_stream(side.domain, side.stream))
    ):
        return {}
    return {"range": found._asdict()}


def is_recreated(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision], origin: Address
) -> bool:
    """Whether the plan takes the stream away, or puts another one in its place."""
    verdict = verdicts.get(inputs.topology.canonicalize(origin))
    return verdict is not None and verdict.deletes


def _estimate_amount(
    inputs: PlanInputs, side: BackfillSide, found: PlannedRange | None
) -> tuple[int, int] | None:
    """Messages and bytes between two sequences, as if all were of the same size; None where the bounds are times or nobody answers."""
    live = (
        inputs.live.get(Address.of_stream(side.domain, side.stream))
        if side.parquet is None
        else None
    )
    return (
        estimate_between(live, found.first, found.last)
        if live is not None and found is not None
        else None
    )


def _resolve_bounds(
    inputs: PlanInputs, side: BackfillSide, live: LiveObject
) -> tuple[int, int] | None:
    """First and last sequence, both included, as a run would pin them; None where a bound is a time and nobody said where that is."""
    end = int(live.state["last_seq"])
    first, last = side.start_seq or int(live.state["first_seq"]), min(side.end_seq or end, end)
    for time, place in ((side.start_time, "start"), (_exclusive_end_time(side), "end")):
        if time is None:
            continue
        seq = inputs.seqs_by_time.get((live.address, time))
        if seq is None:
            return None
        first, last = (seq, last) if place == "start" else (first, seq - 1)
    return max(1, first), last


def _exclusive_end_time(side: BackfillSide) -> str | None:
    """The time at which the first message is that is not meant any more: an end is included."""
    return next_instant(side.end_time) if side.end_time is not None else None


def list_time_lookups(inputs: PlanInputs) -> set[tuple[Address, str]]:
    """The times of which a plan wants to know where in their stream they are."""
    sides = [
        side
        for entry in list_open_entries(inputs)
        for side in entry.origins
        if side.parquet is None
    ]
    times = [
        (side, time)
        for side in sides
        for time in (side.start_time, _exclusive_end_time(side))
        if time is not None
    ]
    return {(Address.of_stream(side.domain, side.stream), time) for side, time in times}


def estimate_between(live: LiveObject, first: int, last: int) -> tuple[int, int]:
    """At most so many messages and about so many bytes a stream has between two sequences."""
    state = live.state
    first, last = max(first, int(state["first_seq"])), min(last, int(state["last_seq"]))
    messages = min(max(0, last - first + 1), int(state["messages"]))
    return messages, int(state["bytes"]) * messages // max(1, int(state["messages"]))
