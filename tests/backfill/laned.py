"""Copies in lanes without Spark: the very same readers, packers and writers, in threads of this process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from jsplan.backfill.job.lane_writing import LaneWriter, write_dealt, write_fused
from jsplan.backfill.job.lanes import Block, Job, Packer, read_piece, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterator


def carried_out(job: Job) -> list[dict[str, Any]]:
    """What `spark.shaping.run` does for a job that needs neither SQL nor a function: several writers at the same time."""
    assert job.where is None
    assert job.transform is None
    if job.dealt:
        return list(write_dealt(job))
    blocks: dict[int, list[Block]] = {lane: [] for lane in range(len(job.lanes))}
    for block in () if job.fused else _blocks(job):
        blocks[block.lane].append(block)
    with ThreadPoolExecutor(len(job.lanes)) as threads:
        return list(threads.map(lambda lane: _written(job, lane, blocks[lane]), blocks))


def _blocks(job: Job) -> Iterator[Block]:
    for piece in job.pieces(4):
        packer = Packer(job, piece.leg)
        for rows in read_piece(job, piece):
            yield from packer.take(rows)
        yield from packer.rest()


def _written(job: Job, lane: int, blocks: list[Block]) -> dict[str, Any]:
    if job.fused:
        return list(write_fused(job, lane))[-1]
    writer = LaneWriter(job, lane)
    try:
        for block in sorted(blocks, key=lambda block: (block.leg, block.first)):
            for rows in unpacked(block.rows):
                writer.take(block.leg, rows)
        return writer.finish()
    finally:
        writer.close()
