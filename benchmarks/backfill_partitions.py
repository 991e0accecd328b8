"""Partitioned copies for `backfill.py`: shuffled by subject, and twenty origins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
from backfill_bench import Bench

from jsplan.backfill.copier import Copier
from jsplan.backfill.origin_reader import load_origin
from jsplan.backfill.protocol import RawConnection, publish
from jsplan.backfill.protocol.stream_info import request_api
from jsplan.backfill.tasks.partitioning import TransformSpec
from jsplan.config.model import Backfill, BackfillSide

ORIGINS = 20


async def shuffled_staging(bench: Bench) -> float:
    """Read, shuffled by subject and written by two writers into staging streams."""
    bench.start()
    stages = [await bench.create_staging() for _ in range(2)]
    said = await bench.runner.run_partitions(bench.plan(stages, "subject"), "bench")
    seconds = bench.stop()
    assert sum(one.messages for one in said) == bench.count
    return seconds


async def shuffled(bench: Bench) -> float:
    """Run a whole backfill with `order: subject` and two partitions."""
    return await _whole(bench, (BackfillSide("leaf", "BENCH"),), "subject")


async def many_origins(bench: Bench) -> float:
    """Run a whole backfill of twenty streams that hold as many messages together."""
    return await _whole(
        bench,
        tuple(BackfillSide("leaf", f"BENCH{number:02d}") for number in range(ORIGINS)),
        "stream",
    )


async def many_sources(bench: Bench) -> float:
    """Copy with the server alone: a stream with those twenty as its sources."""
    sources = [
        {"name": f"BENCH{number:02d}", "external": {"api": "$JS.leaf.API"}}
        for number in range(ORIGINS)
    ]
    bench.start()
    await bench.hub.request("STREAM.CREATE.COPY", {"name": "COPY", "sources": sources})
    await bench.wait("COPY", bench.count)
    return bench.stop()


async def _whole(bench: Bench, origins: tuple[BackfillSide, ...], order: str) -> float:
    await bench.hub.request("STREAM.CREATE.COPY", {"name": "COPY", "subjects": ["others.>"]})
    entry = Backfill("bench", origins, BackfillSide("hub", "COPY"), order=order)
    bench.start()
    run, state = await bench.pin(entry)
    loaded = [await load_origin(bench.context, bench.pool, origin) for origin in state.origins]
    copy = Copier(run, loaded, TransformSpec(order), state.entry_hash)
    await copy.run()
    seconds = bench.stop()
    assert sum(result.copied for result in copy.results) == bench.count
    assert all(result.verified for result in copy.results)
    return seconds


def fill_many(connect: Callable[[], RawConnection], count: int, batch: Any) -> None:
    """Publish the messages of the benchmark, which `batch` makes, into twenty streams."""
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
    """Return the same messages under the subjects of another stream."""
    return pc.replace_substring(rows[0], b"bench.", f"{prefix}.".encode()), rows[1], rows[2]
