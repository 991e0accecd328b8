"""A task runner without Spark: the same readers and writers, in threads."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec.structs import replace

from jsplan.backfill.spark.pipeline import split_rows
from jsplan.backfill.spark_runner import SparkRunner
from jsplan.backfill.tasks.partition_writer import PartitionResult, PartitionWriter, copy_partitions
from jsplan.backfill.tasks.partitioning import (
    PARTITIONED_SCHEMA,
    PartitionPlan,
    add_partition_numbers,
    read_chunk,
)
from jsplan.planning.backfill.model import SeqRange
from tests.support.simulated_kill import SimulatedKill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jsplan.backfill.rows import Comparison
    from jsplan.backfill.spark_runner import Task
    from jsplan.options import Observer


@contextmanager
def use_runner(runner: Callable[[Observer, str | None], SparkRunner]) -> Iterator[None]:
    """Run tasks with another runner than Spark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jsplan.backfill.run.SparkRunner", runner)
        yield


class ThreadRunner(SparkRunner):
    """Runs tasks in threads. It has two slots, also on a machine with one core."""

    def warm_up(self) -> None:
        """Do nothing: threads need no start."""

    async def start(self) -> None:
        """Do nothing: threads need no start."""

    async def close(self) -> None:
        """Do nothing: each task has ended."""

    async def compare(
        self,
        comparison: Comparison,
        listed: int,
        name: str,  # noqa: ARG002 - as `SparkRunner`
    ) -> list[dict[str, Any]]:
        """Compare the contents of messages that both sides have; not those of transformed ones."""
        sides: dict[int, dict[tuple[int, int], tuple[int, int]]] = {0: {}, 1: {}}
        for reader in comparison.readers if comparison.plan is None else ():
            for batch in await asyncio.to_thread(list, reader()):
                for row in batch.to_pylist():
                    key = row["origin_number"], row["seq"]
                    sides[row["side"]][key] = row["digest"], row["place"]
        found: list[dict[str, Any]] = [
            {"origin_number": key[0], "kind": "different", "seq": key[1], "place": place}
            for key, (digest, place) in sides[1].items()
            if key in sides[0] and sides[0][key][0] != digest
        ]
        counts = Counter(each["origin_number"] for each in found)
        return found[:listed] + [
            {"origin_number": number, "kind": "different", "count": count}
            for number, count in counts.items()
        ]

    async def count_slots(self) -> int:
        """Return 2."""
        return 2

    async def run_one(self, task: Task, name: str) -> list[Any]:
        """Run one task."""
        return (await self.run([task], name))[0]

    async def run(self, tasks: Sequence[Task], name: str) -> list[list[Any]]:  # noqa: ARG002 - as above
        """Run each task to its end, one after the other."""
        return [await asyncio.to_thread(_run_task, task) for task in tasks]

    async def run_partitions(self, plan: PartitionPlan, name: str) -> list[Any]:  # noqa: ARG002 - as above
        """Copy in partitions, with a writer for each."""
        return await asyncio.to_thread(run_partitions, plan)


def run_then(action: Callable[[], None]) -> type[ThreadRunner]:
    """Return a runner with an action between the writing tasks and what follows them."""
    pending = [action]

    class Runner(ThreadRunner):
        async def run(self, tasks: Sequence[Task], name: str) -> list[list[Any]]:
            found = await super().run(tasks, name)
            await self._act()
            return found

        async def run_partitions(self, plan: PartitionPlan, name: str) -> list[Any]:
            found = await super().run_partitions(plan, name)
            await self._act()
            return found

        async def _act(self) -> None:
            while pending:
                await asyncio.to_thread(pending.pop())

    return Runner


class DyingRunner(ThreadRunner):
    """Dies after its partitions have written the origin's messages up to a sequence."""

    last = 0

    async def run_partitions(self, plan: PartitionPlan, name: str) -> list[Any]:
        """Copy the first messages, then die."""
        tasks = tuple(
            replace(task, spans=(SeqRange(task.spans[0].first, self.last),))
            for task in plan.origin_tasks
        )
        await super().run_partitions(replace(plan, origin_tasks=tasks), name)
        raise SimulatedKill


def _run_task(task: Task) -> list[Any]:
    return list(task())


def run_partitions(plan: PartitionPlan) -> list[PartitionResult]:
    """Run a plan that needs neither SQL nor a function, with several writers at the same time."""
    assert plan.transforms.where is None
    assert plan.transforms.transform is None
    if plan.has_single_reader:
        return list(copy_partitions(plan))
    numbers = range(len(plan.partitions))
    if plan.is_fused:
        with ThreadPoolExecutor(len(numbers)) as threads:
            found = list(threads.map(lambda number: list(copy_partitions(plan, number)), numbers))
            return [result for of_task in found for result in of_task]
    rows = pa.Table.from_batches(_read_rows(plan), PARTITIONED_SCHEMA)
    rows = rows.sort_by([("origin_number", "ascending"), ("seq", "ascending")])
    with ThreadPoolExecutor(len(numbers)) as threads:
        return list(threads.map(lambda number: _write_partition(plan, number, rows), numbers))


def _read_rows(plan: PartitionPlan) -> Iterator[pa.RecordBatch]:
    for chunk in plan.split_into_chunks(4):
        for rows in read_chunk(plan, chunk):
            numbers = np.full(rows.num_rows, chunk.origin_number)
            yield add_partition_numbers(plan, numbers, rows)


def _write_partition(plan: PartitionPlan, number: int, rows: pa.Table) -> PartitionResult:
    writer = PartitionWriter(plan, number)
    try:
        for batch in rows.filter(pc.field("partition_number") == number).to_batches():
            for _, origin, part in split_rows(batch):
                writer.write(origin, part)
        return writer.finish()
    finally:
        writer.close()
