"""Partitioned copies for `backfill.py`: shuffled by subject, and twenty origins."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc

from jsplan.backfill.origin_copy import RunContext
from jsplan.backfill.partitioned_copy import PartitionedCopy, TransformSpec
from jsplan.backfill.pinning import Endpoints, pin_ranges
from jsplan.backfill.protocol import RawConnection, publish
from jsplan.backfill.protocol.stream_info import request_api
from jsplan.backfill.seq_ranges import SeqRange
from jsplan.backfill.tasks import staging_streams
from jsplan.backfill.tasks.copy import CopyTask
from jsplan.backfill.tasks.partitioning import Partition, PartitionPlan
from jsplan.config.model import Backfill, BackfillSide

ORIGINS = 20


async def shuffled_staging(bench: Any) -> float:
    """Read, shuffled by subject and written by two writers into staging streams."""
    started = time.monotonic()
    made = [
        await staging_streams.create(bench.hub, "bench", "leaf/stream/BENCH", "bench", {})
        for _ in range(2)
    ]
    ends = bench.ends()
    leg = CopyTask(
        ends.source_endpoint,
        "leaf",
        "BENCH",
        (SeqRange(1, bench.count),),
        (),
        ends.target_endpoint,
        "",
        made[0].name,
    )
    job = PartitionPlan(
        tuple(Partition(ends.target_endpoint, stage.name, stage.ingest_prefix) for stage in made),
        (leg,),
        "subject",
    )
    said = await bench.engine.lanes(job, "bench")
    seconds = time.monotonic() - started
    assert sum(one["messages"] for one in said) == bench.count
    return seconds


async def shuffled(bench: Any) -> float:
    """Run a whole backfill with `order: subject` and two partitions."""
    return await _whole(bench, (BackfillSide("leaf", "BENCH"),), "subject")


async def many_origins(bench: Any) -> float:
    """A whole backfill of twenty streams with as many messages together."""
    return await _whole(
        bench,
        tuple(BackfillSide("leaf", f"BENCH{number:02d}") for number in range(ORIGINS)),
        "stream",
    )


async def many_sources(bench: Any) -> float:
    """What the server itself does: a stream with those twenty as its sources."""
    sources = [
        {"name": f"BENCH{number:02d}", "external": {"api": "$JS.leaf.API"}}
        for number in range(ORIGINS)
    ]
    started = time.monotonic()
    await bench.hub.request("STREAM.CREATE.COPY", {"name": "COPY", "sources": sources})
    await bench.wait("COPY", bench.count)
    return time.monotonic() - started


async def _whole(bench: Any, origins: tuple[BackfillSide, ...], order: str) -> float:
    await bench.hub.request("STREAM.CREATE.COPY", {"name": "COPY", "subjects": ["others.>"]})
    entry = Backfill("bench", origins, BackfillSide("hub", "COPY"), order=order)
    started = time.monotonic()
    record = await pin_ranges(bench.world, bench.pool, entry)
    apis = {"hub": bench.hub, "leaf": bench.leaf}
    work = RunContext(
        entry,
        "bench/bench",
        record.text,
        bench.world.topology,
        apis,
        bench.engine,
        bench.observer,
        lambda seconds: seconds,
        lambda _code, _address: False,
    )
    wide = PartitionedCopy(
        work,
        TransformSpec(order),
        record.origins,
        [Endpoints.of_origin(bench.world, bench.pool, leg) for leg in record.origins],
        record.text,
    )
    await wide.run()
    seconds = time.monotonic() - started
    assert sum(result.copied for result in wide.results) == bench.count
    assert all(result.verified for result in wide.results)
    return seconds


def fill_many(connect: Callable[[], RawConnection], count: int, batch: Any) -> None:
    """The messages of the benchmark in twenty streams. `batch` makes so many, from a number on."""
    each = count // ORIGINS
    for number in range(ORIGINS):
        name, size = f"BENCH{number:02d}", each + (count - each * ORIGINS if number == 0 else 0)
        wire = connect()
        request_api(
            wire,
            "$JS.API",
            f"STREAM.CREATE.{name}",
            {"name": name, "subjects": [f"{name.lower()}.>"]},
        )
        publish(
            wire,
            (
                _under(batch(first, min(20_000, size - first)), name.lower())
                for first in range(0, size, 20_000)
            ),
        )
        wire.close()


def _under(rows: tuple[Any, Any, Any], prefix: str) -> tuple[Any, Any, Any]:
    """The same messages under subjects of another stream."""
    return pc.replace_substring(rows[0], b"bench.", f"{prefix}.".encode()), rows[1], rows[2]
