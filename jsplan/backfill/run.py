"""The run of a backfill: copies messages exactly once, under the lock of the state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

from jsplan.address import Address
from jsplan.backfill.copy_factory import create_copy
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
    """Run a backfill, as `workflows.backfill.run`.

    If it is cancelled, it stops Spark, saves the state and releases the lock. An entry with a
    window takes as many windows as it needs, and holds no lock, connection or Spark in between.
    """
    merged: BackfillResult | None = None
    while True:
        result = None
        async with open_context(load) as world:
            entry, deadline = resolve_entry(world, options), None
            if is_window_open(entry, options.clock):
                deadline = find_deadline(entry, options.clock)
                result = await _run_once(world, load, options, observer)
        if result is None:
            await wait_until_open(entry, options.clock, observer)
            continue  # the files may have changed
        merged = merge_results(merged, result, fail_on_gap=options.fail_on_gap)
        if not result.closed:
            return merged
        await wait_past(deadline)
        options = replace(options, reset_range=False)


async def _run_once(
    world: Context, load: LoadOptions, options: BackfillOptions, observer: Observer
) -> BackfillResult:
    declare_connections(load, options.master)
    async with (
        hold_lock(world, "backfill", options.lock_timeout, observer),
        open_pool(world, read_only=False) as pool,
        copy_session(world, [options], observer, options.master) as runner,
    ):
        return await BackfillRun(world, pool, options, observer, runner).execute()


@asynccontextmanager
async def copy_session(
    world: Context, wanted: Iterable[BackfillOptions], observer: Observer, master: str | None = None
) -> AsyncIterator[SparkRunner]:
    """Open one session of the state and one Spark for all runs; the caller holds the lock.

    Connections are exported first, because workers of Spark inherit the environment at its start.
    Raises StateError.
    """
    for options in wanted:
        export_endpoints(world, resolve_entry(world, options))
    await world.backend.start(world.state)
    runner = SparkRunner(observer, master)
    try:
        yield runner
    finally:
        await runner.close()
        await world.backend.finish(world.state)


class BackfillRun:
    """One run: the range, then each origin."""

    def __init__(
        self,
        world: Context,
        pool: Pool,
        options: BackfillOptions,
        observer: Observer,
        runner: SparkRunner,
    ) -> None:
        self.world = world
        self.pool = pool
        self.options = options
        self.observer = observer
        self.runner = runner
        self.entry = resolve_entry(world, options)

    async def execute(self) -> BackfillResult:
        """Copy the pending messages. Raises as `workflows.backfill.run`."""
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
        context = self._build_context(record)
        for origin in record.origins:
            copy = await create_copy(self.world, self.pool, context, origin)
            try:
                await self._run_origin(record, origin, copy)
            except WindowClosedError:
                result.closed = True
            result.origins.append(copy.result)
            if result.closed:
                break
        result.exit_code = int(
            ExitCode.CHANGES if result.gap_messages and self.options.fail_on_gap else ExitCode.OK
        )
        return result

    async def _run_origin(
        self, record: BackfillState, origin: OriginState, copy: OriginCopy | ParquetExport
    ) -> OriginResult:
        """Copy one origin, and save its progress, also after an error."""
        before = self.runner.start_seconds
        try:
            result = await copy.run()
            result.seconds -= self.runner.start_seconds - before  # without the start of the JVM
            origin.status, origin.gaps, origin.gap_messages, origin.skipped = (
                "done",
                result.gaps,
                result.gap_messages,
                result.skipped or origin.skipped,
            )
        finally:
            origin.copied += copy.result.copied
            # A scan without a copy is no sample of a rate.
            origin.seconds += copy.result.seconds if copy.result.copied else 0.0
            if all(other.status == "done" for other in record.origins):
                record.done_at = format_timestamp()
            await self._save_state(record)
        return result

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
        """Record that the target is the one in state: updates may change its `created`."""
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
