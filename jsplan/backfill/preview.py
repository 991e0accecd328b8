"""backfill plan: what is missing of an entry, measured, and how it would be copied. Starts no Spark, takes no lock, keeps nothing.

Where the target has nothing of an origin its server counts the range; else the target is looked through and compared, headers only.
"""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow.compute as pc

from jsplan.address import Address
from jsplan.backfill.copy_factory import endpoints_from_parquet
from jsplan.backfill.estimate import estimate_backfill
from jsplan.backfill.model import BackfillState
from jsplan.backfill.options import BackfillOptions
from jsplan.backfill.parquet.import_ import ParquetPendingScan
from jsplan.backfill.parquet.location import load_parquet_origin, pin_parquet_origins
from jsplan.backfill.partitioned_run import needs_partitions
from jsplan.backfill.pending import PendingRanges, PendingScan
from jsplan.backfill.pinning import (
    Endpoints,
    load_stored_state,
    require_valid_target,
    resolve_bounds,
    resolve_entry,
)
from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.retry import gather_limited
from jsplan.backfill.seq_ranges import OriginState, count_sequences, intersect
from jsplan.backfill.shared_pending import SharedPendingScan
from jsplan.backfill.strategy import (
    StrategyChoice,
    StreamTraits,
    build_strategy_facts,
    choose_strategy,
    complete_reason,
)
from jsplan.backfill.tasks.copy import ExistingMessages, SourceCoverage, find_existing
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.multi_origin_scan import scan_target_origins
from jsplan.backfill.windows import Clock
from jsplan.config.model import Backfill, BackfillSide, LoadOptions
from jsplan.context import Context, build_inputs, open_context, open_pool
from jsplan.documents.backfill_preview import COMPARED, COUNTED, BackfillPreview, OriginPreview
from jsplan.errors import JsplanError
from jsplan.jetstream import Pool
from jsplan.planning.backfills import RESUMED_CHOICES, list_past_copies
from jsplan.planning.model import PlanRequest
from jsplan.subjects import is_subset
from jsplan.topology.routes import is_import

Info = dict[str, Any]


async def preview_backfill(load: LoadOptions, options: BackfillOptions) -> BackfillPreview:
    """What `workflows.backfill.plan` does."""
    async with open_context(load) as world, open_pool(world, read_only=True) as pool:
        entry = resolve_entry(world, options)
        await pool.open(domain.connection for domain in world.workspace.domains.values())
        return await _PreviewBuilder(world, pool, entry, options.clock).build()


@dataclass(slots=True)
class _PreviewBuilder:
    world: Context
    pool: Pool
    entry: Backfill
    clock: Clock
    infos: dict[str, Info | None] = field(default_factory=dict)

    async def build(self) -> BackfillPreview:
        """The whole document."""
        record = load_stored_state(self.world, self.entry)
        target = (
            await self._fetch_info(self.entry.target) if self.entry.target.parquet is None else None
        )
        if target is not None:
            require_valid_target(str(self.entry.target), target["config"])
        choice = complete_reason(self.entry, await self._choose_strategy(record))
        absent = target is None and self.entry.target.parquet is None
        how = "jsplan apply" if absent else format_command(self.entry)
        before = tuple(
            name for name in ("where", "transform") if getattr(self.entry, name) is not None
        )
        found = BackfillPreview(
            self.entry.name,
            _determine_status(record),
            choice.strategy,
            choice.reason,
            how,
            choice.obstacle,
            filtered_by=before,
        )
        every = await gather_limited(
            self.entry.origins,
            lambda side: self._load_origins(side, record, there=target is not None),
        )
        legs = [leg for one in every if isinstance(one, list) for leg in one]
        together = (
            target is not None
            and needs_partitions(self.entry)
            and not any(leg.archive for leg in legs)
        )
        seen = await self._scan_target(legs, target) if target is not None and together else {}
        for side, one in zip(self.entry.origins, every, strict=True):
            if isinstance(one, JsplanError):
                found.origins.append(
                    OriginPreview(str(side), str(self.entry.target), error=one.full_text)
                )
            else:
                found.origins += [
                    await self._preview_or_error(
                        leg, seen.get(id(leg)), record, there=target is not None
                    )
                    for leg in one
                ]
        if any(leg.messages is not None for leg in found.origins):
            past, now = list_past_copies(self.world.state), self.clock.now()
            found.estimate = estimate_backfill(
                self.entry, choice.strategy, found.messages, found.bytes, past, now
            ).to_json()
        return found

    # --- by what ------------------------------------------------------------------------------------------------

    async def _choose_strategy(self, record: BackfillState | None) -> StrategyChoice:
        if record is not None and record.origins and not record.planned:
            return RESUMED_CHOICES.get(
                record.origins[0].strategy,
                choose_strategy(
                    build_strategy_facts(
                        self.world.topology, self.entry, (), StreamTraits(), datetime.now(UTC)
                    )
                ),
            )
        origins = [
            await self._fetch_traits(side) for side in self.entry.origins if side.parquet is None
        ]
        target = (
            await self._fetch_traits(self.entry.target)
            if self.entry.target.parquet is None
            else StreamTraits()
        )
        there = [origin for origin in origins if origin.exists]
        return choose_strategy(
            build_strategy_facts(self.world.topology, self.entry, there, target, datetime.now(UTC))
        )

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
        inputs = build_inputs(self.world, PlanRequest(now=datetime.now(UTC)))
        declared = inputs.body(address) if address in self.world.workspace.resources else {}
        return StreamTraits(declared, {}, level, exists=False, imported=is_import(domain))

    async def _fetch_info(self, side: BackfillSide) -> Info | None:
        """STREAM.INFO, asked once. Raises ApiError and ConnectError."""
        if str(side) not in self.infos:
            self.infos[str(side)] = await self.pool.api(
                self.world.workspace.domains[side.domain]
            ).stream_info(side.stream)
        return self.infos[str(side)]

    # --- how much -----------------------------------------------------------------------------------------------

    async def _load_origins(
        self, side: BackfillSide, record: BackfillState | None, *, there: bool
    ) -> list[OriginState] | JsplanError:
        """The legs of an origin; an archive may have several. Of one that cannot be asked, why."""
        try:
            legs = [
                leg
                for leg in (record.origins if record else ())
                if str(side) in (leg.origin, leg.archive)
            ]
            return legs or await self._pin_current(side, there=there)
        except JsplanError as error:
            return error

    async def _scan_target(self, legs: list[OriginState], target: Info) -> dict[int, PendingScan]:
        """What the target has of many origins, found in one reading of it. By the leg. Raises ApiError."""
        first, last = int(target["state"]["first_seq"]), int(target["state"]["last_seq"])
        every = [Endpoints.of_origin(self.world, self.pool, leg) for leg in legs]
        mixed = self.entry.order != "stream"
        shared = [
            SharedPendingScan(leg, ends, self.world.topology, is_reordered=mixed)
            for leg, ends in zip(legs, every, strict=True)
        ]
        wanted = await gather_limited(shared, lambda one: one.build_query(target))
        if shared and target["state"]["messages"]:
            known = await asyncio.to_thread(
                scan_target_origins,
                every[0].target_endpoint,
                self.entry.target.stream,
                first,
                last,
                wanted,
            )
            for one, found in zip(shared, known, strict=True):
                one.existing = found
        return {id(leg): one for leg, one in zip(legs, shared, strict=True)}

    async def _preview_or_error(
        self,
        leg: OriginState,
        seen: PendingScan | None,
        record: BackfillState | None,
        *,
        there: bool,
    ) -> OriginPreview:
        """What is missing of one origin. One that cannot be asked says why."""
        try:
            return await self._preview_origin(leg, seen, there=there, pinned=record is not None)
        except JsplanError as error:
            return OriginPreview(leg.origin, leg.target, error=error.full_text)

    async def _pin_current(self, side: BackfillSide, *, there: bool) -> list[OriginState]:
        """As a run would pin them now. Raises JsplanError where there is no such stream."""
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
        target = await self._fetch_info(self.entry.target) if there else None
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
        self, leg: OriginState, seen: PendingScan | None, *, there: bool, pinned: bool
    ) -> OriginPreview:
        found = OriginPreview(
            leg.origin, leg.target, leg.first, leg.last, pinned=pinned, done=leg.status == "done"
        )
        if leg.archive:
            return await self._preview_archived(leg, found)
        origin = self.world.workspace.domains[leg.origin_address.domain]
        target = self.world.workspace.domains[self.entry.target.domain] if there else origin
        ends = Endpoints.of_domains(self.world, self.pool, origin, target)
        missing = seen or PendingScan(leg, ends, self.world.topology)
        info = await self._fetch_info(
            BackfillSide(leg.origin_address.domain, leg.origin_address.stream)
        )
        found.gap_messages = (
            count_sequences(intersect([leg.seq_range], await missing.find_gone()))
            if leg.first <= leg.last
            else 0
        )
        if found.done:
            found.messages, found.bytes, found.measured = 0, 0, COUNTED
            return found
        todo = await missing.scan() if there else None
        if todo is None or not (len(todo.existing.seq) or todo.coverage):
            found.messages, found.measured = (
                (await missing.count_messages() if leg.first <= leg.last else 0),
                COUNTED,
            )
        else:
            left = asyncio.to_thread(_count_pending, ends.source_endpoint, leg, todo)
            found.messages, found.measured = await left, COMPARED
            found.in_target = int(
                ((todo.existing.seq >= leg.first) & (todo.existing.seq <= leg.last)).sum()
            )
        state = info["state"] if info is not None else {"messages": 0, "bytes": 0}
        found.bytes = found.messages * int(state["bytes"]) // max(1, int(state["messages"]))
        return found

    async def _preview_archived(self, leg: OriginState, found: OriginPreview) -> OriginPreview:
        held = await load_parquet_origin(self.world, leg)
        todo = await ParquetPendingScan(
            leg, endpoints_from_parquet(self.world, self.pool, leg, held), self.world.topology, held
        ).scan()
        state = held.stream_info["state"]
        found.messages, found.measured, found.gap_messages = (
            todo.messages,
            COMPARED,
            held.gap_messages,
        )
        found.in_target = int(state["messages"]) - found.messages
        found.bytes = found.messages * int(state["bytes"]) // max(1, int(state["messages"]))
        return found


def _count_pending(endpoint: Endpoint, leg: OriginState, todo: PendingRanges) -> int:
    """How many messages of the range the target has not and its own sources do not bring. Raises what `wire.read` raises."""
    count = 0
    for span in todo.spans:
        what = ReadRequest(
            endpoint.api_prefix,
            leg.origin_address.stream,
            span.first,
            span.last,
            tuple(leg.filters),
            headers_only=True,
        )
        for rows in read(endpoint.open, what):
            wanted = _select_new(todo.existing, rows)
            for claim in todo.coverage:
                wanted &= ~_select_covered(claim, rows)
            count += int(wanted.sum())
    return count


def _select_new(known: ExistingMessages, rows: Any) -> np.ndarray[Any, Any]:
    seq = rows["seq"].to_numpy()
    return (
        ~find_existing(known, seq, rows["time"].to_numpy())
        if len(known.seq)
        else np.ones(len(seq), dtype=bool)
    )


def _select_covered(claim: SourceCoverage, rows: Any) -> np.ndarray[Any, Any]:
    later: np.ndarray[Any, Any] = np.greater_equal(rows["seq"].to_numpy(), claim.first)
    if not claim.filters:
        return later
    encoded = pc.dictionary_encode(rows["subject"])
    texts = (text.decode(errors="surrogateescape") for text in encoded.dictionary.to_pylist())
    hit = np.array(
        [any(is_subset(text, one) for one in claim.filters) for text in texts], dtype=bool
    )
    mine: np.ndarray[Any, Any] = np.logical_and(later, hit[encoded.indices.to_numpy()])
    return mine


def _determine_status(record: BackfillState | None) -> str:
    return "new" if record is None or record.is_new else "done" if record.done_at else "started"


def format_command(entry: Backfill) -> str:
    """What runs the entry; one that was made of two addresses is run by them."""
    origin, between, target = entry.name.partition(">")
    return f"jsplan backfill run {f'--from {shlex.quote(origin)} --to {shlex.quote(target)}' if between else entry.name}"
