"""The ranges of an entry: pinned now, loaded from state, and completed.

Every command asks here: `run` and `verify` with `load_ranges`, `backfill plan` for each side, and
`apply` for the ranges that its plan shows. Nothing of the extra `spark` is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, to_builtins

from jsplan.address import Address
from jsplan.backfill.entry import reads_archive
from jsplan.backfill.parquet.location import pin_parquet_origins
from jsplan.backfill.retry import gather_limited
from jsplan.backfill.tasks.staging_streams import require_stream_info
from jsplan.errors import (
    ApiError,
    ConnectError,
    JsplanError,
    NotPermittedError,
    RefusedError,
    ServerRefusedError,
    StalePlanError,
)
from jsplan.facts.messages import find_seq_at
from jsplan.planning.backfill.entries import side_to_document
from jsplan.planning.backfill.model import (
    BackfillState,
    OriginState,
    SeqRange,
    find_stored_state,
    hash_config,
    list_bound_times,
    match_origin_states,
    resolve_bounds,
)
from jsplan.planning.backfill.strategy import (
    choose_strategy,
    explain_obstacle,
    find_read_obstacle,
    find_target_problem,
)
from jsplan.resources.server_features import read_level
from jsplan.units import format_timestamp

if TYPE_CHECKING:
    from jsplan.config.model import Backfill, BackfillSide
    from jsplan.context import Context
    from jsplan.documents.plan import Plan
    from jsplan.jetstream import DomainApi, Pool

StreamInfo = dict[str, Any]


# --- load and complete ----------------------------------------------------------------------------


async def load_ranges(
    world: Context,
    pool: Pool,
    entry: Backfill,
    offline: Collection[str] = (),
    *,
    reset: bool = False,
) -> tuple[BackfillState, bool]:
    """Load the ranges of an entry from state, and pin those that it lacks.

    Origins of `offline` domains stay without. A range that a plan pinned gets the identity of the
    target, which may not have existed then. The second value says whether anything was added, so
    that a run saves it. Raises RefusedError for a strategy that is not possible, JsplanError for an
    origin that cannot be read and a target that cannot be filled, and ApiError.
    """
    stored = find_stored_state(world.state.backfills, entry) if not reset else None
    is_renewed = stored is not None and _renew(world, stored)
    record = stored or BackfillState(entry.name, hash_config(entry), [], format_timestamp())
    matched = match_origin_states(record, entry.origins)
    new = [
        number
        for number, side in enumerate(entry.origins)
        if not matched[number] and side.domain not in offline
    ]
    if stored is not None and reads_archive(entry):
        new = []  # an archive without a message has no origin
    if not new and not record.planned:
        return record, stored is None or is_renewed
    if (stored is None or record.planned) and (choice := choose_strategy(entry)).obstacle:
        text, hint = explain_obstacle(entry, choice)  # an existing target excludes the strategy
        raise RefusedError(text, hint=hint)
    target = None
    if entry.target.parquet is None:
        target = await require_stream_info(side_api(world, pool, entry.target), entry.target.stream)
        require_valid_target(str(entry.target), target["config"])
    pinned = await gather_limited(
        new, lambda number: pin_side(world, pool, entry, entry.origins[number], target)
    )
    for number, states in zip(new, pinned, strict=True):
        matched[number] = states
    record.origins = [state for states in matched for state in states]
    if target is not None and record.planned:
        for state in record.origins:
            if not state.target_created:
                state.target_created, state.target_next = _identify_target(target)
    record.planned = False
    if new:
        record.done_at = ""
    return record, True


def _renew(world: Context, record: BackfillState) -> bool:
    """Let ranges name the streams that came in place of theirs, with the same sequences."""
    before = [(state.created, state.target_created) for state in record.origins]
    for state in record.origins:
        if not state.archive:
            state.created = _find_successor(world, state.origin, state.created)
        state.target_created = _find_successor(world, state.target, state.target_created)
    return before != [(state.created, state.target_created) for state in record.origins]


def _find_successor(world: Context, address: str, created: str) -> str:
    """Return the `created` of the stream that replaced one with its messages; else its own.

    The target of a copy may be a folder, which has none.
    """
    entry = world.state.resources.get(Address.parse(address)) if created else None
    is_former = entry is not None and created in {one["created"] for one in entry.former}
    return entry.created if entry is not None and is_former else created


def side_api(world: Context, pool: Pool, side: BackfillSide) -> DomainApi:
    """Return the API of the domain of a side that is a stream."""
    return pool.api(world.workspace.domains[side.domain])


def require_valid_target(address: str, config: Mapping[str, Any]) -> None:
    """Raise JsplanError for a target that cannot be filled exactly once."""
    why, hint = find_target_problem(config)
    if why:
        raise JsplanError(f"{address} {why}", hint=hint or None)


async def find_offline_domains(world: Context, pool: Pool, entry: Backfill) -> dict[str, str]:
    """Find offline domains of origins, with the reason. Raises if all are offline."""

    async def check(key: str) -> JsplanError | None:
        try:
            await pool.api(world.workspace.domains[key]).request("INFO")
        except (NotPermittedError, ServerRefusedError):
            raise
        except (ApiError, ConnectError) as error:
            return error
        return None

    keys = list(dict.fromkeys(side.domain for side in entry.origins))
    errors = await gather_limited(keys, check)
    offline = {key: error for key, error in zip(keys, errors, strict=True) if error is not None}
    if len(offline) == len(keys):
        raise next(iter(offline.values()))
    return {key: error.full_text for key, error in offline.items()}


# --- pin ------------------------------------------------------------------------------------------


async def pin_side(
    world: Context, pool: Pool, entry: Backfill, side: BackfillSide, target: StreamInfo | None
) -> list[OriginState]:
    """Pin the current range of one origin; of an archive, one for each of its streams.

    `target` is STREAM.INFO of the target, None for an archive or a stream that does not exist yet.
    Raises JsplanError for an origin that cannot be read, ArchiveError and ApiError.
    """
    domains = world.workspace.domains
    if side.parquet is not None:
        if target is None:
            raise JsplanError(
                f"{entry.target} does not exist", hint="Apply the workspace first: jsplan apply"
            )
        return await pin_parquet_origins(world, side.parquet, str(entry.target), target)
    same_domain = entry.target.parquet is None and (
        domains[side.domain].key == domains[entry.target.domain].key
    )
    if same_domain and side.stream == entry.target.stream:
        raise JsplanError(f"{side} cannot be copied into itself")
    api = side_api(world, pool, side)
    origin = await require_stream_info(api, side.stream)
    if why := find_read_obstacle(origin["config"]):
        raise JsplanError(f"{side} cannot be copied: {why}", hint="A source can copy new messages.")
    bounds = await _find_bounds(api, side, origin)
    identity = _identify_target(target) if target is not None else ("", 0)
    return [_new_state(entry, side, origin["created"], bounds, identity)]


def _identify_target(info: StreamInfo) -> tuple[str, int]:
    """Return what distinguishes a target from a later one, and its next sequence."""
    return info["created"], int(info["state"]["last_seq"]) + 1


def _new_state(
    entry: Backfill,
    side: BackfillSide,
    created: str,
    bounds: SeqRange,
    target: tuple[str, int] = ("", 0),
) -> OriginState:
    return OriginState(str(side), str(entry.target), created, *bounds, list(side.filters), *target)


async def _find_bounds(api: DomainApi, side: BackfillSide, info: StreamInfo) -> SeqRange:
    """Return the range of a side now. Raises ApiError, and JsplanError for a time not found."""
    seqs: dict[str, int] = {}
    times = list_bound_times(side)
    level = read_level(await api.request("INFO")) if times else 0
    for time in times:
        if (seq := await find_seq_at(api, info, time, level)) is not None:
            seqs[time] = seq
    if (bounds := resolve_bounds(side, info["state"], seqs)) is None:
        raise JsplanError(
            f"the first message of {side} at {' or '.join(times)} was not found in a limited "
            "number of reads, since many messages around it are deleted",
            hint="Name sequences instead: start_seq, end_seq.",
        )
    return bounds


# --- ranges of a plan -----------------------------------------------------------------------------


class PlannedRanges(Struct):
    """The states that a plan changes. `new_origins` are the origins whose range it pins."""

    states: list[BackfillState] = field(default_factory=list)
    new_origins: list[OriginState] = field(default_factory=list)

    def write(self, world: Context) -> None:
        """Write them into the journal, in the session of the apply."""
        for record in self.states:
            world.backend.append(world.state, {"backfill": to_builtins(record)})


def collect_planned_ranges(world: Context, plan: Plan) -> PlannedRanges:
    """Collect the states that a plan changes, with exactly the ranges that it shows.

    They are stored before the first change, so that a resumed apply copies these ranges. Raises
    StalePlanError if an entry has changed since it was planned.
    """
    ranges = PlannedRanges()
    for planned in plan.backfills:
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
        if new := _add_planned_origins(entry, record, planned["from"]):
            ranges.states.append(record)
            ranges.new_origins += new
    return ranges


def _add_planned_origins(
    entry: Backfill, record: BackfillState, planned: Iterable[dict[str, Any]]
) -> list[OriginState]:
    """Add the planned ranges of origins that a record lacks, and return them.

    The ranges of a stream that is named several times are added together or not at all, since
    nothing else distinguishes them.
    """
    spans = [
        ({key: one[key] for key in one if key != "range"}, one["range"])
        for one in planned
        if "range" in one
    ]
    matched, new = match_origin_states(record, entry.origins), list[OriginState]()
    for number, side in enumerate(entry.origins):
        document = side_to_document(side)
        span = next((span for shown, span in spans if shown == document), None)
        if not matched[number] and span is not None:
            bounds = SeqRange(span["first"], span["last"])
            matched[number] = [_new_state(entry, side, span["created"], bounds)]
            new += matched[number]
    is_repeated = len({str(side) for side in entry.origins}) < len(entry.origins)
    if not new or (is_repeated and not all(matched)):
        return []
    record.origins = [state for states in matched for state in states]
    record.planned, record.done_at = True, ""
    return new


async def require_unchanged_origins(
    world: Context, pool: Pool, origin_states: Iterable[OriginState]
) -> None:
    """Raise StalePlanError if an origin was recreated after planning, before any change.

    An offline origin is checked by the copy.
    """
    states, domains = list(origin_states), world.workspace.domains
    await pool.open({domains[state.origin_address.domain].connection for state in states})

    async def is_recreated(state: OriginState) -> bool:
        address = state.origin_address
        try:
            info = await pool.api(domains[address.domain]).stream_info(address.stream)
        except JsplanError:
            return False
        return info is None or str(info["created"]) != state.created

    found = await asyncio.gather(*(is_recreated(state) for state in states))
    stale = [state.origin for state, recreated in zip(states, found, strict=True) if recreated]
    if stale:
        raise StalePlanError(
            f"{', '.join(dict.fromkeys(stale))} was recreated after this plan was made. "
            "Its sequences no longer match. Nothing was changed",
            hint="Plan again.",
        )
