"""Measure how plan and drift grow with the entries of a bucket, next to reading them.

N keys of 100 bytes in one bucket. The bare sweep reads each key as clients do, one DIRECT.GET
over nats-py, 64 at once, and compares the values with a dictionary. All figures of one N come from
the same run on the same server.

    python benchmarks/entries.py [--sizes 1000,10000] [--repeat 3]

Prints one JSON document: medians of whole processes, see `processes.py`. The ratios compare with
the bare sweep.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from processes import median, ratio

from jsplan.sandbox import Sandbox

BARE = """
import asyncio, sys, nats
url, count = sys.argv[1], int(sys.argv[2])
wanted = {f"app.k{i}": f"value {i} ".ljust(100, "x").encode() for i in range(count)}

async def main():
    client, slots = await nats.connect(url), asyncio.Semaphore(64)
    async def read(key, value):
        async with slots:
            subject = f"$JS.API.DIRECT.GET.KV_CONFIG.$KV.CONFIG.{key}"
            assert (await client.request(subject, timeout=30)).data == value
    await asyncio.gather(*(read(key, value) for key, value in wanted.items()))
    await client.close()

asyncio.run(main())
"""


def workspace(folder: Path, url: str, count: int) -> None:
    """Write a workspace with one key on each line."""
    lines = [
        "jsplan: 1",
        "workspace: entries",
        f"connections: {{main: {{url: '{url}'}}}}",
        "domains: {main: {connection: main, js_domain: null}}",
        "kv:",
        "  - bucket: CONFIG",
        "    entries:",
    ]
    lines += [f"      app.k{i}: {f'value {i} '.ljust(100, 'x')}" for i in range(count)]
    (folder / "jsplan.yaml").write_text("\n".join(lines) + "\n")


def measure(count: int, repeat: int) -> dict[str, Any]:
    """Measure empty plans and drift, each next to the bare requests."""
    jsplan, bare = [sys.executable, "-m", "jsplan"], [sys.executable, "-c", BARE]
    out: dict[str, Any] = {"entries": count}
    with tempfile.TemporaryDirectory() as name, Sandbox.single() as sandbox:
        folder, url, servers = Path(name), sandbox["server"].url, [sandbox["server"].pid]
        workspace(folder, url, count)
        out["create"] = median([*jsplan, "apply", "-y", "--parallelism", "64"], folder, 1, servers)
        out["bare_sweep"] = median([*bare, url, str(count)], folder, repeat, servers)
        out["plan"] = median([*jsplan, "plan", "--detailed-exitcode"], folder, repeat, servers)
        out["drift"] = median([*jsplan, "drift"], folder, repeat, servers)
    out["ratios"] = {name: ratio(out[name], out["bare_sweep"]) for name in ("plan", "drift")}
    return out


def main() -> None:
    """Measure every size and print the document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="1000,10000")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    rows = [measure(int(size), options.repeat) for size in options.sizes.split(",")]
    print(json.dumps({"benchmark": "entries", "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
