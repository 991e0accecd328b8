"""Plan the open entries of `backfills:` with their ranges and sizes. Pure.

Ranges and sizes come from the stream states that a plan reads anyway. The run computes the exact
pending range: it reads the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import to_builtins
from msgspec.structs import asdict

from jsplan.address import Address, is_selected
from jsplan.diagnostics import Diagnostic
from jsplan.documents.reading import convert
from jsplan.documents.types import Deferred
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
    estimate_backfill,
    explain_obstacle,
)
from jsplan.topology.routes import is_import

if TYPE_CHECKING:
    from jsplan.config.model import Backfill, BackfillSide
    from jsplan.planning.model import PlanInputs, ResourceDecision
    from jsplan.state.document import State

IMPOSSIBLE_CODE: Final = "JS472"


def list_open_entries(inputs: PlanInputs) -> list[Backfill]:
    """List the targeted entries that are not done, in the order of the files."""
    request = inputs.options
    if request.destroy or request.refresh_only or request.imports:
        return []
    return [
        entry
        for entry in inputs.workspace.backfills.values()
        if is_selected(str(entry.target), request.targets, request.excludes)
        and not ((found := find_stored_state(inputs.state.backfills, entry)) and found.done_at)
    ]


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
    domains = inputs.live.domains
    return [
        Deferred(str(side), f"backfill {entry.name} waits: {domains[side.domain].offline_text}")
        for entry in list_open_entries(inputs)
        for side in _offline_sides(inputs, entry)
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
    if entry.target in offline:
        return []
    record = find_stored_state(inputs.state.backfills, entry) if offline else None
    states = record.origins if record is not None else ()
    done = {state.origin for state in states if state.status == "done"}
    return [side for side in entry.origins if side not in offline and str(side) not in done]


def _plan_entry(
    inputs: PlanInputs,
    decisions: Mapping[Address, ResourceDecision],
    entry: Backfill,
    sides: Sequence[BackfillSide],
) -> dict[str, Any]:
    choice = choose_entry_strategy(inputs, entry)
    record = find_stored_state(inputs.state.backfills, entry)
    matched = zip(entry.origins, match_origin_states(record, entry.origins), strict=True)
    planned = [_plan_side(inputs, decisions, *pair) for pair in matched if pair[0] in sides]
    known = [amount for _, amount in planned if amount is not None]
    messages = size = estimate = None
    if len(known) == len(planned):
        messages, size = (sum(column) for column in zip((0, 0), *known, strict=True))
        past = list_past_copies(inputs.state)
        estimate = asdict(estimate_backfill(entry, choice.strategy, messages, size, past))
    return {
        "name": entry.name,
        "from": [document for document, _ in planned],
        "to": side_to_document(entry.target),
        "entry_hash": hash_config(entry),
        "strategy": choice.strategy,
        "reason": choice.reason,
        "messages": messages,
        "bytes": size,
        "estimate": estimate,
    }


def list_past_copies(state: State) -> list[OriginState]:
    """List the origin states of all earlier copies, newest last."""
    records = [convert(raw, BackfillState) for raw in state.backfills.values()]
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
    return choose_strategy(entry, StrategyFacts(tuple(origins), target, inputs.now), record)


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
        choice = choose_entry_strategy(inputs, entry)
        if choice.obstacle and not _offline_sides(inputs, entry):
            text, hint = explain_obstacle(entry, choice)
            yield Diagnostic("error", IMPOSSIBLE_CODE, text, hint, str(entry.target), entry.range)


def side_to_document(side: BackfillSide) -> dict[str, Any]:
    """Convert one side to the form of the documents."""
    found = {key: value for key, value in to_builtins(side).items() if value not in (None, "", ())}
    if "filters" in found:
        found["filter_subjects"] = list(found.pop("filters"))
    return found


def _plan_side(
    inputs: PlanInputs,
    decisions: Mapping[Address, ResourceDecision],
    side: BackfillSide,
    states: Sequence[OriginState],
) -> tuple[dict[str, Any], tuple[int, int] | None]:
    """Return an origin with the range that an apply pins, and its messages and bytes, if known.

    The range is the pinned one, else that of now. It is left out if it is not known yet, if it has
    no message, or if the plan deletes or recreates the stream: its new sequences would be those of
    another stream.
    """
    document, address = side_to_document(side), Address.of_stream(side.domain, side.stream)
    live = inputs.live.get(address) if side.parquet is None else None
    span, created = None, ""
    if states and side.parquet is None:
        span, created = states[0].seq_range, states[0].created
    elif live is not None:
        known = inputs.measured.seqs_by_time
        seqs = {time: seq for (stream, time), seq in known.items() if stream == live.address}
        span, created = resolve_bounds(side, live.state, seqs), live.created
    if span is not None and span.size > 0 and not is_recreated(inputs, decisions, address):
        document["range"] = {"first": span.first, "last": span.last, "created": created}
    if span is None or live is None:
        return document, None
    return document, estimate_between(live.state, span.first, span.last)


def is_recreated(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision], origin: Address
) -> bool:
    """Check whether the plan deletes or recreates the stream."""
    decision = decisions.get(inputs.topology.canonicalize(origin))
    return decision is not None and decision.deletes


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
