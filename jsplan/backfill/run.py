"""backfill run: messages of one stream into another, exactly once, under the state's lock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

from jsplan.address import Address
from jsplan.backfill.copy_factory import create_copy
from jsplan.backfill.model import SKIPPED
from jsplan.backfill.options import BackfillOptions
from jsplan.backfill.origin_copy import OriginCopy, RunContext
from jsplan.backfill.parquet.export import ParquetExport
from jsplan.backfill.partitioned_run import PartitionedRun, needs_partitions
from jsplan.backfill.pinned_ranges import load_or_complete, pin_and_save
from jsplan.backfill.pinning import export_endpoints, resolve_entry
from jsplan.backfill.schedule import (
    find_deadline,
    is_window_open,
    merge_results,
    wait_past,
    wait_until_open,
)
from jsplan.backfill.seq_ranges import BackfillState, OriginState
from jsplan.backfill.spark_job_workspace import declare_connections
from jsplan.backfill.spark_runner import SparkRunner
from jsplan.backfill.windows import WindowClosedError
from jsplan.config.model import LoadOptions
from jsplan.context import Context, hold_lock, open_context, open_pool
from jsplan.documents.backfill import BackfillResult, OriginResult
from jsplan.errors import ExitCode
from jsplan.facts.reader import read_object
from jsplan.jetstream import Pool
from jsplan.options import Observer
from jsplan.planning.hazards import is_permitted
from jsplan.units import format_timestamp


async def run_backfill(
    load: LoadOptions, options: BackfillOptions, observer: Observer
) -> BackfillResult:
    """What `workflows.backfill.run` does. Cancelled, it stops Spark, saves the state and lets go of the lock.

    An entry with a window takes as many of them as it needs, and holds nothing between two.
    """
    whole: BackfillResult | None = None
    while True:
        found = None
        async with open_context(load) as world:
            entry, deadline = resolve_entry(world, options), None
            if is_window_open(entry, options.clock):
                deadline = find_deadline(entry, options.clock)
                found = await _run_once(world, load, options, observer)
        if found is None:
            await wait_until_open(entry, options.clock, observer)
            continue  # the files may say something else by now
        whole = merge_results(whole, found, fail_on_gap=options.fail_on_gap)
        if not found.closed:
            return whole
        await wait_past(deadline)
        options = replace(options, reset_range=False)


async def _run_once(
    world: Context, load: LoadOptions, options: BackfillOptions, observer: Observer
) -> BackfillResult:
    declare_connections(load, options.master)
    async with (
        hold_lock(world, "backfill", options.lock_timeout, observer),
        open_pool(world, read_only=False) as pool,
        copy_session(world, [options], observer, options.master) as engine,
    ):
        return await BackfillRun(world, pool, options, observer, engine).execute()


@asynccontextmanager
async def copy_session(
    world: Context, wanted: Iterable[BackfillOptions], observer: Observer, master: str | None = None
) -> AsyncIterator[SparkRunner]:
    """One writing session of the state and one Spark for all of the runs, under the lock that the caller holds.

    Connections are exported first: Spark's workers have the environment of the moment in which it starts. Raises StateError.
    """
    for options in wanted:
        export_endpoints(world, resolve_entry(world, options))
    await world.backend.start(world.state)
    engine = SparkRunner(observer, master)
    try:
        yield engine
    finally:
        await engine.close()
        await world.backend.finish(world.state)


class BackfillRun:
    """One run: the range, then each origin."""

    def __init__(
        self,
        world: Context,
        pool: Pool,
        options: BackfillOptions,
        observer: Observer,
        engine: SparkRunner,
    ) -> None:
        self.world = world
        self.pool = pool
        self.options = options
        self.observer = observer
        self.runner = engine
        self.entry = resolve_entry(world, options)

    async def execute(self) -> BackfillResult:
        """Copy what is missing. Raises what `workflows.backfill.run` raises."""
        if needs_partitions(self.entry):
            await load_or_complete(
                self.world,
                self.pool,
                self.entry,
                self._save_state,
                reset_range=self.options.reset_range,
            )
            return await PartitionedRun(self, self._build_context, self._save_state).execute()
        await self._open_connections()
        record = await load_or_complete(
            self.world,
            self.pool,
            self.entry,
            self._save_state,
            reset_range=self.options.reset_range,
        )
        record = record or await pin_and_save(self.world, self.pool, self.entry, self._save_state)
        result = BackfillResult(self.entry.name)
        work = self._build_context(record)
        for leg in record.origins:
            if leg.status == SKIPPED and not self.options.include_skipped:
                continue
            job = await create_copy(self.world, self.pool, work, leg)
            try:
                await self._run_origin(record, leg, job)
            except WindowClosedError:
                result.closed = True
            result.origins.append(job.result)
            if result.closed:
                break
        result.exit_code = int(
            ExitCode.CHANGES if result.gap_messages and self.options.fail_on_gap else ExitCode.OK
        )
        return result

    async def _run_origin(
        self, record: BackfillState, leg: OriginState, job: OriginCopy | ParquetExport
    ) -> OriginResult:
        """Carry out one leg, and keep how far it came, also where it breaks off."""
        before = self.runner.start_seconds
        try:
            found = await job.run()
            found.seconds -= (
                self.runner.start_seconds - before
            )  # what a copy takes, not what a JVM does
            leg.status, leg.gaps, leg.gap_messages, leg.skipped = (
                "done",
                found.gaps,
                found.gap_messages,
                found.skipped or leg.skipped,
            )
        finally:
            leg.copied += job.result.copied
            leg.seconds += (
                job.result.seconds if job.result.copied else 0.0
            )  # looking for what is missing tells no rate
            if all(each.status == "done" for each in record.origins):
                record.done_at = format_timestamp()
            await self._save_state(record)
        return found

    async def _open_connections(self) -> None:
        domains = self.world.workspace.domains
        keys = {
            side.domain for side in (*self.entry.origins, self.entry.target) if side.parquet is None
        }
        await self.pool.open(domain.connection for domain in domains.values())
        for key in keys:
            await self.pool.api(domains[key]).request("INFO")
        await self.record_target_seen()

    async def record_target_seen(self) -> None:
        """Keep that the target is the one that state knows: after the updates of a run its server may report another `created`."""
        target = self.entry.target
        address = Address.of_stream(target.domain, target.stream)
        entry = self.world.state.resources.get(address)
        if target.parquet is not None or entry is None:
            return
        live = await read_object(
            self.pool.api(self.world.workspace.domains[target.domain]), address
        )
        if live is not None and live.created == entry.created and live.answered_at:
            self.world.backend.append(
                self.world.state, {"seen": {"address": str(address), "at": live.answered_at}}
            )

    def _build_context(self, record: BackfillState) -> RunContext:
        world, apis = self.world, {}
        for key, domain in world.workspace.domains.items():
            if domain.connection not in self.pool.failures:
                apis[key] = self.pool.api(domain)
        return RunContext(
            self.entry,
            f"{world.workspace.state_name}/{self.entry.name}",
            record.entry_hash,
            world.topology,
            apis,
            self.runner,
            self.observer,
            world.backend.may_write,
            lambda code, address: is_permitted(
                self.options.allow_hazards, code, Address.parse(address)
            ),
            find_deadline(self.entry, self.options.clock),
        )

    async def _save_state(self, record: BackfillState) -> None:
        self.world.backend.append(self.world.state, {"backfill": record.to_json()})
        await self.world.backend.sync()
