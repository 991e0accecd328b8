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
    match_origin_states,
)
from jsplan.planning.backfill.strategy import (
    SNAPSHOT_REASON,
    TAGGED_REASON,
    StrategyChoice,
    StrategyFacts,
    StreamTraits,
    choose_strategy,
    explain_obstacle,
    find_read_obstacle,
)
from jsplan.topology.routes import is_import
from jsplan.units import format_instant, parse_instant

if TYPE_CHECKING:
    from jsplan.config.model import Backfill, BackfillSide
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import PlanInputs, ResourceDecision
    from jsplan.state.document import State

IMPOSSIBLE_CODE: Final = "JS472"
#: The choice for a copy that was begun: it resumes with the same strategy.
RESUMED_CHOICES: Final = {
    "snapshot": StrategyChoice("snapshot", f"{SNAPSHOT_REASON}; begun so"),
}


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
    states = match_origin_states(record, entry.origins)
    ranges = [
        _find_range(inputs, side, state)
        for side, state in zip(entry.origins, states, strict=True)
        if side in sides
    ]
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
    if record is not None and not record.planned:
        return (
            RESUMED_CHOICES.get(record.origins[0].strategy, StrategyChoice("spark", TAGGED_REASON))
            if record.origins
            else StrategyChoice("spark", TAGGED_REASON)
        )
    origins = [_build_traits(inputs, side) for side in entry.origins if side.parquet is None]
    target = _build_traits(inputs, entry.target) if entry.target.parquet is None else StreamTraits()
    existing = [origin for origin in origins if origin.exists]
    choice = choose_strategy(StrategyFacts(entry, tuple(existing), target, inputs.now))
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


def _find_range(
    inputs: PlanInputs, side: BackfillSide, state: OriginState | None
) -> PlannedRange | None:
    """Return the pinned range of an origin, else its bounds now; None if they are not known yet."""
    if state is not None:
        return PlannedRange(state.first, state.last, state.created)
    live = (
        inputs.live.get(Address.of_stream(side.domain, side.stream))
        if side.parquet is None
        else None
    )
    bounds = _resolve_bounds(inputs, side, live) if live is not None else None
    return PlannedRange(*bounds, live.created) if live is not None and bounds is not None else None


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
    live = (
        inputs.live.get(Address.of_stream(side.domain, side.stream))
        if side.parquet is None
        else None
    )
    return (
        estimate_between(live, planned.first, planned.last)
        if live is not None and planned is not None
        else None
    )


def _resolve_bounds(
    inputs: PlanInputs, side: BackfillSide, live: LiveObject
) -> tuple[int, int] | None:
    """Return the first and last sequence (inclusive) that a run would pin.

    None if a bound is a time whose sequence is not in `inputs.measured.seqs_by_time`.
    """
    end = int(live.state["last_seq"])
    first, last = side.start_seq or int(live.state["first_seq"]), min(side.end_seq or end, end)
    for time, place in ((side.start_time, "start"), (_exclusive_end_time(side), "end")):
        if time is None:
            continue
        seq = inputs.measured.seqs_by_time.get((live.address, time))
        if seq is None:
            return None
        first, last = (seq, last) if place == "start" else (first, seq - 1)
    return max(1, first), last


def _exclusive_end_time(side: BackfillSide) -> str | None:
    """Return the instant after the end of the range: `end_time` itself is included."""
    return format_instant(parse_instant(side.end_time) + 1) if side.end_time is not None else None


def list_time_lookups(inputs: PlanInputs) -> set[tuple[Address, str]]:
    """Collect each stream and time whose sequence planning needs."""
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
    """Return at most how many messages, and about how many bytes, two sequences enclose."""
    state = live.state
    first, last = max(first, int(state["first_seq"])), min(last, int(state["last_seq"]))
    messages = min(max(0, last - first + 1), int(state["messages"]))
    return messages, int(state["bytes"]) * messages // max(1, int(state["messages"]))
