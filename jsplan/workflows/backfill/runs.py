"""backfill run: messages of one stream into another, exactly once, under the state's lock."""

from __future__ import annotations

from collections.abc import Sequence

from jsplan.address import Address
from jsplan.backfill.ranges import Leg, Record
from jsplan.config.model import LoadOptions
from jsplan.documents.backfill import BackfillResult, LegResult
from jsplan.errors import ExitCode
from jsplan.jetstream import Pool
from jsplan.planning.hazards import permits
from jsplan.units import stamp
from jsplan.workflows.backfill.engine import Engine
from jsplan.workflows.backfill.freeze import Ends, entry_of, freeze, record_of
from jsplan.workflows.backfill.leg import LegRun, Work
from jsplan.workflows.backfill.options import BackfillOptions
from jsplan.workflows.options import Observer
from jsplan.workflows.world import World, locked, open_pool, open_world


async def run_backfill(load: LoadOptions, options: BackfillOptions, observer: Observer) -> BackfillResult:
    """What `workflows.backfill.run` does. Cancelled, it stops Spark, saves the state and lets go of the lock."""
    async with open_world(load) as world:
        entry_of(world, options)
        async with locked(world, "backfill", options.lock_timeout, observer), open_pool(world, read_only=False) as pool:
            await world.backend.start(world.state)
            engine = Engine(observer, options.master)
            try:
                return await _Run(world, pool, options, observer, engine).all()
            finally:
                await engine.close()
                await world.backend.finish(world.state)


async def run_within(world: World, pool: Pool, names: Sequence[str], allow: tuple[str, ...], observer: Observer) -> list[BackfillResult]:
    """Entries one after the other on one Spark session, under the lock that the caller holds. Raises what a run raises, of the first that
    fails; what was done before it is in the state.
    """
    await world.backend.start(world.state)
    engine = Engine(observer, None)
    try:
        options = (BackfillOptions(name=name, allow_hazards=allow) for name in names)
        return [await _Run(world, pool, one, observer, engine).all() for one in options]
    finally:
        await engine.close()
        await world.backend.finish(world.state)


class _Run:
    """One run: the range, then each origin."""

    def __init__(self, world: World, pool: Pool, options: BackfillOptions, observer: Observer, engine: Engine) -> None:
        self.world = world
        self.pool = pool
        self.options = options
        self.observer = observer
        self.engine = engine
        self.entry = entry_of(world, options)

    async def all(self) -> BackfillResult:
        await self._open()
        record = record_of(self.world, self.entry)
        if record is None or self.options.fresh:
            record = await freeze(self.world, self.pool, self.entry)
            await self._keep(record)
        result = BackfillResult(self.entry.name)
        work = self._work(record)
        every = [self._ends(leg) for leg in record.legs]  # before Spark starts: its workers have the environment of now
        for leg, ends in zip(record.legs, every, strict=True):
            result.legs.append(await self._leg(record, leg, LegRun(work, leg, ends)))
        result.exit_code = int(ExitCode.CHANGES if result.gap_messages and self.options.fail_on_gap else ExitCode.OK)
        return result

    async def _leg(self, record: Record, leg: Leg, job: LegRun) -> LegResult:
        """Carry out one leg, and keep how far it came, also where it breaks off."""
        before = self.engine.start_took
        try:
            found = await job.run()
            found.seconds -= self.engine.start_took - before  # what a copy takes, not what a JVM does
            leg.status, leg.gaps, leg.gap_messages, leg.skipped = "done", found.gaps, found.gap_messages, found.skipped or leg.skipped
        finally:
            leg.copied += job.result.copied
            if all(each.status == "done" for each in record.legs):
                record.done_at = stamp()
            await self._keep(record)
        return found

    async def _open(self) -> None:
        domains = self.world.workspace.domains
        keys = {side.domain for side in (*self.entry.origins, self.entry.target)}
        await self.pool.open(domain.connection for domain in domains.values())
        for key in keys:
            await self.pool.api(domains[key]).request("INFO")

    def _ends(self, leg: Leg) -> Ends:
        domains = self.world.workspace.domains
        origin, target = Address.parse(leg.origin), Address.parse(leg.target)
        return Ends.of(self.world, self.pool, domains[origin.domain], domains[target.domain])

    def _work(self, record: Record) -> Work:
        world, apis = self.world, {}
        for key, domain in world.workspace.domains.items():
            if domain.connection not in self.pool.failures:
                apis[key] = self.pool.api(domain)
        return Work(
            self.entry, f"{world.workspace.state_name}/{self.entry.name}", record.text, world.topology, apis, self.engine, self.observer,
            world.backend.may_write, lambda code, address: permits(self.options.allow_hazards, code, Address.parse(address)),
        )  # fmt: skip

    async def _keep(self, record: Record) -> None:
        self.world.backend.append(self.world.state, {"backfill": record.to_json()})
        await self.world.backend.sync()
