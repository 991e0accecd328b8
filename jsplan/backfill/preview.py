"""The preview of `backfill plan`: pending messages of an entry, and how it would copy them.

Starts no Spark, takes no lock and stores nothing. If the target has no message of an origin, its
server counts the range; else the headers of the target are read and compared.
"""

from __future__ import annotations

import asyncio
import shlex
from datetime import UTC, datetime
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.backfill.copy_origin import CopyOrigin, load_origin
from jsplan.backfill.options import BackfillOptions
from jsplan.backfill.parquet.location import pin_parquet_origins
from jsplan.backfill.pending import PendingScan, scan_pending
from jsplan.backfill.pending_ranges import PendingRanges
from jsplan.backfill.pinning import (
    Endpoints,
    load_stored_state,
    require_valid_target,
    resolve_bounds,
    resolve_entry,
)
from jsplan.backfill.retry import gather_limited
from jsplan.backfill.seq_ranges import count_sequences, intersect
from jsplan.backfill.tasks.origin_task import read_messages
from jsplan.backfill.transforms import build_transform_spec, is_joint_copy
from jsplan.config.model import Backfill, BackfillSide, LoadOptions
from jsplan.context import Context, open_context, open_pool
from jsplan.documents.backfill_preview import COMPARED, COUNTED, BackfillPreview, OriginPreview
from jsplan.errors import JsplanError
from jsplan.jetstream import Pool
from jsplan.plan_inputs import build_inputs
from jsplan.planning.backfill.entries import RESUMED_CHOICES, list_past_copies
from jsplan.planning.backfill.estimate import estimate_backfill
from jsplan.planning.backfill.model import BackfillState, OriginState
from jsplan.planning.backfill.strategy import (
    StrategyChoice,
    StrategyFacts,
    StreamTraits,
    choose_strategy,
)
from jsplan.topology.routes import is_import

Info = dict[str, Any]


async def preview_backfill(load: LoadOptions, options: BackfillOptions) -> BackfillPreview:
    """Build the preview, as `workflows.backfill.plan`."""
    async with open_context(load) as world, open_pool(world, read_only=True) as pool:
        entry = resolve_entry(world, options)
        await pool.open(domain.connection for domain in world.workspace.domains.values())
        return await _PreviewBuilder(world, pool, entry).build()


class _PreviewBuilder(Struct):
    world: Context
    pool: Pool
    entry: Backfill
    infos: dict[str, Info | None] = field(default_factory=dict)

    async def build(self) -> BackfillPreview:
        """Build the document. Raises UsageError for transforms that cannot run."""
        build_transform_spec(self.world.workspace.root, self.entry)
        record = load_stored_state(self.world, self.entry)
        target = (
            await self._fetch_info(self.entry.target) if self.entry.target.parquet is None else None
        )
        if target is not None:
            require_valid_target(str(self.entry.target), target["config"])
        choice = await self._choose_strategy(record)
        absent = target is None and self.entry.target.parquet is None
        command = "jsplan apply" if absent else format_command(self.entry)
        filters = tuple(
            name for name in ("where", "transform") if getattr(self.entry, name) is not None
        )
        preview = BackfillPreview(
            self.entry.name,
            _determine_status(record),
            choice.strategy,
            choice.reason,
            command,
            choice.obstacle or None,
            filtered_by=[*filters],
        )
        loaded = await gather_limited(
            self.entry.origins,
            lambda side: self._load_origins(side, record, target_exists=target is not None),
        )
        origin_states = [
            origin_state for one in loaded if isinstance(one, list) for origin_state in one
        ]
        shared = (
            target is not None
            and is_joint_copy(self.entry)
            and not any(origin_state.archive for origin_state in origin_states)
        )
        seen = await self._scan_target(origin_states) if shared else {}
        for side, one in zip(self.entry.origins, loaded, strict=True):
            if isinstance(one, JsplanError):
                preview.origins.append(
                    OriginPreview(str(side), str(self.entry.target), 1, 0, error=one.full_text)
                )
            else:
                preview.origins += [
                    await self._preview_or_error(
                        origin_state,
                        seen.get(id(origin_state)),
                        record,
                        target_exists=target is not None,
                    )
                    for origin_state in one
                ]
        if any(origin.messages is not None for origin in preview.origins):
            past = list_past_copies(self.world.state)
            preview.estimate = estimate_backfill(
                self.entry, choice.strategy, preview.messages, preview.bytes, past
            )
        return preview

    # --- strategy ---------------------------------------------------------------------------------

    async def _choose_strategy(self, record: BackfillState | None) -> StrategyChoice:
        if record is not None and record.origins and not record.planned:
            return RESUMED_CHOICES.get(
                record.origins[0].strategy,
                choose_strategy(StrategyFacts(self.entry, (), StreamTraits(), datetime.now(UTC))),
            )
        origins = [
            await self._fetch_traits(side) for side in self.entry.origins if side.parquet is None
        ]
        target = (
            await self._fetch_traits(self.entry.target)
            if self.entry.target.parquet is None
            else StreamTraits()
        )
        existing = tuple(origin for origin in origins if origin.exists)
        return choose_strategy(StrategyFacts(self.entry, existing, target, datetime.now(UTC)))

    async def _fetch_traits(self, side: BackfillSide) -> StreamTraits:
        domain, address = (
            self.world.workspace.domains[side.domain],
            Address.of_stream(side.domain, side.stream),
        )
        try:
            info = await self._fetch_info(side)
            level = int(
                ((await self.pool.api(domain).request("INFO")).get("api") or {}).get("level") or 0
            )
        except JsplanError:
            return StreamTraits(exists=False)
        if info is not None:
            return StreamTraits(info["config"], info["state"], level, imported=is_import(domain))
        inputs = build_inputs(self.world)
        declared = inputs.body(address) if address in self.world.workspace.resources else {}
        return StreamTraits(declared, {}, level, exists=False, imported=is_import(domain))

    async def _fetch_info(self, side: BackfillSide) -> Info | None:
        """Read STREAM.INFO once. Raises ApiError and ConnectError."""
        if str(side) not in self.infos:
            self.infos[str(side)] = await self.pool.api(
                self.world.workspace.domains[side.domain]
            ).stream_info(side.stream)
        return self.infos[str(side)]

    # --- amounts ----------------------------------------------------------------------------------

    async def _load_origins(
        self, side: BackfillSide, record: BackfillState | None, *, target_exists: bool
    ) -> list[OriginState] | JsplanError:
        """Load or pin the states of an origin; an archive has several. Or return the error."""
        try:
            origin_states = [
                origin_state
                for origin_state in (record.origins if record else ())
                if str(side) in (origin_state.origin, origin_state.archive)
            ]
            return origin_states or await self._pin_current(side, target_exists=target_exists)
        except JsplanError as error:
            return error

    async def _scan_target(self, origin_states: list[OriginState]) -> dict[int, PendingRanges]:
        """Scan the target once for many origins. Return their ranges by id of the state."""
        if not origin_states:
            return {}
        origins = [await load_origin(self.world, self.pool, state) for state in origin_states]
        found = await scan_pending(
            [self._build_scan(origin) for origin in origins],
            is_reordered=self.entry.order != "stream",
        )
        return {id(state): pending for state, pending in zip(origin_states, found, strict=True)}

    def _build_scan(self, origin: CopyOrigin) -> PendingScan:
        return PendingScan(origin, self.world.topology)

    async def _preview_or_error(
        self,
        origin_state: OriginState,
        seen: PendingRanges | None,
        record: BackfillState | None,
        *,
        target_exists: bool,
    ) -> OriginPreview:
        """Preview one origin. An origin that does not answer has the error."""
        try:
            return await self._preview_origin(
                origin_state, seen, target_exists=target_exists, pinned=record is not None
            )
        except JsplanError as error:
            return OriginPreview(
                origin_state.origin, origin_state.target, 1, 0, error=error.full_text
            )

    async def _pin_current(self, side: BackfillSide, *, target_exists: bool) -> list[OriginState]:
        """Pin the current range, as a run. Raises JsplanError if the stream does not exist."""
        to = str(self.entry.target)
        if side.parquet is not None:
            info = await self._fetch_info(self.entry.target)
            if info is None:
                raise JsplanError(
                    f"{to} does not exist", hint="Apply the workspace first: jsplan apply"
                )
            return await pin_parquet_origins(self.world, side.parquet, to, info)
        origin, domain = await self._fetch_info(side), self.world.workspace.domains[side.domain]
        if origin is None:
            raise JsplanError(f"{side} does not exist")
        first, last = resolve_bounds(
            Endpoints.of_domains(self.world, self.pool, domain, domain), side, origin
        )
        target = await self._fetch_info(self.entry.target) if target_exists else None
        created, after = (
            (target["created"], int(target["state"]["last_seq"]) + 1)
            if target is not None
            else ("", 1)
        )
        return [
            OriginState(
                str(side), to, origin["created"], first, last, list(side.filters), created, after
            )
        ]

    async def _preview_origin(
        self,
        origin_state: OriginState,
        seen: PendingRanges | None,
        *,
        target_exists: bool,
        pinned: bool,
    ) -> OriginPreview:
        preview = OriginPreview(
            origin_state.origin,
            origin_state.target,
            origin_state.first,
            origin_state.last,
            pinned=pinned,
            done=origin_state.status == "done",
        )
        if origin_state.archive:
            return await self._preview_archived(origin_state, preview)
        origin = await load_origin(
            self.world, self.pool, origin_state, into_archive=not target_exists
        )
        info = await self._fetch_info(
            BackfillSide(origin_state.origin_address.domain, origin_state.origin_address.stream)
        )
        preview.gap_messages = (
            count_sequences(intersect([origin_state.seq_range], await origin.reader.find_gone()))
            if origin_state.first <= origin_state.last
            else 0
        )
        if preview.done:
            preview.messages, preview.bytes, preview.measured = 0, 0, COUNTED
            return preview
        pending = seen
        if target_exists and pending is None:
            pending = (await scan_pending([self._build_scan(origin)]))[0]
        if pending is None or not (len(pending.existing.seq) or pending.coverage):
            preview.messages, preview.measured = (
                (
                    await origin.reader.count_messages()
                    if origin_state.first <= origin_state.last
                    else 0
                ),
                COUNTED,
            )
        else:
            left = asyncio.to_thread(_count_pending, origin, pending)
            preview.messages, preview.measured = await left, COMPARED
            preview.in_target = int(
                (
                    (pending.existing.seq >= origin_state.first)
                    & (pending.existing.seq <= origin_state.last)
                ).sum()
            )
        state = info["state"] if info is not None else {"messages": 0, "bytes": 0}
        preview.bytes = preview.messages * int(state["bytes"]) // max(1, int(state["messages"]))
        return preview

    async def _preview_archived(
        self, origin_state: OriginState, preview: OriginPreview
    ) -> OriginPreview:
        origin = await load_origin(self.world, self.pool, origin_state)
        pending = (await scan_pending([self._build_scan(origin)]))[0]
        state = (await origin.reader.fetch_info())["state"]
        _, gap_messages = origin.reader.recorded_gaps or ((), 0)
        preview.messages, preview.measured, preview.gap_messages = (
            pending.messages,
            COMPARED,
            gap_messages,
        )
        preview.in_target = int(state["messages"]) - preview.messages
        preview.bytes = preview.messages * int(state["bytes"]) // max(1, int(state["messages"]))
        return preview


def _count_pending(origin: CopyOrigin, pending: PendingRanges) -> int:
    """Count the pending messages of a stream. Raises the errors of `protocol.read`."""
    task = replace(
        origin.build_task(pending.spans), existing=pending.existing, coverage=pending.coverage
    )
    return sum(rows.num_rows for rows in read_messages(task, headers_only=True))


def _determine_status(record: BackfillState | None) -> Literal["new", "started", "done"]:
    return "new" if record is None or record.is_new else "done" if record.done_at else "started"


def format_command(entry: Backfill) -> str:
    """Return the command that runs the entry, by name or by two addresses."""
    origin, arrow, target = entry.name.partition(">")
    sides = f"--from {shlex.quote(origin)} --to {shlex.quote(target)}" if arrow else entry.name
    return f"jsplan backfill run {sides}"
