"""Copies in partitions without Spark: the same readers, packers and writers in threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from jsplan.backfill.tasks.partition_writer import (
    PartitionWriter,
    copy_all_partitions,
    copy_partition,
)
from jsplan.backfill.tasks.partitioning import (
    BlockPacker,
    PartitionPlan,
    RowBlock,
    read_chunk,
    unpack_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def run_partitions(job: PartitionPlan) -> list[dict[str, Any]]:
    """Do what `spark.shaping.run` does for a job without SQL and functions."""
    assert job.where is None
    assert job.transform is None
    if job.has_single_reader:
        return list(copy_all_partitions(job))
    blocks: dict[int, list[RowBlock]] = {partition: [] for partition in range(len(job.partitions))}
    for block in () if job.is_fused else _read_blocks(job):
        blocks[block.partition_number].append(block)
    with ThreadPoolExecutor(len(job.partitions)) as threads:
        return list(
            threads.map(
                lambda partition: _write_partition(job, partition, blocks[partition]), blocks
            )
        )


def _read_blocks(job: PartitionPlan) -> Iterator[RowBlock]:
    for piece in job.split_into_chunks(4):
        packer = BlockPacker(job, piece.origin_number)
        for rows in read_chunk(job, piece):
            yield from packer.pack(rows)
        yield from packer.flush()


def _write_partition(job: PartitionPlan, partition: int, blocks: list[RowBlock]) -> dict[str, Any]:
    if job.is_fused:
        return list(copy_partition(job, partition))[-1]
    writer = PartitionWriter(job, partition)
    try:
        for block in sorted(blocks, key=lambda block: (block.origin_number, block.first_seq)):
            for rows in unpack_rows(block.rows):
                writer.write(block.origin_number, rows)
        return writer.finish()
    finally:
        writer.close()
