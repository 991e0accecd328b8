"""The ranges of the backfills of a plan, stored in state before the first change.

A resumed apply copies exactly these ranges. Skipped history is stored too, so that it is not
planned again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jsplan.address import Address
from jsplan.backfill.model import (
    SKIPPED,
    BackfillState,
    OriginState,
    find_stored_state,
    hash_config,
    make_ad_hoc_entry,
    match_origin_states,
)
from jsplan.errors import JsplanError, StalePlanError
from jsplan.planning.backfills import side_to_document

if TYPE_CHECKING:
    from jsplan.config.model import Backfill, BackfillSide
    from jsplan.context import Context
    from jsplan.documents.plan import Plan
    from jsplan.jetstream import Pool

PlannedBackfill = dict[str, Any]


@dataclass(slots=True)
class PlannedRanges:
    """The states that a plan changes. `new_origins` are the origins whose range it pins."""

    states: list[BackfillState] = field(default_factory=list)
    new_origins: list[OriginState] = field(default_factory=list)

    def write(self, world: Context) -> None:
        """Write them into the journal, in the session of the apply."""
        for record in self.states:
            world.backend.append(world.state, {"backfill": record.to_json()})


def collect_planned_ranges(world: Context, plan: Plan, *, backfill: bool) -> PlannedRanges:
    """Collect the states that a plan changes. `backfill` False skips the history of sources.

    Raises StalePlanError if an entry has changed since it was planned.
    """
    ranges = PlannedRanges()
    for planned in plan.backfills:
        if planned.get("declared", True):
            record, new = _pin_entry(world, plan, planned)
        elif planned["runs"] or "waits" in planned or has_nothing_to_copy(planned):
            record, new = _pin_sources(world, plan, planned, "planned" if backfill else SKIPPED)
        else:
            continue
        if record.to_json() != world.state.backfills.get(record.name) and (
            record.origins or record.unmeasured or record.done_at
        ):
            ranges.states.append(record)
            ranges.new_origins += new
    return ranges


# --- entries --------------------------------------------------------------------------------------


def _pin_entry(
    world: Context, plan: Plan, planned: PlannedBackfill
) -> tuple[BackfillState, list[OriginState]]:
    entry = world.workspace.backfills.get(planned["name"])
    if entry is None or planned.get("entry_hash", hash_config(entry)) != hash_config(entry):
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


# --- sources --------------------------------------------------------------------------------------


def _pin_sources(
    world: Context, plan: Plan, planned: PlannedBackfill, status: str
) -> tuple[BackfillState, list[OriginState]]:
    origin = Address.of_stream(planned["from"][0]["domain"], planned["from"][0]["stream"])
    entry = make_ad_hoc_entry(
        origin, Address.of_stream(planned["to"]["domain"], planned["to"]["stream"])
    )
    record = find_stored_state(world.state.backfills, entry) or BackfillState(
        entry.name, hash_config(entry), [], plan.timestamp, planned=True
    )
    if has_nothing_to_copy(planned):
        return _drop_sources(
            record, {side["source"] for side in planned["from"]}, plan.timestamp
        ), []
    new = [
        origin_state
        for side in planned["from"]
        if (
            origin_state := _pin_source(
                record, side, str(entry.target), planned["to"].get("created", "")
            )
        )
        is not None
    ]
    if new:
        record.pinned_at = plan.timestamp
    keys = {side["source"] for side in planned["from"]}
    for origin_state in record.origins:
        origin_state.status = (
            status
            if origin_state.source in keys and origin_state.status != "done"
            else origin_state.status
        )
    for one in record.unmeasured:
        one["status"] = status if one["source"] in keys else one["status"]
    return record, new


def has_nothing_to_copy(planned: PlannedBackfill) -> bool:
    """Check whether the plan found that a source skips no history."""
    return not planned.get("declared", True) and not planned["runs"] and planned["messages"] == 0


def _drop_sources(record: BackfillState, keys: set[str], now: str) -> BackfillState:
    """Drop sources that need no check any more."""
    record.unmeasured = [one for one in record.unmeasured if one["source"] not in keys]
    if not record.unmeasured and all(
        origin_state.status == "done" for origin_state in record.origins
    ):
        record.planned, record.done_at = False, record.done_at or now
    return record


def _pin_source(
    record: BackfillState, side: PlannedBackfill, target: str, target_created: str
) -> OriginState | None:
    """Store the skipped history of one source in the state, instead of its earlier range.

    Returns the origin state if it is new.
    """
    key, span, filters = side["source"], side.get("range"), list(side.get("filter_subjects", ()))
    record.unmeasured = [one for one in record.unmeasured if one["source"] != key]
    if span is None:
        end = {name: side[name] for name in ("end_seq", "before") if name in side}
        record.origins = [
            origin_state
            for origin_state in record.origins
            if origin_state.source != key or origin_state.status == "done"
        ]
        record.unmeasured.append({"source": key, "filters": filters, "status": "planned"} | end)
        record.planned, record.done_at = True, ""
        return None
    if any(
        origin_state.source == key
        and {
            "first": origin_state.first,
            "last": origin_state.last,
            "created": origin_state.created,
        }
        == span
        for origin_state in record.origins
    ):
        return None
    added = OriginState(
        _origin_address(side),
        target,
        span["created"],
        span["first"],
        span["last"],
        filters,
        "",
        0,
        source=key,
    )
    same = [
        origin_state
        for origin_state in record.origins
        if origin_state.created == added.created
        and origin_state.target_created in ("", target_created)
    ]
    record.origins = [
        *(
            origin_state
            for origin_state in same
            if origin_state.source != key or origin_state.status == "done"
        ),
        added,
    ]
    record.planned, record.done_at = True, ""
    return added


def _origin_address(side: PlannedBackfill) -> str:
    return str(Address.of_stream(side["domain"], side["stream"]))


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
