"""Measure the speed of backfills.

Compared with the server's mirror of the same stream, snapshot and restore, and a nats-py loop.

A hub and a leaf on this machine, linked as leafnodes; the stream is in the leaf, its copies in the
hub. Each has a connection of its own, or with `--through-hub` the leaf is read through the hub.
All paths take turns in one run, so that ratios hold also where absolute figures move; every copy is
deleted before the next one begins, Spark is warm.

    python benchmarks/backfill.py [--repeat 5] [--messages 1000000] [--large 100000]

Prints one JSON document: messages per second (median of the runs), the ratio of each path to the
mirror of the same turn (median, lowest, highest), the CPU time of each program per message, and the
peak resident MiB of the Python worker that copied.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import nats
import numpy as np
import pyarrow as pa
from backfill_bench import Bench, StrictObserver
from backfill_partitions import fill_many, many_origins, many_sources, shuffled, shuffled_staging
from backfill_strategies import whole_by_auto
from cpu_time import PROGRAMS

from jsplan.backfill.copier import Copier
from jsplan.backfill.origin_reader import load_origin
from jsplan.backfill.protocol import RawConnection, publish
from jsplan.backfill.spark_runner import SparkRunner
from jsplan.backfill.tasks import staging_streams
from jsplan.backfill.tasks.partition_writer import copy_partitions
from jsplan.backfill.tasks.partitioning import PartitionPlan, TransformSpec
from jsplan.backfill.verify import verify_entry
from jsplan.config.model import LoadOptions
from jsplan.context import Session, open_context, open_pool
from jsplan.jetstream.contexts import ConnectionSettings
from jsplan.jetstream.snapshots import open_snapshot, restore_stream
from jsplan.sandbox import Sandbox

SUBJECTS, BATCH, LOOP = 100, 20_000, 20_000
#: Path by name: what is timed. Each leaves its copy as COPY in the hub, or as a staging stream.
Path_ = Callable[["Bench"], Awaitable[float]]


async def mirror(bench: Bench) -> float:
    """The server's own replication."""
    bench.start()
    config = {"name": "COPY", "mirror": {"name": "BENCH", "external": {"api": "$JS.leaf.API"}}}
    await bench.hub.request("STREAM.CREATE.COPY", config)
    await bench.wait("COPY", bench.count)
    return bench.stop()


async def snapshot_restore(bench: Bench) -> float:
    """STREAM.SNAPSHOT at the leaf, STREAM.RESTORE in the hub, through this process."""
    bench.start()
    async with open_snapshot(bench.leaf, "BENCH") as taken:
        await restore_stream(bench.hub, taken.config, taken.state, taken.chunks)
    return bench.stop()


async def loop(bench: Bench) -> float:
    """Copy a part with a plain script; return the seconds that the whole stream would take."""
    urls = {name: bench.sandbox[name] for name in ("hub", "leaf")}
    remote = await nats.connect(
        urls["leaf"].url, user=urls["leaf"].user, password=urls["leaf"].password
    )
    home = await nats.connect(urls["hub"].url, user=urls["hub"].user, password=urls["hub"].password)
    await bench.hub.request("STREAM.CREATE.COPY", {"name": "COPY", "subjects": ["loop.>"]})
    source = await remote.jetstream().pull_subscribe("", durable="loop", stream="BENCH")
    target, done, count = home.jetstream(), 0, min(LOOP, bench.count)
    bench.start()
    while done < count:
        for message in await source.fetch(1000):
            await target.publish(f"loop.{message.subject}", message.data, headers=message.headers)
            await message.ack()
            done += 1
    seconds = bench.stop(done)
    await remote.jetstream().delete_consumer("BENCH", "loop")
    await remote.close()
    await home.close()
    return seconds * bench.count / done


def measured(plan: PartitionPlan) -> Iterator[Any]:
    """The task of a copy, and how much memory its process had at most."""
    yield from copy_partitions(plan, 0)
    yield {"memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


async def staging(bench: Bench) -> float:
    """The fused Spark task of a backfill, from the leaf into a staging stream in the hub."""
    bench.start()
    stage = await bench.create_staging()
    said = (await bench.runner.run([partial(measured, bench.plan([stage]))], "bench"))[0]
    seconds = bench.stop()
    assert (
        said[-2].messages
        == bench.count
        == (await staging_streams.refresh(bench.hub, stage)).messages
    )
    bench.worker = max(bench.worker, said[-1]["memory"])
    return seconds


async def verify(bench: Bench) -> float:
    """Run `backfill verify` after a whole copy."""
    await end_to_end(bench)
    bench.start()
    entry = bench.context.workspace.backfills["bench"]
    found = await verify_entry(
        Session(bench.context, bench.pool, StrictObserver()), entry, 20, bench.runner
    )
    assert found.origins[0].counts["equal"] == bench.count, found
    return bench.stop()


async def end_to_end(bench: Bench) -> float:
    """Run a whole backfill into a stream that has another writer."""
    await bench.hub.request("STREAM.CREATE.COPY", {"name": "COPY", "subjects": ["others.>"]})
    ended = threading.Event()
    hub = bench.sandbox["hub"]
    writer = threading.Thread(target=_publish, args=(_target(hub), ended))
    writer.start()
    try:
        bench.start()
        run, state = await bench.pin(bench.context.workspace.backfills["bench"])
        origin = await load_origin(bench.context, bench.pool, state.origins[0])
        copy = Copier(run, [origin], TransformSpec(), state.entry_hash)
        await copy.run()
        result = copy.results[0]
        seconds = bench.stop()
    finally:
        ended.set()
        writer.join()
    assert (result.copied, result.verified) == (bench.count, True), result
    return seconds


def _publish(target: ConnectionSettings, ended: threading.Event) -> None:
    """Another writer: a hundred messages a second, each acknowledged."""
    wire = RawConnection(target)
    while not ended.wait(0.01):
        wire.request("others.a", b"x" * 100)
    wire.close()


def _target(server: Any) -> ConnectionSettings:
    return ConnectionSettings(
        key=server.name,
        url=server.url,
        shown=server.url,
        user=server.user,
        password=server.password,
        timeout=30.0,
    )


def fill(server: Any, count: int, size: int, *, many: bool = False) -> None:
    """Publish messages on a hundred subjects; `many`: the same number also in twenty streams."""
    wire = RawConnection(_target(server))
    asyncio.run(_create(server))
    batches = (_batch(first, min(BATCH, count - first), size) for first in range(0, count, BATCH))
    publish(wire, batches)
    wire.close()
    if many:
        fill_many(lambda: RawConnection(_target(server)), count, partial(_batch, size=size))


async def _create(server: Any) -> None:
    client = await nats.connect(server.url, user=server.user, password=server.password)
    await client.jetstream().add_stream(name="BENCH", subjects=["bench.>"])
    await client.close()


def _batch(first: int, count: int, size: int) -> tuple[pa.Array, pa.Array, pa.Array]:
    numbers = range(first, first + count)
    subject = pa.array([f"bench.{number % SUBJECTS}".encode() for number in numbers], pa.binary())
    headers = pa.array(
        [f"NATS/1.0\r\nKind: order\r\nNumber: {number}\r\n\r\n".encode() for number in numbers],
        pa.binary(),
    )
    offsets = np.arange(count + 1, dtype=np.int32) * size
    return (
        subject,
        headers,
        pa.Array.from_buffers(
            pa.binary(),
            count,
            [None, pa.py_buffer(offsets), pa.py_buffer(os.urandom(count * size))],
        ),
    )


PATHS: dict[str, Path_] = {
    "mirror": mirror, "snapshot and restore": snapshot_restore, "spark to staging": staging, "spark end to end": end_to_end,
    "verify": verify, "nats-py loop": loop, "shuffle by subject to staging": shuffled_staging, "shuffle by subject": shuffled,
    "whole stream with auto": whole_by_auto, "20 origins": many_origins, "20 sources of the server": many_sources,
}  # fmt: skip


async def turns(
    folder: Path, sandbox: Sandbox, count: int, repeat: int, only: list[str]
) -> dict[str, Any]:
    """Every path, `repeat` times, one after the other."""
    load = LoadOptions(folder, environ=dict(os.environ))
    async with open_context(load) as context, open_pool(context, read_only=False) as pool:
        await pool.open({domain.connection for domain in context.workspace.domains.values()})
        runner = SparkRunner(StrictObserver(), None)
        bench = Bench(sandbox, context, pool, runner, count)
        bench.endpoints()  # before Spark starts: its workers have the environment of now
        await runner.run([partial(iter, [])], "warm")
        seconds: dict[str, list[float]] = {name: [] for name in PATHS if name in only}
        cpu: dict[str, list[dict[str, float]]] = {name: [] for name in seconds}
        for turn in range(repeat + 1):
            for name, every in seconds.items():
                await bench.clean()
                taken = await PATHS[name](bench)
                if turn:  # the first one warms caches and the JVM
                    every.append(taken)
                    cpu[name].append(bench.cpu)
                print(f"{name}: {taken:.2f} s", file=sys.stderr)
        await bench.clean()
        await runner.close()
    return report(seconds, cpu, count, bench.worker)


def report(
    seconds: dict[str, list[float]],
    cpu: dict[str, list[dict[str, float]]],
    count: int,
    memory: float,
) -> dict[str, Any]:
    """Rates, ratios within each turn, and CPU time by program."""
    out: dict[str, Any] = {"messages": count, "peak MiB of the Python worker": round(memory)}
    for name, taken in seconds.items():
        ratios = sorted(one / other for one, other in zip(seconds["mirror"], taken, strict=True))
        out[name] = {
            "messages per second": round(count / statistics.median(taken)),
            "seconds": [round(one, 2) for one in taken],
            "ratio to mirror": round(statistics.median(ratios), 3),
            "lowest": round(ratios[0], 3),
            "highest": round(ratios[-1], 3),
            "CPU us per message": {
                program: round(statistics.median(turn[program] for turn in cpu[name]), 2)
                for program in PROGRAMS
            },
        }
    return out


def run(
    count: int, size: int, repeat: int, only: list[str], *, through_hub: bool
) -> dict[str, Any]:
    """One size of messages, on servers of its own."""
    with Sandbox.hub_and_leaf() as sandbox, tempfile.TemporaryDirectory() as folder:
        fill(sandbox["leaf"], count, size, many=any(name.startswith("20 ") for name in only))
        (Path(folder) / "jsplan.yaml").write_text(
            "jsplan: 1\nworkspace: bench\n"
            f"connections: {{hub: {_connection(sandbox['hub'])}, leaf: {_connection(sandbox['leaf'])}}}\n"
            f"domains: {{hub: {{connection: hub}}, leaf: {{connection: {'hub' if through_hub else 'leaf'}}}}}\n"
            "backfills: [{name: bench, from: {domain: leaf, stream: BENCH}, to: {domain: hub, stream: COPY}}]\n"
        )
        return asyncio.run(turns(Path(folder), sandbox, count, repeat, only))


def _connection(server: Any) -> str:
    return (
        f"{{url: '{server.url}', user: {server.user}, password: {server.password}, timeout: 30s}}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages of 128 bytes")
    parser.add_argument("--large", type=int, default=100_000, help="messages of 4 KiB")
    parser.add_argument(
        "--only", default=",".join(PATHS), help="paths, separated by commas; mirror is always one"
    )
    parser.add_argument(
        "--through-hub",
        action="store_true",
        help="reach the leaf by the hub's connection, as a driver in the cloud may",
    )
    wanted = parser.parse_args()
    only = ["mirror", *wanted.only.split(",")]
    found: dict[str, Any] = {}
    if (
        wanted.messages and wanted.large
    ):  # each in a process of its own: Spark's workers know the servers of its beginning
        words = [sys.executable, __file__, "--repeat", str(wanted.repeat), "--only", wanted.only]
        words += ["--through-hub"] if wanted.through_hub else []
        for one in (
            ["--messages", str(wanted.messages), "--large", "0"],
            ["--messages", "0", "--large", str(wanted.large)],
        ):
            found |= json.loads(
                subprocess.run([*words, *one], check=True, stdout=subprocess.PIPE).stdout
            )
    elif wanted.messages:
        found["128 bytes"] = run(
            wanted.messages, 128, wanted.repeat, only, through_hub=wanted.through_hub
        )
    else:
        found["4 KiB"] = run(
            wanted.large, 4096, wanted.repeat, only, through_hub=wanted.through_hub
        )
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
