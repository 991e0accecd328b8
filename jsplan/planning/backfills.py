"""Which entries of `backfills:` are still to be done, and how much that is, as far as the states of their streams say. Pure.

What exactly is missing is found when the copy runs: it looks through the target. Here nothing is read but what a plan reads anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from jsplan.address import Address, matches
from jsplan.backfill.records import kept
from jsplan.documents.plan import Deferred

if TYPE_CHECKING:
    from jsplan.backfill.records import Record
    from jsplan.config.model import Backfill, BackfillSide
    from jsplan.facts.live import LiveObject
    from jsplan.planning.inputs import Inputs

#: Why Spark: nothing else keeps where each message comes from.
REASON: Final = "copied by Spark, so that each message says where it comes from"


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


def planned_backfills(inputs: Inputs) -> list[dict[str, Any]]:
    """The elements of the plan's `backfills`. Messages and bytes are the most that there may be; null where nobody can tell."""
    return [_planned(inputs, entry) for entry in open_entries(inputs) if not _away(inputs, entry)]


def deferred_backfills(inputs: Inputs) -> list[Deferred]:
    """The ends in domains that are away of what is to be done: it waits for all of them."""
    waiting = ((entry, side) for entry in open_entries(inputs) for side in _away(inputs, entry))
    return [Deferred(str(side), f"backfill {entry.name} waits: {inputs.live.domains[side.domain].absence}") for entry, side in waiting]


def _away(inputs: Inputs, entry: Backfill) -> list[BackfillSide]:
    return [side for side in (*entry.origins, entry.target) if side.parquet is None and not inputs.live.reachable(side.domain)]


def _planned(inputs: Inputs, entry: Backfill) -> dict[str, Any]:
    record = kept(inputs.state.backfills, entry)
    amounts = [_amount(inputs, side, record) for side in entry.origins]
    known = [amount for amount in amounts if amount is not None]
    whole = len(known) == len(amounts)
    return {
        "name": entry.name, "from": [_end(side) for side in entry.origins], "to": _end(entry.target), "strategy": "spark", "reason": REASON,
        "messages": sum(messages for messages, _ in known) if whole else None, "bytes": sum(size for _, size in known) if whole else None,
    }  # fmt: skip


def _end(side: BackfillSide) -> dict[str, Any]:
    if side.parquet is not None:
        return {"parquet": side.parquet}
    said = {
        "start_seq": side.start_seq, "end_seq": side.end_seq, "start_time": side.start_time, "end_time": side.end_time,
        "filter_subjects": list(side.filters) or None,
    }  # fmt: skip
    return {"domain": side.domain, "stream": side.stream} | {key: value for key, value in said.items() if value is not None}


def _amount(inputs: Inputs, side: BackfillSide, record: Record | None) -> tuple[int, int] | None:
    """Messages and bytes between two sequences, as if all were of the same size; None where the bounds are times or nobody answers."""
    live = inputs.live.get(Address.of_stream(side.domain, side.stream)) if side.parquet is None else None
    if live is None:
        return None
    legs = {leg.origin: leg for leg in record.legs} if record is not None else {}
    if (leg := legs.get(str(side))) is not None:
        first, last = leg.first, leg.last
    elif side.start_time is not None or side.end_time is not None:
        return None
    else:
        first, last = side.start_seq or 1, side.end_seq or int(live.state["last_seq"])
    return _between(live, first, last)


def _between(live: LiveObject, first: int, last: int) -> tuple[int, int]:
    state = live.state
    first, last = max(first, int(state["first_seq"])), min(last, int(state["last_seq"]))
    messages = min(max(0, last - first + 1), int(state["messages"]))
    return messages, int(state["bytes"]) * messages // max(1, int(state["messages"]))
