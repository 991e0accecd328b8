"""backfill verify: both sides of an entry, compared message by message. Takes no lock and keeps nothing; says what it found."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from jsplan.backfill.options import BackfillOptions, VerifyOptions
from jsplan.backfill.partitioned_run import needs_partitions
from jsplan.backfill.pinned_ranges import complete_state
from jsplan.backfill.pinning import (
    Endpoints,
    load_stored_state,
    pin_ranges,
    require_same_streams,
    resolve_entry,
)
from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.protocol.stream_info import parse_time
from jsplan.backfill.seq_ranges import BackfillState, OriginState
from jsplan.backfill.spark_job_workspace import declare_connections
from jsplan.backfill.spark_runner import SparkRunner
from jsplan.backfill.tasks.hashes import parse_origin_header
from jsplan.backfill.tasks.staging_sources import require_stream_info
from jsplan.backfill.tasks.staging_streams import hash_origin
from jsplan.backfill.verify.message_rows import ComparedOrigin, read_origin_rows, read_target_rows
from jsplan.backfill.verify.native import read_restored_rows
from jsplan.config.model import Backfill, LoadOptions
from jsplan.context import Context, open_context, open_pool
from jsplan.documents.backfill import COUNTED_KINDS, Difference, OriginCheck, Verification
from jsplan.jetstream import Pool
from jsplan.options import Observer
from jsplan.resources.nested import source_header

Config = dict[str, Any]
#: Limits by which a stream lets messages go.
_EXPIRY_LIMITS = ("max_age", "max_msgs", "max_bytes", "max_msgs_per_subject")


async def verify_backfill(
    load: LoadOptions, options: VerifyOptions, observer: Observer
) -> Verification:
    """What `workflows.backfill.verify` does."""
    async with open_context(load) as world, open_pool(world, read_only=True) as pool:
        entry = resolve_entry(world, BackfillOptions(options.name, options.origin, options.target))
        streams = [side for side in (*entry.origins, entry.target) if side.parquet is None]
        await pool.open({world.workspace.domains[side.domain].connection for side in streams})
        engine = SparkRunner(observer, options.master)
        declare_connections(load, options.master)
        try:
            check = (
                _import_parquet_check()
                if len(streams) <= len(entry.origins)
                else _import_transformed_check()
                if needs_partitions(entry)
                else BackfillCheck
            )
            return await check(world, pool, entry, options.listed, engine, observer).execute()
        finally:
            await engine.close()


def _import_parquet_check() -> type[BackfillCheck]:
    """Where one side is an archive."""
    from jsplan.backfill.verify.parquet_check import ParquetCheck  # noqa: PLC0415 - it is made of what is below

    return ParquetCheck


def _import_transformed_check() -> type[BackfillCheck]:
    """Where messages were shaped, or are of many streams."""
    from jsplan.backfill.verify.transformed_check import TransformedCheck  # noqa: PLC0415 - it is made of what is below

    return TransformedCheck


class BackfillCheck:
    """One comparison: the range that state keeps, or that a run would pin now, then both sides of it."""

    def __init__(
        self,
        world: Context,
        pool: Pool,
        entry: Backfill,
        listed: int,
        engine: SparkRunner,
        observer: Observer,
    ) -> None:
        self.world = world
        self.pool = pool
        self.entry = entry
        self.listed = listed
        self.runner = engine
        self.observer = observer
        self.is_restored = False

    async def execute(self) -> Verification:
        """What both sides say. Raises what `verify_backfill` raises."""
        record = await self.load_state()
        # Before Spark starts: its workers have the environment of now.
        every = [Endpoints.of_origin(self.world, self.pool, leg) for leg in record.origins]
        target = await require_stream_info(every[0].target, self.entry.target.stream)
        legs, floors = [], {}
        for number, (leg, ends) in enumerate(zip(record.origins, every, strict=True)):
            origin = await require_stream_info(ends.origin, leg.origin_address.stream)
            require_same_streams(leg, origin, target)
            legs.append(self._build_compared_origin(number, leg, ends, origin, target["config"]))
            placed = (
                leg.strategy == "snapshot"
            )  # at the sequences that they had: below the first one everything is gone
            first = int(target["state"]["first_seq"])
            floors[number] = (
                first
                if placed
                else await asyncio.to_thread(find_expiry_floor, legs[-1], leg, ends, target)
            )
            self.is_restored |= placed
        said, seconds = await self._compare(every, legs, target["state"], floors)
        return build_verification(self.entry.name, record.origins, said, seconds, self.listed)

    async def load_state(self) -> BackfillState:
        """What is compared: the range that state keeps, or that a run would pin now. Raises what `pin_ranges` raises."""
        record = load_stored_state(self.world, self.entry) or await pin_ranges(
            self.world, self.pool, self.entry
        )
        if record.planned:
            await complete_state(
                self.world, self.pool, self.entry, record, whole=not needs_partitions(self.entry)
            )
        return record

    def _build_compared_origin(
        self, number: int, leg: OriginState, ends: Endpoints, origin: Config, target: Config
    ) -> ComparedOrigin:
        natives = self.list_source_names(leg, target)
        return ComparedOrigin(
            number,
            ends.origin_domain_name,
            leg.origin_address.stream,
            leg.first,
            leg.last,
            tuple(leg.filters),
            parse_time(leg.created),
            int(origin["state"]["last_seq"]),
            natives,
            bool(natives),
            tuple((first, last) for first, last in leg.gaps),
            tuple(leg.skipped),
            hash_origin(ends.origin_domain_name, leg.origin_address.stream, leg.created),
        )

    def list_source_names(self, leg: OriginState, target: Config) -> tuple[str, ...]:
        """How the target's own sources name the origin."""
        origin, to = leg.origin_address, leg.target_address
        reach = self.world.topology.routes
        real = self.world.topology.canonicalize(origin).domain
        found = [
            source
            for source in target.get("sources") or []
            if source["name"] == origin.stream
            and reach.resolve_prefix(to.domain, (source.get("external") or {}).get("api")) == real
        ]
        way = reach.find_route(to.domain, origin.domain) if origin.domain != to.domain else None
        found.append(
            {"name": origin.stream}
            | ({"external": {"api": way.api}} if way is not None and way.api else {})
        )
        return tuple(sorted({source_header(source)[0] for source in found}))

    async def _compare(
        self,
        ends: list[Endpoints],
        legs: list[ComparedOrigin],
        state: Config,
        floors: dict[int, int],
    ) -> tuple[list[Config], float]:
        session = await self.runner.session()
        from jsplan.backfill.spark.verify_join import compare_sides  # noqa: PLC0415 - PySpark is imported when it is needed

        self.observer.phase(f"Comparing both sides of {self.entry.name}")
        started, stream = time.monotonic(), self.entry.target.stream
        first, way = (
            max(1, int(state["first_seq"])),
            ends[0].target_endpoint,
        )  # that of a stream that never had a message is 0
        sides = []
        if self.is_restored:
            sides, first = (
                [partial(read_restored_rows, way, stream, legs[0])],
                max(first, legs[0].last + 1),
            )
        sides.append(
            partial(read_target_rows, way, stream, first, int(state["last_seq"]), tuple(legs))
        )
        sides += [
            partial(read_origin_rows, end.source_endpoint, leg)
            for end, leg in zip(ends, legs, strict=True)
        ]
        title = f"jsplan backfill verify {self.entry.name}"
        said = await self.runner.call_in_thread(
            lambda: compare_sides(session, sides, floors, self.listed, title)
        )
        return said, time.monotonic() - started


def find_expiry_floor(
    compared: ComparedOrigin, leg: OriginState, ends: Endpoints, target: Config
) -> int:
    """Origins below this have expired at the target since they were copied: it has limits, and let go of its oldest."""
    config, state = target["config"], target["state"]
    if config.get("max_msgs_per_subject", -1) > 0:
        return (
            leg.last + 1 if leg.status == "done" else 0
        )  # what such a limit pushed out looks like anything else that is missing
    first, last = int(state["first_seq"]), int(state["last_seq"])
    if (
        not any(config.get(limit, -1) > 0 for limit in _EXPIRY_LIMITS)
        or first <= leg.target_next
        or leg.status != "done"
    ):
        return 0
    what = ReadRequest(
        ends.target_endpoint.api_prefix, leg.target_address.stream, first, last, headers_only=True
    )
    for rows in read(ends.target_endpoint.open, what) if first <= last else ():
        seqs = parse_origin_header(rows["headers"], compared.domain, compared.stream)[0].drop_null()
        if len(seqs):
            return int(seqs[0].as_py())
    return leg.last + 1


def build_verification(
    name: str, legs: Iterable[OriginState], said: list[Config], seconds: float, listed: int
) -> Verification:
    """What Spark found, as the document."""
    found = Verification(
        name,
        [OriginCheck(leg.origin, leg.target, leg.first, leg.last) for leg in legs],
        seconds=seconds,
    )
    for one in said:
        if one["leg"] < 0:
            found.others += one["count"]
            continue
        leg = found.origins[one["leg"]]
        if "count" in one:
            assert one["kind"] in COUNTED_KINDS
            leg.counts[one["kind"]] += one["count"]
        else:
            missing = one["kind"] == "missing"
            leg.listed.append(
                Difference(one["kind"], leg.origin, one["seq"], 0 if missing else one["place"])
            )
    for leg in found.origins:
        leg.listed = sorted(leg.listed, key=lambda one: (one.origin_seq, one.target_seq))[:listed]
    return found
