"""Plan the open entries of `backfills:` with their ranges and sizes. Pure.

Ranges and sizes come from the stream states that a plan reads anyway. The run computes the exact
pending range: it reads the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import asdict, replace

from jsplan.address import Address, is_selected
from jsplan.diagnostics import Diagnostic
from jsplan.documents.parts import Deferred
from jsplan.planning.backfill.estimate import estimate_backfill
from jsplan.planning.backfill.model import (
    BackfillState,
    OriginState,
    find_stored_state,
    hash_config,
    list_bound_times,
    match_origin_states,
    resolve_bounds,
)
from jsplan.planning.backfill.strategy import (
    StrategyChoice,
    StrategyFacts,
    StreamTraits,
    choose_strategy,
    explain_obstacle,
    find_read_obstacle,
)
from jsplan.topology.routes import is_import

if TYPE_CHECKING:
    from jsplan.config.model import Backfill, BackfillSide
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import PlanInputs, ResourceDecision
    from jsplan.state.document import State

IMPOSSIBLE_CODE: Final = "JS472"


class PlannedRange(NamedTuple):
    """Sequences `first` to `last`, both included, of the stream with this creation time."""

    first: int
    last: int
    created: str


def list_open_entries(inputs: PlanInputs) -> list[Backfill]:
    """List the targeted entries that are not done, in the order of the files."""
    request = inputs.options
    if request.destroy or request.refresh_only or request.imports:
        return []
    return [
        entry
        for entry in inputs.workspace.backfills.values()
        if _is_targeted(inputs, entry) and not _is_done(inputs, entry)
    ]


def _is_targeted(inputs: PlanInputs, entry: Backfill) -> bool:
    return is_selected(str(entry.target), inputs.options.targets, inputs.options.excludes)


def _is_done(inputs: PlanInputs, entry: Backfill) -> bool:
    record = find_stored_state(inputs.state.backfills, entry)
    return record is not None and bool(record.done_at)


def list_streams(inputs: PlanInputs) -> set[Address]:
    """Collect the origins and targets of all open entries."""
    sides = [side for entry in list_open_entries(inputs) for side in (*entry.origins, entry.target)]
    return {Address.of_stream(side.domain, side.stream) for side in sides if side.parquet is None}


def plan_backfills(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> list[dict[str, Any]]:
    """Build the plan's `backfills`. `messages` and `bytes` are upper bounds, null if unknown."""
    return [
        _plan_entry(inputs, decisions, entry, sides)
        for entry in list_open_entries(inputs)
        if (sides := _copyable_sides(inputs, entry))
    ]


def defer_backfills(inputs: PlanInputs) -> list[Deferred]:
    """List the offline sides of open entries. An offline target defers the whole entry."""
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
    """List the origins to copy now. With an offline side: those that are reachable and not done."""
    offline = _offline_sides(inputs, entry)
    if not offline:
        return list(entry.origins)
    if entry.target in offline:
        return []
    record = find_stored_state(inputs.state.backfills, entry)
    done = (
        {state.origin for state in record.origins if state.status == "done"}
        if record is not None
        else set()
    )
    return [side for side in entry.origins if side not in offline and str(side) not in done]


def _plan_entry(
    inputs: PlanInputs,
    decisions: Mapping[Address, ResourceDecision],
    entry: Backfill,
    sides: Sequence[BackfillSide],
) -> dict[str, Any]:
    record, choice = (
        find_stored_state(inputs.state.backfills, entry),
        choose_entry_strategy(inputs, entry),
    )
    matched = zip(entry.origins, match_origin_states(record, entry.origins), strict=True)
    ranges = [_find_range(inputs, side, states) for side, states in matched if side in sides]
    amounts = [
        _estimate_amount(inputs, side, planned) for side, planned in zip(sides, ranges, strict=True)
    ]
    known = [amount for amount in amounts if amount is not None]
    messages, size = (
        (sum(column) for column in zip((0, 0), *known, strict=True))
        if len(known) == len(amounts)
        else (None, None)
    )
    origins = [
        side_to_document(side) | _range_to_document(inputs, decisions, side, planned)
        for side, planned in zip(sides, ranges, strict=True)
    ]
    return {
        "name": entry.name,
        "from": origins,
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
    past = list_past_copies(inputs.state)
    return asdict(estimate_backfill(entry, choice.strategy, messages, size, past))


def list_past_copies(state: State) -> list[OriginState]:
    """List the origin states of all earlier copies, newest last."""
    records = [BackfillState.from_json(raw) for raw in state.backfills.values()]
    return [
        state
        for record in sorted(records, key=lambda record: record.pinned_at)
        for state in record.origins
    ]


def choose_entry_strategy(inputs: PlanInputs, entry: Backfill) -> StrategyChoice:
    """Choose the strategy of an entry. A begun copy keeps its strategy."""
    record = find_stored_state(inputs.state.backfills, entry)
    origins = [_build_traits(inputs, side) for side in entry.origins if side.parquet is None]
    target = _build_traits(inputs, entry.target) if entry.target.parquet is None else StreamTraits()
    existing = tuple(origin for origin in origins if origin.exists)
    choice = choose_strategy(entry, StrategyFacts(existing, target, inputs.now), record)
    is_new = record is None or record.planned
    declared = (
        next(filter(None, (find_read_obstacle(origin.config) for origin in origins)), "")
        if choice.strategy == "spark" and is_new
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
    """Yield an error for each entry whose strategy cannot copy it."""
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
    """Convert one side to the form of the documents."""
    if side.parquet is not None:
        return {"parquet": side.parquet}
    bounds = {
        "start_seq": side.start_seq,
        "end_seq": side.end_seq,
        "start_time": side.start_time,
        "end_time": side.end_time,
        "filter_subjects": list(side.filters) or None,
    }
    return {"domain": side.domain, "stream": side.stream} | {
        key: value for key, value in bounds.items() if value is not None
    }


def _find_live(inputs: PlanInputs, side: BackfillSide) -> LiveObject | None:
    address = Address.of_stream(side.domain, side.stream)
    return inputs.live.get(address) if side.parquet is None else None


def _find_range(
    inputs: PlanInputs, side: BackfillSide, states: Sequence[OriginState]
) -> PlannedRange | None:
    """Return the pinned range of an origin, else its bounds now; None if they are not known yet."""
    if states and side.parquet is None:
        return PlannedRange(states[0].first, states[0].last, states[0].created)
    if (live := _find_live(inputs, side)) is None:
        return None
    known = inputs.measured.seqs_by_time
    seqs = {time: seq for (address, time), seq in known.items() if address == live.address}
    bounds = resolve_bounds(side, live.state, seqs)
    return PlannedRange(*bounds, live.created) if bounds is not None else None


def _range_to_document(
    inputs: PlanInputs,
    decisions: Mapping[Address, ResourceDecision],
    side: BackfillSide,
    planned: PlannedRange | None,
) -> dict[str, Any]:
    """Build the range that an apply pins.

    Empty if the range has no message, or if the plan deletes or recreates the stream: its new
    sequences would be those of another stream.
    """
    if (
        planned is None
        or planned.first > planned.last
        or is_recreated(inputs, decisions, Address.of_stream(side.domain, side.stream))
    ):
        return {}
    return {"range": planned._asdict()}


def is_recreated(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision], origin: Address
) -> bool:
    """Check whether the plan deletes or recreates the stream."""
    decision = decisions.get(inputs.topology.canonicalize(origin))
    return decision is not None and decision.deletes


def _estimate_amount(
    inputs: PlanInputs, side: BackfillSide, planned: PlannedRange | None
) -> tuple[int, int] | None:
    """Estimate the messages and bytes of a range by the mean message size; None if unknown."""
    live = _find_live(inputs, side)
    return (
        estimate_between(live.state, planned.first, planned.last)
        if live is not None and planned is not None
        else None
    )


def list_time_lookups(inputs: PlanInputs) -> set[tuple[Address, str]]:
    """Collect each stream and time whose sequence planning needs."""
    return {
        (Address.of_stream(side.domain, side.stream), time)
        for entry in list_open_entries(inputs)
        for side in entry.origins
        if side.parquet is None
        for time in list_bound_times(side)
    }


def estimate_between(state: Mapping[str, Any], first: int, last: int) -> tuple[int, int]:
    """Return at most how many messages of a stream, and how many bytes, two sequences enclose."""
    first, last = max(first, int(state["first_seq"])), min(last, int(state["last_seq"]))
    messages = min(max(0, last - first + 1), int(state["messages"]))
    return messages, int(state["bytes"]) * messages // max(1, int(state["messages"]))
