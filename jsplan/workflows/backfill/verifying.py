"""backfill verify: both sides of an entry, compared message by message. Takes no lock and keeps nothing; says what it found."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from jsplan.backfill.job.comparing import Compared, origin_rows, target_rows
from jsplan.backfill.job.digests import origin_of
from jsplan.backfill.job.promoting import target_info
from jsplan.backfill.job.stages import mark_of
from jsplan.backfill.job.tallying import placed_rows
from jsplan.backfill.ranges import Leg, Record
from jsplan.backfill.wire import read
from jsplan.backfill.wire.asking import from_text
from jsplan.backfill.wire.reading import Range
from jsplan.config.model import Backfill, LoadOptions
from jsplan.documents.backfill import COUNTED, Difference, LegCheck, Verification
from jsplan.jetstream import Pool
from jsplan.resources.nested import header_of
from jsplan.workflows.backfill.engine import Engine
from jsplan.workflows.backfill.freeze import Ends, entry_of, freeze, record_of, require_same
from jsplan.workflows.backfill.job_document import describe_for
from jsplan.workflows.backfill.options import BackfillOptions, VerifyOptions
from jsplan.workflows.backfill.taking_up import take_up
from jsplan.workflows.backfill.wide import is_wide
from jsplan.workflows.options import Observer
from jsplan.workflows.world import World, open_pool, open_world

Config = dict[str, Any]
#: Limits by which a stream lets messages go.
_LIMITS = ("max_age", "max_msgs", "max_bytes", "max_msgs_per_subject")


async def verify_backfill(load: LoadOptions, options: VerifyOptions, observer: Observer) -> Verification:
    """What `workflows.backfill.verify` does."""
    async with open_world(load) as world, open_pool(world, read_only=True) as pool:
        entry = entry_of(world, BackfillOptions(options.name, options.origin, options.target))
        streams = [side for side in (*entry.origins, entry.target) if side.parquet is None]
        await pool.open({world.workspace.domains[side.domain].connection for side in streams})
        engine = Engine(observer, options.master)
        describe_for(load, options.master)
        try:
            check = _archive_check() if len(streams) <= len(entry.origins) else _lane_check() if is_wide(entry) else Check
            return await check(world, pool, entry, options.listed, engine, observer).all()
        finally:
            await engine.close()


def _archive_check() -> type[Check]:
    """Where one side is an archive."""
    from jsplan.workflows.backfill.archive_check import ArchiveCheck  # noqa: PLC0415 - it is made of what is below

    return ArchiveCheck


def _lane_check() -> type[Check]:
    """Where messages were shaped, or are of many streams."""
    from jsplan.workflows.backfill.shaped_check import ShapedCheck  # noqa: PLC0415 - it is made of what is below

    return ShapedCheck


class Check:
    """One comparison: the range that state keeps, or that a run would pin now, then both sides of it."""

    def __init__(self, world: World, pool: Pool, entry: Backfill, listed: int, engine: Engine, observer: Observer) -> None:
        self.world = world
        self.pool = pool
        self.entry = entry
        self.listed = listed
        self.engine = engine
        self.observer = observer
        self.placed = False

    async def all(self) -> Verification:
        """What both sides say. Raises what `verify_backfill` raises."""
        record = await self.record()
        # Before Spark starts: its workers have the environment of now.
        every = [Ends.of_leg(self.world, self.pool, leg) for leg in record.origins]
        target = await target_info(every[0].target, self.entry.target.stream)
        legs, floors = [], {}
        for number, (leg, ends) in enumerate(zip(record.origins, every, strict=True)):
            origin = await target_info(ends.origin, leg.origin_address.stream)
            require_same(leg, origin, target)
            legs.append(self._compared(number, leg, ends, origin, target["config"]))
            placed = leg.strategy == "snapshot"  # at the sequences that they had: below the first one everything is gone
            first = int(target["state"]["first_seq"])
            floors[number] = first if placed else await asyncio.to_thread(floor_of, legs[-1], leg, ends, target)
            self.placed |= placed
        said, seconds = await self._compare(every, legs, target["state"], floors)
        return told(self.entry.name, record.origins, said, seconds, self.listed)

    async def record(self) -> Record:
        """What is compared: the range that state keeps, or that a run would pin now. Raises what `freeze` raises."""
        record = record_of(self.world, self.entry) or await freeze(self.world, self.pool, self.entry)
        if record.planned:
            await take_up(self.world, self.pool, self.entry, record, whole=not is_wide(self.entry))
        return record

    def _compared(self, number: int, leg: Leg, ends: Ends, origin: Config, target: Config) -> Compared:
        natives = self.natives(leg, target)
        return Compared(
            number, ends.identity, leg.origin_address.stream, leg.first, leg.last, tuple(leg.filters), from_text(leg.created),
            int(origin["state"]["last_seq"]), natives, bool(natives), tuple((first, last) for first, last in leg.gaps), tuple(leg.skipped),
            mark_of(ends.identity, leg.origin_address.stream, leg.created),
        )  # fmt: skip

    def natives(self, leg: Leg, target: Config) -> tuple[str, ...]:
        """How the target's own sources name the origin."""
        origin, to = leg.origin_address, leg.target_address
        reach = self.world.topology.reach
        real = self.world.topology.real(origin).domain
        found = [
            source
            for source in target.get("sources") or []
            if source["name"] == origin.stream and reach.leads_to(to.domain, (source.get("external") or {}).get("api")) == real
        ]
        way = reach.way(to.domain, origin.domain) if origin.domain != to.domain else None
        found.append({"name": origin.stream} | ({"external": {"api": way.api}} if way is not None and way.api else {}))
        return tuple(sorted({header_of(source)[0] for source in found}))

    async def _compare(self, ends: list[Ends], legs: list[Compared], state: Config, floors: dict[int, int]) -> tuple[list[Config], float]:
        session = await self.engine.session()
        from jsplan.backfill.spark.verify import compare  # noqa: PLC0415 - PySpark is imported when it is needed

        self.observer.phase(f"Comparing both sides of {self.entry.name}")
        started, stream = time.monotonic(), self.entry.target.stream
        first, way = max(1, int(state["first_seq"])), ends[0].target_way  # that of a stream that never had a message is 0
        sides = []
        if self.placed:
            sides, first = [partial(placed_rows, way, stream, legs[0])], max(first, legs[0].last + 1)
        sides.append(partial(target_rows, way, stream, first, int(state["last_seq"]), tuple(legs)))
        sides += [partial(origin_rows, end.source_way, leg) for end, leg in zip(ends, legs, strict=True)]
        title = f"jsplan backfill verify {self.entry.name}"
        said = await self.engine.call(lambda: compare(session, sides, floors, self.listed, title))
        return said, time.monotonic() - started


def floor_of(compared: Compared, leg: Leg, ends: Ends, target: Config) -> int:
    """Origins below this have expired at the target since they were copied: it has limits, and let go of its oldest."""
    config, state = target["config"], target["state"]
    if config.get("max_msgs_per_subject", -1) > 0:
        return leg.last + 1 if leg.status == "done" else 0  # what such a limit pushed out looks like anything else that is missing
    first, last = int(state["first_seq"]), int(state["last_seq"])
    if not any(config.get(limit, -1) > 0 for limit in _LIMITS) or first <= leg.target_next or leg.status != "done":
        return 0
    what = Range(ends.target_way.api_prefix, leg.target_address.stream, first, last, headers_only=True)
    for rows in read(ends.target_way.open, what) if first <= last else ():
        seqs = origin_of(rows["headers"], compared.domain, compared.stream)[0].drop_null()
        if len(seqs):
            return int(seqs[0].as_py())
    return leg.last + 1


def told(name: str, legs: Iterable[Leg], said: list[Config], seconds: float, listed: int) -> Verification:
    """What Spark found, as the document."""
    found = Verification(name, [LegCheck(leg.origin, leg.target, leg.first, leg.last) for leg in legs], seconds=seconds)
    for one in said:
        if one["leg"] < 0:
            found.others += one["count"]
            continue
        leg = found.origins[one["leg"]]
        if "count" in one:
            assert one["kind"] in COUNTED
            leg.counts[one["kind"]] += one["count"]
        else:
            missing = one["kind"] == "missing"
            leg.listed.append(Difference(one["kind"], leg.origin, one["seq"], 0 if missing else one["place"]))
    for leg in found.origins:
        leg.listed = sorted(leg.listed, key=lambda one: (one.origin_seq, one.target_seq))[:listed]
    return found
