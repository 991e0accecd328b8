"""The run of a backfill: copies messages exactly once, under the lock of the state."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from msgspec import to_builtins

from jsplan.address import Address
from jsplan.backfill.copier import Copier
from jsplan.backfill.endpoints import export_endpoints
from jsplan.backfill.entry import is_joint_copy, reads_archive, resolve_entry
from jsplan.backfill.options import BackfillOptions
from jsplan.backfill.origin_reader import CopyOrigin, load_origin, require_distinct
from jsplan.backfill.parquet_export import ParquetExport
from jsplan.backfill.ranges import find_offline_domains, load_ranges
from jsplan.backfill.run_context import RunContext
from jsplan.backfill.spark_runner import SparkRunner
from jsplan.backfill.transforms import build_transform_spec
from jsplan.backfill.verify import require_equal_contents
from jsplan.config.model import LoadOptions
from jsplan.context import Session, hold_session, open_context
from jsplan.documents.backfill import BackfillResult
from jsplan.documents.types import Deferred
from jsplan.errors import ExitCode
from jsplan.facts.reader import read_object
from jsplan.options import Observer
from jsplan.planning.backfill.model import (
    BackfillState,
    DeadlinePassedError,
    OriginState,
    find_stored_state,
)
from jsplan.planning.backfill.strategy import may_need_no_spark
from jsplan.planning.hazard_permissions import is_permitted
from jsplan.units import format_timestamp

#: A copy of one or more origins. It can be run again after an error.
Copy = Copier | ParquetExport


async def run_backfill(
    load: LoadOptions, options: BackfillOptions, observer: Observer
) -> BackfillResult:
    """Run a backfill, as `workflows.backfill.run`.

    If it is cancelled, it stops Spark, saves the state and releases the lock.
    """
    async with open_context(load) as world:
        resolve_entry(world, options)
        async with (
            hold_session(world, "backfill", options.lock_timeout, observer) as session,
            copy_session(session, [options], options.master) as runner,
        ):
            return await BackfillRun(session, options, runner).execute()


@asynccontextmanager
async def copy_session(
    session: Session, wanted: Iterable[BackfillOptions], master: str | None = None
) -> AsyncIterator[SparkRunner]:
    """Open one session of the state and one Spark for all runs; the caller holds the lock.

    Connections are exported first, because workers of Spark inherit the environment at its start.
    Raises StateError.
    """
    world = session.context
    for options in wanted:
        export_endpoints(world, resolve_entry(world, options))
    await world.backend.start(world.state)
    runner = SparkRunner(session.observer, master)
    try:
        yield runner
    finally:
        await runner.close()
        await world.backend.finish(world.state)


class BackfillRun:
    """One run: the pinned range, then each copy."""

    def __init__(self, session: Session, options: BackfillOptions, runner: SparkRunner) -> None:
        world = self.world = session.context
        self.pool = session.pool
        self.observer = session.observer
        self.options = options
        self.runner = runner
        self.entry = resolve_entry(world, options)
        # Before any server is asked: its errors are those of the workspace.
        self.transforms = build_transform_spec(world.workspace.root, self.entry)

    async def execute(self) -> BackfillResult:
        """Copy the pending messages. Raises as `workflows.backfill.run`."""
        entry, result = self.entry, BackfillResult(self.entry.name)
        offline = await self._open_connections()
        if self._is_sure_to_need_spark():
            self.runner.warm_up()
        result.deferred = [
            Deferred(str(side), offline[side.domain])
            for side in entry.origins
            if side.domain in offline
        ]
        record, is_changed = await load_ranges(
            self.world, self.pool, entry, offline, reset=self.options.reset_range
        )
        if is_changed:
            await self._save_state(record)
        states = [
            origin
            for origin in record.origins
            if origin.archive or origin.origin_address.domain not in offline
        ]
        context = self._build_context(record)
        for group in [states] if is_joint_copy(entry) and states else [[one] for one in states]:
            copy = await self._create_copy(context, record, group)
            try:
                await self._run_copy(record, group, copy)
            except DeadlinePassedError:
                result.stopped = True
            result.origins += copy.results
            if result.stopped:
                break
        fails = result.gap_messages and self.options.fail_on_gap
        result.exit_code = int(
            ExitCode.PARTIAL if result.stopped else ExitCode.CHANGES if fails else ExitCode.OK
        )
        return result

    def _is_sure_to_need_spark(self) -> bool:
        """Check whether Spark will copy something, unless the servers refuse."""
        record = find_stored_state(self.world.state.backfills, self.entry)
        is_new = record is None or not record.done_at or self.options.reset_range
        return is_new and not may_need_no_spark(self.entry)

    async def _create_copy(
        self, context: RunContext, record: BackfillState, states: Sequence[OriginState]
    ) -> Copy:
        """Create the copy of these origins. Raises ArchiveError and RefusedError."""
        into_archive = self.entry.target.parquet is not None
        origins = [
            await load_origin(self.world, self.pool, state, into_archive=into_archive)
            for state in states
        ]
        if into_archive:
            return ParquetExport(self.world, context, origins[0], self.transforms)
        require_distinct(self.entry.name, origins)
        fingerprint = self._build_fingerprint(record, origins)
        return Copier(context, origins, self.transforms, fingerprint)

    def _build_fingerprint(self, record: BackfillState, origins: Sequence[CopyOrigin]) -> str:
        """Identify what is copied: the text of the entry, the ranges, and the origins."""
        if is_joint_copy(self.entry):
            return f"{record.entry_hash} {record.pinned_at} {self.transforms.fingerprint}"
        return f"{record.entry_hash} {origins[0].state.created}"

    async def _run_copy(
        self, record: BackfillState, states: Sequence[OriginState], copy: Copy
    ) -> None:
        """Run one copy, and save the progress of its origins, also after an error."""
        started, before = time.monotonic(), self.runner.start_seconds
        try:
            await copy.run()
            if copy.found_existing and any(state.status != "done" for state in states):
                session = Session(self.world, self.pool, self.observer)
                await require_equal_contents(session, self.entry, states, self.runner)
            for state, result in zip(states, copy.results, strict=True):
                state.status, state.skipped = "done", result.skipped or state.skipped
                state.gaps, state.gap_messages = result.gaps, result.gap_messages
        finally:
            # without the start of the JVM
            seconds = time.monotonic() - started - (self.runner.start_seconds - before)
            copied = sum(result.copied for result in copy.results)
            for state, result in zip(states, copy.results, strict=True):
                result.seconds = round(seconds, 3)
                state.copied += result.copied
                # A scan without a copy is no sample of a rate.
                state.seconds += seconds * result.copied / max(1, copied)
            if self._is_complete(record):
                record.done_at = format_timestamp()
            await self._save_state(record)

    def _is_complete(self, record: BackfillState) -> bool:
        """Check whether all origins were copied, also those that were offline before."""
        pinned = reads_archive(self.entry) or len(record.origins) >= len(self.entry.origins)
        done = all(state.status == "done" for state in record.origins)
        return done and (pinned or not is_joint_copy(self.entry))

    async def _open_connections(self) -> dict[str, str]:
        """Connect. Return the offline domains of origins that a later run may copy, with reasons.

        Raises ConnectError and ApiError if the target or all origins are offline.
        """
        domains, entry = self.world.workspace.domains, self.entry
        await self.pool.open(domain.connection for domain in domains.values())
        sides = [side for side in (*entry.origins, entry.target) if side.parquet is None]
        offline: dict[str, str] = {}
        if is_joint_copy(entry) and not reads_archive(entry):
            sides = [entry.target]
            offline = await find_offline_domains(self.world, self.pool, entry)
        for key in dict.fromkeys(side.domain for side in sides):
            await self.pool.api(domains[key]).request("INFO")
        await self.record_target_seen()
        return offline

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
            self.options.until,
        )

    async def _save_state(self, record: BackfillState) -> None:
        self.world.backend.append(self.world.state, {"backfill": to_builtins(record)})
        await self.world.backend.sync()
