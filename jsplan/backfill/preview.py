"""The preview of `backfill plan`: pending messages of an entry, and how it would copy them.

Starts no Spark, takes no lock and stores nothing. Without the extra `spark` the numbers are upper
bounds, from the state of the origins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.backfill.entry import resolve_entry
from jsplan.backfill.options import BackfillOptions, format_run_command
from jsplan.backfill.parquet.location import load_parquet_origin
from jsplan.backfill.ranges import pin_side, require_valid_target, side_api
from jsplan.backfill.retry import gather_limited
from jsplan.backfill.spark_extra import list_missing_packages
from jsplan.backfill.tasks.staging_streams import require_stream_info
from jsplan.config.model import Backfill, BackfillSide, LoadOptions
from jsplan.context import Context, open_context, open_pool
from jsplan.documents.backfill import BOUNDED, COUNTED, BackfillPreview, OriginPreview
from jsplan.errors import JsplanError
from jsplan.jetstream import Pool
from jsplan.plan_inputs import build_inputs
from jsplan.planning.backfill.entries import estimate_between, list_past_copies
from jsplan.planning.backfill.model import (
    OriginState,
    find_stored_state,
    match_origin_states,
)
from jsplan.planning.backfill.strategy import (
    StrategyFacts,
    StreamTraits,
    choose_strategy,
    estimate_backfill,
)
from jsplan.resources.server_features import read_level
from jsplan.topology.routes import is_import

Info = dict[str, Any]


async def preview_backfill(load: LoadOptions, options: BackfillOptions) -> BackfillPreview:
    """Build the preview, as `workflows.backfill.plan`."""
    async with open_context(load) as world, open_pool(world, read_only=True) as pool:
        entry = resolve_entry(world, options)
        if not list_missing_packages():
            from jsplan.backfill.transforms import build_transform_spec  # noqa: PLC0415 - the extra

            build_transform_spec(world.workspace.root, entry)
        await pool.open(domain.connection for domain in world.workspace.domains.values())
        return await _PreviewBuilder(world, pool, entry).build()


class _PreviewBuilder(Struct):
    world: Context
    pool: Pool
    entry: Backfill
    target: Info | None = None
    infos: dict[str, Info | None] = field(default_factory=dict)

    async def build(self) -> BackfillPreview:
        """Build the document."""
        entry, world = self.entry, self.world
        record = find_stored_state(world.state.backfills, entry)
        if entry.target.parquet is None:
            self.target = await self._fetch_info(entry.target)
        if self.target is not None:
            require_valid_target(str(entry.target), self.target["config"])
        choice = choose_strategy(entry, await self._read_facts(), record)
        absent = self.target is None and entry.target.parquet is None
        preview = BackfillPreview(
            entry.name,
            "new" if record is None or record.is_new else "done" if record.done_at else "started",
            choice.strategy,
            choice.reason,
            "jsplan apply" if absent else format_run_command(entry.name),
            choice.obstacle or None,
            filtered_by=[name for name in ("where", "transform") if getattr(entry, name)],
        )
        matched = zip(entry.origins, match_origin_states(record, entry.origins), strict=True)
        ranges = await gather_limited(matched, self._find_ranges)
        preview.origins = await self._measure(one for of_side in ranges for one in of_side)
        for origin in preview.origins:
            origin.pinned = record is not None and not origin.error
        if any(origin.messages is not None for origin in preview.origins):
            past = list_past_copies(world.state)
            preview.estimate = estimate_backfill(
                entry, choice.strategy, preview.messages, preview.bytes, past
            )
        return preview

    # --- strategy ---------------------------------------------------------------------------------

    async def _read_facts(self) -> StrategyFacts:
        sides = [side for side in self.entry.origins if side.parquet is None]
        origins = [await self._read_traits(side) for side in sides]
        target = StreamTraits()
        if self.entry.target.parquet is None:
            target = await self._read_traits(self.entry.target)
        return StrategyFacts(tuple(origins), target, datetime.now(UTC))

    async def _read_traits(self, side: BackfillSide) -> StreamTraits:
        world, address = self.world, Address.of_stream(side.domain, side.stream)
        imported = is_import(world.workspace.domains[side.domain])
        try:
            info = await self._fetch_info(side)
            account = await side_api(world, self.pool, side).request("INFO")
        except JsplanError:
            return StreamTraits(exists=False)
        level = read_level(account)
        if info is not None:
            return StreamTraits(info["config"], info["state"], level, imported=imported)
        declared = address in world.workspace.resources
        config = build_inputs(world).body(address) if declared else {}
        return StreamTraits(config, {}, level, exists=False, imported=imported)

    async def _fetch_info(self, side: BackfillSide) -> Info | None:
        """Read STREAM.INFO once. Raises ApiError and ConnectError."""
        if str(side) not in self.infos:
            api = side_api(self.world, self.pool, side)
            self.infos[str(side)] = await api.stream_info(side.stream)
        return self.infos[str(side)]

    # --- amounts ----------------------------------------------------------------------------------

    async def _find_ranges(
        self, matched: tuple[BackfillSide, list[OriginState]]
    ) -> Sequence[OriginState | OriginPreview]:
        """Return the pinned ranges of a side, else those that a run would pin, or the error."""
        side, states = matched
        try:
            return states or await pin_side(self.world, self.pool, self.entry, side, self.target)
        except JsplanError as error:
            return [_explain(str(side), str(self.entry.target), error)]

    async def _measure(self, found: Iterable[OriginState | OriginPreview]) -> list[OriginPreview]:
        """Measure all ranges together, because that reads the target once."""
        ranges = list(found)
        states = [one for one in ranges if isinstance(one, OriginState)]
        measured = iter(await self._measure_states(states))
        return [next(measured) if isinstance(one, OriginState) else one for one in ranges]

    async def _measure_states(self, states: list[OriginState]) -> list[OriginPreview]:
        """Measure ranges; one that cannot be measured has the error."""
        try:
            if list_missing_packages():
                return [await self._bound(state) for state in states]
            from jsplan.backfill.preview_counts import count_pending  # noqa: PLC0415 - the extra

            has_target = self.target is not None
            return await count_pending(
                self.world, self.pool, self.entry, states, has_target=has_target
            )
        except JsplanError as error:
            if len(states) == 1:
                return [_explain(states[0].origin, states[0].target, error)]
            return [one for state in states for one in await self._measure_states([state])]

    async def _bound(self, state: OriginState) -> OriginPreview:
        """Bound the pending messages by the state of the origin, without a look at the target."""
        preview = OriginPreview(state.origin, state.target, state.first, state.last)
        if state.status == "done":
            return replace(preview, done=True, messages=0, bytes=0, measured=COUNTED)
        if state.archive:
            info = (await load_parquet_origin(self.world, state)).stream_info
            stored, amount = info["state"], (info["state"]["messages"], info["state"]["bytes"])
        else:
            address = state.origin_address
            api = self.pool.api(self.world.workspace.domains[address.domain])
            stored = (await require_stream_info(api, address.stream))["state"]
            amount = estimate_between(stored, state.first, state.last)
        expired = min(int(stored.get("first_seq", 0)) - 1, state.last) - state.first + 1
        messages, size = amount
        return replace(
            preview, messages=messages, bytes=size, measured=BOUNDED, gap_messages=max(0, expired)
        )


def _explain(origin: str, target: str, error: JsplanError) -> OriginPreview:
    return OriginPreview(origin, target, 1, 0, error=error.full_text)
