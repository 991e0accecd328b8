"""The ranges of the backfills of a plan, stored in state before the first change.

A resumed apply copies exactly these ranges.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from jsplan.address import Address
from jsplan.errors import JsplanError, StalePlanError
from jsplan.planning.backfill.entries import side_to_document
from jsplan.planning.backfill.model import (
    BackfillState,
    OriginState,
    find_stored_state,
    hash_config,
    match_origin_states,
)

if TYPE_CHECKING:
    from jsplan.config.model import Backfill, BackfillSide
    from jsplan.context import Context
    from jsplan.documents.plan import Plan
    from jsplan.jetstream import Pool

PlannedBackfill = dict[str, Any]


class PlannedRanges(Struct):
    """The states that a plan changes. `new_origins` are the origins whose range it pins."""

    states: list[BackfillState] = field(default_factory=list)
    new_origins: list[OriginState] = field(default_factory=list)

    def write(self, world: Context) -> None:
        """Write them into the journal, in the session of the apply."""
        for record in self.states:
            world.backend.append(world.state, {"backfill": record.to_json()})


def collect_planned_ranges(world: Context, plan: Plan) -> PlannedRanges:
    """Collect the states that a plan changes.

    Raises StalePlanError if an entry has changed since it was planned.
    """
    ranges = PlannedRanges()
    for planned in plan.backfills:
        record, new = _pin_entry(world, plan, planned)
        if record.origins and record.to_json() != world.state.backfills.get(record.name):
            ranges.states.append(record)
            ranges.new_origins += new
    return ranges


# --- entries --------------------------------------------------------------------------------------


def _pin_entry(
    world: Context, plan: Plan, planned: PlannedBackfill
) -> tuple[BackfillState, list[OriginState]]:
    entry = world.workspace.backfills.get(planned["name"])
    if entry is None or planned["entry_hash"] != hash_config(entry):
        raise StalePlanError(
            f"backfill {planned['name']} was changed in the files after this plan was made. "
            "Nothing was changed",
            hint="Plan again.",
        )
    record = find_stored_state(world.state.backfills, entry) or BackfillState(
        entry.name, hash_config(entry), [], plan.timestamp, planned=True
    )
    origin_states = [
        origin_state or _build_planned_origin(entry, planned, side)
        for side, origin_state in zip(
            entry.origins, match_origin_states(record, entry.origins), strict=True
        )
    ]
    several = len({str(side) for side in entry.origins}) < len(entry.origins)
    if several and None in origin_states:
        return record, []  # the ranges of one stream cannot be distinguished
    new = [
        origin_state
        for origin_state in origin_states
        if origin_state is not None and origin_state not in record.origins
    ]
    if new:
        record.origins, record.planned, record.done_at = (
            [origin_state for origin_state in origin_states if origin_state is not None],
            True,
            "",
        )
    return record, new


def _build_planned_origin(
    entry: Backfill, planned: PlannedBackfill, side: BackfillSide
) -> OriginState | None:
    """Build the state of one origin from its planned range; None if the plan has no range."""
    document = side_to_document(side)
    span = next(
        (
            one.get("range")
            for one in planned["from"]
            if {key: one[key] for key in one if key != "range"} == document
        ),
        None,
    )
    if span is None:
        return None
    return OriginState(
        str(side),
        str(entry.target),
        span["created"],
        span["first"],
        span["last"],
        list(side.filters),
        "",
        0,
    )


# --- check ----------------------------------------------------------------------------------------


async def require_unchanged_origins(
    world: Context, pool: Pool, origin_states: Iterable[OriginState]
) -> None:
    """Raise StalePlanError if an origin was recreated after planning, before any change.

    An offline origin is checked by the copy.
    """
    every = list(origin_states)
    domains = world.workspace.domains
    wanted = {origin_state.origin: origin_state.origin_address for origin_state in every}
    await pool.open({domains[address.domain].connection for address in wanted.values()})
    created = dict(
        zip(
            wanted,
            await asyncio.gather(*(_fetch_created(world, pool, one) for one in wanted.values())),
            strict=True,
        )
    )
    stale = [
        origin_state.origin
        for origin_state in every
        if created[origin_state.origin] not in ("", origin_state.created)
    ]
    if stale:
        raise StalePlanError(
            f"{', '.join(dict.fromkeys(stale))} was recreated after this plan was made. "
            "Its sequences no longer match. Nothing was changed",
            hint="Plan again.",
        )


async def _fetch_created(world: Context, pool: Pool, origin: Address) -> str:
    """Read the creation time of a stream; empty if it is offline, `gone` if it does not exist."""
    try:
        info = await pool.api(world.workspace.domains[origin.domain]).stream_info(origin.stream)
    except JsplanError:
        return ""
    return str(info["created"]) if info is not None else "gone"
