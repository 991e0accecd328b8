"""backfill run: messages of one stream into another, exactly once, under the state's lock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

from jsplan.address import Address
from jsplan.backfill.ranges import Leg, Record
from jsplan.backfill.records import SKIPPED
from jsplan.backfill.windows import WindowClosedError
from jsplan.config.model import LoadOptions
from jsplan.documents.backfill import BackfillResult, LegResult
from jsplan.errors import ExitCode
from jsplan.facts.survey import read_object
from jsplan.jetstream import Pool
from jsplan.planning.hazards import permits
from jsplan.units import stamp
from jsplan.workflows.backfill.archiving import ArchiveRun
from jsplan.workflows.backfill.engine import Engine
from jsplan.workflows.backfill.freeze import entry_of, export_ends
from jsplan.workflows.backfill.hours import deadline_of, is_open, joined, until_open, until_past
from jsplan.workflows.backfill.job_document import describe_for
from jsplan.workflows.backfill.jobs import job_of
from jsplan.workflows.backfill.leg import LegRun, Work
from jsplan.workflows.backfill.options import BackfillOptions
from jsplan.workflows.backfill.taking_up import frozen, taken_up
from jsplan.workflows.backfill.wide import WideRun, is_wide
from jsplan.workflows.options import Observer
from jsplan.workflows.world import World, locked, open_pool, open_world


async def run_backfill(load: LoadOptions, options: BackfillOptions, observer: Observer) -> BackfillResult:
    """What `workflows.backfill.run` does. Cancelled, it stops Spark, saves the state and lets go of the lock.

    An entry with a window takes as many of them as it needs, and holds nothing between two.
    """
    whole: BackfillResult | None = None
    while True:
        found = None
        async with open_world(load) as world:
            entry, deadline = entry_of(world, options), None
            if is_open(entry, options.clock):
                deadline = deadline_of(entry, options.clock)
                found = await _run_once(world, load, options, observer)
        if found is None:
            await until_open(entry, options.clock, observer)
            continue  # the files may say something else by now
        whole = joined(whole, found, fail_on_gap=options.fail_on_gap)
        if not found.closed:
            return whole
        await until_past(deadline)
        options = replace(options, reset_range=False)


async def _run_once(world: World, load: LoadOptions, options: BackfillOptions, observer: Observer) -> BackfillResult:
    describe_for(load, options.master)
    async with (
        locked(world, "backfill", options.lock_timeout, observer),
        open_pool(world, read_only=False) as pool,
        copying(world, [options], observer, options.master) as engine,
    ):
        return await Run(world, pool, options, observer, engine).all()


@asynccontextmanager
async def copying(world: World, wanted: Iterable[BackfillOptions], observer: Observer, master: str | None = None) -> AsyncIterator[Engine]:
    """One writing session of the state and one Spark for all of the runs, under the lock that the caller holds.

    Connections are exported first: Spark's workers have the environment of the moment in which it starts. Raises StateError.
    """
    for options in wanted:
        export_ends(world, entry_of(world, options))
    await world.backend.start(world.state)
    engine = Engine(observer, master)
    try:
        yield engine
    finally:
        await engine.close()
        await world.backend.finish(world.state)


class Run:
    """One run: the range, then each origin."""

    def __init__(self, world: World, pool: Pool, options: BackfillOptions, observer: Observer, engine: Engine) -> None:
        self.world = world
        self.pool = pool
        self.options = options
        self.observer = observer
        self.engine = engine
        self.entry = entry_of(world, options)

    async def all(self) -> BackfillResult:
        """Copy what is missing. Raises what `workflows.backfill.run` raises."""
        if is_wide(self.entry):
            await taken_up(self.world, self.pool, self.entry, self._keep, reset_range=self.options.reset_range)
            return await WideRun(self, self._work, self._keep).all()
        await self._open()
        record = await taken_up(self.world, self.pool, self.entry, self._keep, reset_range=self.options.reset_range)
        record = record or await frozen(self.world, self.pool, self.entry, self._keep)
        result = BackfillResult(self.entry.name)
        work = self._work(record)
        for leg in record.origins:
            if leg.status == SKIPPED and not self.options.declined:
                continue
            job = await job_of(self.world, self.pool, work, leg)
            try:
                await self._leg(record, leg, job)
            except WindowClosedError:
                result.closed = True
            result.origins.append(job.result)
            if result.closed:
                break
        result.exit_code = int(ExitCode.CHANGES if result.gap_messages and self.options.fail_on_gap else ExitCode.OK)
        return result

    async def _leg(self, record: Record, leg: Leg, job: LegRun | ArchiveRun) -> LegResult:
        """Carry out one leg, and keep how far it came, also where it breaks off."""
        before = self.engine.start_took
        try:
            found = await job.run()
            found.seconds -= self.engine.start_took - before  # what a copy takes, not what a JVM does
            leg.status, leg.gaps, leg.gap_messages, leg.skipped = "done", found.gaps, found.gap_messages, found.skipped or leg.skipped
        finally:
            leg.copied += job.result.copied
            leg.seconds += job.result.seconds if job.result.copied else 0.0  # looking for what is missing tells no rate
            if all(each.status == "done" for each in record.origins):
                record.done_at = stamp()
            await self._keep(record)
        return found

    async def _open(self) -> None:
        domains = self.world.workspace.domains
        keys = {side.domain for side in (*self.entry.origins, self.entry.target) if side.parquet is None}
        await self.pool.open(domain.connection for domain in domains.values())
        for key in keys:
            await self.pool.api(domains[key]).request("INFO")
        await self.see_target()

    async def see_target(self) -> None:
        """Keep that the target is the one that state knows: after the updates of a run its server may report another `created`."""
        target = self.entry.target
        address = Address.of_stream(target.domain, target.stream)
        entry = self.world.state.resources.get(address)
        if target.parquet is not None or entry is None:
            return
        live = await read_object(self.pool.api(self.world.workspace.domains[target.domain]), address)
        if live is not None and live.created == entry.created and live.seen:
            self.world.backend.append(self.world.state, {"seen": {"address": str(address), "at": live.seen}})

    def _work(self, record: Record) -> Work:
        world, apis = self.world, {}
        for key, domain in world.workspace.domains.items():
            if domain.connection not in self.pool.failures:
                apis[key] = self.pool.api(domain)
        return Work(
            self.entry, f"{world.workspace.state_name}/{self.entry.name}", record.entry_hash, world.topology, apis, self.engine,
            self.observer, world.backend.may_write, lambda code, address: permits(self.options.allow_hazards, code, Address.parse(address)),
            deadline_of(self.entry, self.options.clock),
        )  # fmt: skip

    async def _keep(self, record: Record) -> None:
        self.world.backend.append(self.world.state, {"backfill": record.to_json()})
        await self.world.backend.sync()
