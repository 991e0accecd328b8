"""What state is to keep of the backfills of a plan: the range that was planned of each, before anything is changed, so that who comes
after a death copies just that. What is declined is kept too: nobody is asked about it again.
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
    """The records that a plan changes. `new_origins` are the legs among them whose range it pins."""

    states: list[BackfillState] = field(default_factory=list)
    new_origins: list[OriginState] = field(default_factory=list)

    def write(self, world: Context) -> None:
        """Into the journal, in the session that carries out the plan."""
        for record in self.states:
            world.backend.append(world.state, {"backfill": record.to_json()})


def collect_planned_ranges(world: Context, plan: Plan, *, backfill: bool) -> PlannedRanges:
    """What is to be kept of a plan. `backfill` False: what sources leave out is declined.

    Raises StalePlanError where an entry says something else since it was planned.
    """
    found = PlannedRanges()
    for job in plan.backfills:
        if job.get("declared", True):
            record, new = _pin_entry(world, plan, job)
        elif job["runs"] or "waits" in job or has_nothing_to_copy(job):
            record, new = _pin_sources(world, plan, job, "planned" if backfill else SKIPPED)
        else:
            continue
        if record.to_json() != world.state.backfills.get(record.name) and (
            record.origins or record.unmeasured or record.done_at
        ):
            found.states.append(record)
            found.new_origins += new
    return found


# --- of an entry ------------------------------------------------------------------------------------------------------


def _pin_entry(
    world: Context, plan: Plan, job: PlannedBackfill
) -> tuple[BackfillState, list[OriginState]]:
    entry = world.workspace.backfills.get(job["name"])
    if entry is None or job.get("entry_hash", hash_config(entry)) != hash_config(entry):
        raise StalePlanError(
            f"backfill {job['name']} is another one in the files than when it was planned. Nothing was changed",
            hint="Plan again.",
        )
    record = find_stored_state(world.state.backfills, entry) or BackfillState(
        entry.name, hash_config(entry), [], plan.timestamp, planned=True
    )
    legs = [
        leg or _build_planned_origin(entry, job, side)
        for side, leg in zip(entry.origins, match_origin_states(record, entry.origins), strict=True)
    ]
    several = len({str(side) for side in entry.origins}) < len(entry.origins)
    if several and None in legs:
        return record, []  # which leg is which could not be told
    new = [leg for leg in legs if leg is not None and leg not in record.origins]
    if new:
        record.origins, record.planned, record.done_at = (
            [leg for leg in legs if leg is not None],
            True,
            "",
        )
    return record, new


def _build_planned_origin(
    entry: Backfill, job: PlannedBackfill, side: BackfillSide
) -> OriginState | None:
    """The leg of one origin with the range that was planned; None where the plan did not know it."""
    said = side_to_document(side)
    span = next(
        (
            one.get("range")
            for one in job["from"]
            if {key: one[key] for key in one if key != "range"} == said
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


# --- of sources -------------------------------------------------------------------------------------------------------


def _pin_sources(
    world: Context, plan: Plan, job: PlannedBackfill, status: str
) -> tuple[BackfillState, list[OriginState]]:
    origin = Address.of_stream(job["from"][0]["domain"], job["from"][0]["stream"])
    entry = make_ad_hoc_entry(origin, Address.of_stream(job["to"]["domain"], job["to"]["stream"]))
    record = find_stored_state(world.state.backfills, entry) or BackfillState(
        entry.name, hash_config(entry), [], plan.timestamp, planned=True
    )
    if has_nothing_to_copy(job):
        return _drop_sources(record, {side["source"] for side in job["from"]}, plan.timestamp), []
    new = [
        leg
        for side in job["from"]
        if (leg := _pin_source(record, side, str(entry.target), job["to"].get("created", "")))
        is not None
    ]
    if new:
        record.pinned_at = plan.timestamp
    keys = {side["source"] for side in job["from"]}
    for leg in record.origins:
        leg.status = status if leg.source in keys and leg.status != "done" else leg.status
    for one in record.unmeasured:
        one["status"] = status if one["source"] in keys else one["status"]
    return record, new


def has_nothing_to_copy(job: PlannedBackfill) -> bool:
    """Whether an element says that somebody has looked, and nothing is left out."""
    return not job.get("declared", True) and not job["runs"] and job["messages"] == 0


def _drop_sources(record: BackfillState, keys: set[str], now: str) -> BackfillState:
    """Nobody has to look at these sources any more."""
    record.unmeasured = [one for one in record.unmeasured if one["source"] not in keys]
    if not record.unmeasured and all(leg.status == "done" for leg in record.origins):
        record.planned, record.done_at = False, record.done_at or now
    return record


def _pin_source(
    record: BackfillState, side: PlannedBackfill, target: str, target_created: str
) -> OriginState | None:
    """Put what one source leaves out into the record, in the place of what was kept of it; the leg, where it is a new one."""
    key, span, filters = side["source"], side.get("range"), list(side.get("filter_subjects", ()))
    record.unmeasured = [one for one in record.unmeasured if one["source"] != key]
    if span is None:
        end = {name: side[name] for name in ("end_seq", "before") if name in side}
        record.origins = [
            leg for leg in record.origins if leg.source != key or leg.status == "done"
        ]
        record.unmeasured.append({"source": key, "filters": filters, "status": "planned"} | end)
        record.planned, record.done_at = True, ""
        return None
    if any(
        leg.source == key and {"first": leg.first, "last": leg.last, "created": leg.created} == span
        for leg in record.origins
    ):
        return None
    made = OriginState(
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
        leg
        for leg in record.origins
        if leg.created == made.created and leg.target_created in ("", target_created)
    ]
    record.origins = [*(leg for leg in same if leg.source != key or leg.status == "done"), made]
    record.planned, record.done_at = True, ""
    return made


def _origin_address(side: PlannedBackfill) -> str:
    return str(Address.of_stream(side["domain"], side["stream"]))


# --- whether it still holds -------------------------------------------------------------------------------------------


async def require_unchanged_origins(
    world: Context, pool: Pool, legs: Iterable[OriginState]
) -> None:
    """Raise StalePlanError where an origin is another stream than the one that was planned, before anything is changed. One that cannot
    be asked is left to the copy.
    """
    every = list(legs)
    domains = world.workspace.domains
    wanted = {leg.origin: leg.origin_address for leg in every}
    await pool.open({domains[address.domain].connection for address in wanted.values()})
    created = dict(
        zip(
            wanted,
            await asyncio.gather(*(_fetch_created(world, pool, one) for one in wanted.values())),
            strict=True,
        )
    )
    stale = [leg.origin for leg in every if created[leg.origin] not in ("", leg.created)]
    if stale:
        raise StalePlanError(
            f"no longer as planned: {', '.join(dict.fromkeys(stale))} was made anew, and its sequences mean other messages now. "
            "Nothing was changed",
            hint="Plan again.",
        )


async def _fetch_created(world: Context, pool: Pool, origin: Address) -> str:
    """When the stream was made; empty where nobody answers, `gone` where it is not there."""
    try:
        info = await pool.api(world.workspace.domains[origin.domain]).stream_info(origin.stream)
    except JsplanError:
        return ""
    return str(info["created"]) if info is not None else "gone"
