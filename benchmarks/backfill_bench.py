"""Servers, workspace and parts of a copy, shared by the benchmarks of backfills."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from cpu_time import read_cpu_seconds

from jsplan.backfill.endpoints import Endpoints
from jsplan.backfill.ranges import load_ranges
from jsplan.backfill.run_context import RunContext
from jsplan.backfill.spark_runner import SparkRunner
from jsplan.backfill.tasks import staging_streams
from jsplan.backfill.tasks.origin_task import OriginTask
from jsplan.backfill.tasks.partitioning import Partition, PartitionPlan, TransformSpec
from jsplan.backfill.tasks.staging_streams import StagingStream
from jsplan.config.model import Backfill
from jsplan.context import Context
from jsplan.jetstream import Pool
from jsplan.options import NullObserver
from jsplan.planning.backfill.model import BackfillState, SeqRange
from jsplan.sandbox import Sandbox


class StrictObserver(NullObserver):
    """An observer that shows nothing and accepts no warning."""

    def warn(self, text: str) -> None:
        """Raise: a benchmark in which something goes wrong measures something else."""
        raise SystemExit(f"the copy met a problem: {text}")


class Bench:
    """The stream BENCH in the leaf, and what copies it into the hub."""

    def __init__(
        self, sandbox: Sandbox, context: Context, pool: Pool, runner: SparkRunner, count: int
    ) -> None:
        self.sandbox, self.context, self.pool = sandbox, context, pool
        self.runner, self.count = runner, count
        domains = context.workspace.domains
        self.hub, self.leaf = (pool.api(domains[key]) for key in ("hub", "leaf"))
        self.worker = 0.0
        self.cpu: dict[str, float] = {}
        self._started = (0.0, self.cpu)
        self.observer = StrictObserver()

    def start(self) -> None:
        """Begin to measure."""
        self._started = (time.monotonic(), self._read_cpu())

    def stop(self, messages: int | None = None) -> float:
        """Return the seconds since `start`. `cpu` has the us per message since, by program."""
        began, cpu = self._started
        seconds, count = time.monotonic() - began, messages or self.count
        self.cpu = {name: 1e6 * (now - cpu[name]) / count for name, now in self._read_cpu().items()}
        return seconds

    def _read_cpu(self) -> dict[str, float]:
        return read_cpu_seconds(server.pid for server in self.sandbox.servers.values())

    def endpoints(self) -> Endpoints:
        """Return both sides as tasks reach them."""
        domains = self.context.workspace.domains
        return Endpoints.of_domains(self.context, self.pool, domains["leaf"], domains["hub"])

    async def pin(self, entry: Backfill) -> tuple[RunContext, BackfillState]:
        """Pin the range of an entry; return what its copies share, and the state."""
        state, _ = await load_ranges(self.context, self.pool, entry, reset=True)
        run = RunContext(
            entry,
            f"bench/{entry.name}",
            state.entry_hash,
            self.context.topology,
            {"hub": self.hub, "leaf": self.leaf},
            self.runner,
            self.observer,
            lambda seconds: seconds,
            lambda _code, _address: False,
        )
        return run, state

    async def create_staging(self) -> StagingStream:
        """Create a staging stream in the hub."""
        return await staging_streams.create(self.hub, "bench", "leaf/stream/BENCH", "bench", {})

    def plan(self, stages: Sequence[StagingStream], order: str = "stream") -> PartitionPlan:
        """Return the plan that copies BENCH into staging streams."""
        endpoints = self.endpoints()
        task = OriginTask(endpoints.source_endpoint, "leaf", "BENCH", (SeqRange(1, self.count),))
        partitions = tuple(
            Partition(endpoints.target_endpoint, stage.name, stage.ingest_prefix)
            for stage in stages
        )
        return PartitionPlan(partitions, (task,), TransformSpec(order), (0,))

    async def clean(self) -> None:
        """Delete every copy, and wait until the server has settled."""
        for name in await self.hub.stream_names():
            await self.hub.request(f"STREAM.DELETE.{name}")
        await asyncio.sleep(1)

    async def wait(self, stream: str, count: int) -> None:
        """Wait until a stream of the hub has so many messages."""
        while True:
            if (await self.hub.request(f"STREAM.INFO.{stream}"))["state"]["messages"] >= count:
                return
            await asyncio.sleep(0.01)
