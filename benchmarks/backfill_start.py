"""Measure a small backfill as a whole command, next to the bare start of a Spark session.

A hub and a leaf on this machine. In each turn one process starts a local session of plain PySpark
and runs one empty task, one runs `jsplan backfill run` for a new target, one runs it once more,
with nothing to do. The cache of jsplan is empty before the first turn, which is reported by itself.

    python benchmarks/backfill_start.py [--repeat 5] [--messages 20000]

Prints one JSON document: seconds of wall time and of CPU of each process (with its children), and
the ratio of the command to the bare start of the same turn (median).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import nats
import processes
from backfill import fill

from jsplan.sandbox import Sandbox, Server

_BARE = (
    "from pyspark.sql import SparkSession\n"
    "session = (SparkSession.builder.master('local[*]').config('spark.ui.enabled', 'false')\n"
    "    .config('spark.log.level', 'ERROR').getOrCreate())\n"
    "session.sparkContext.parallelize([0], 1).map(abs).collect()\n"
    "session.stop()\n"
)


def measure(folder: Path, sandbox: Sandbox, repeat: int) -> dict[str, object]:
    """Measure `repeat` turns after a first one."""
    (folder / "bare.py").write_text(_BARE, encoding="utf-8")
    servers = [server.pid for server in sandbox.servers.values()]
    run = [sys.executable, "-m", "jsplan", "-C", str(folder), "backfill", "run"]
    turns = []
    for turn in range(repeat + 1):
        asyncio.run(_create(sandbox["hub"], f"COPY{turn}"))
        words = [*run, "--from", "leaf/stream/BENCH", "--to", f"hub/stream/COPY{turn}"]
        bare = processes.run([sys.executable, "bare.py"], folder)
        copy = processes.run(words, folder, servers)
        again = processes.run(words, folder, servers)
        turns.append({"bare start": bare, "copy": copy, "nothing to copy": again})
        print(f"{bare['seconds']} {copy['seconds']} {again['seconds']}", file=sys.stderr)
    ratios = {
        name: [round(turn["copy"][name] / turn["bare start"][name], 2) for turn in turns[1:]]
        for name in ("seconds", "cpu")
    }
    return {
        "first turn": turns[0],
        "median": {
            name: {
                figure: round(statistics.median(turn[name][figure] for turn in turns[1:]), 2)
                for figure in ("seconds", "cpu", "mib")
            }
            for name in turns[0]
        },
        "copy to bare start": {
            name: {"median": statistics.median(found), "turns": found}
            for name, found in ratios.items()
        },
    }


async def _create(server: Server, stream: str) -> None:
    client = await nats.connect(server.url, user=server.user, password=server.password)
    await client.jetstream().add_stream(name=stream, subjects=[f"{stream}.>"])
    await client.close()


def _connection(server: Server) -> str:
    return f"{{url: '{server.url}', user: {server.user}, password: {server.password}}}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20_000, help="messages of 128 bytes")
    wanted = parser.parse_args()
    with Sandbox.hub_and_leaf() as sandbox, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        fill(sandbox["leaf"], wanted.messages, 128)
        (folder / "jsplan.yaml").write_text(
            "jsplan: 1\nworkspace: bench\n"
            f"connections: {{hub: {_connection(sandbox['hub'])}, leaf: {_connection(sandbox['leaf'])}}}\n"
            "domains: {hub: {connection: hub}, leaf: {connection: leaf}}\n",
            encoding="utf-8",
        )
        print(json.dumps(measure(folder, sandbox, wanted.repeat), indent=2))


if __name__ == "__main__":
    main()
