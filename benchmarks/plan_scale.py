"""Measure how `jsplan plan` and `drift` grow with the streams, next to bare requests.

N streams with one consumer each in one domain. A bare sweep sends the same INFO requests over
nats-py, 64 at once, parses the answers, and does nothing else. All figures of one N come from the
same run on the same server.

    python benchmarks/plan_scale.py [--sizes 100,1000,10000] [--repeat 3]

Prints one JSON document: medians of whole processes, see `processes.py`. The ratios compare with
the bare sweep. `apply_scale.py` measures applies.
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
import asyncio, sys, orjson, nats
url, count, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]

async def main():
    client, slots = await nats.connect(url), asyncio.Semaphore(64)
    async def ask(verb, payload=b""):
        async with slots:
            answer = orjson.loads((await client.request("$JS.API." + verb, payload, timeout=30)).data)
            assert "error" not in answer, answer
    if mode == "sweep":
        streams = (ask(f"STREAM.INFO.S{i}") for i in range(count))
        await asyncio.gather(*streams, *(ask(f"CONSUMER.INFO.S{i}.C") for i in range(count)))
    else:
        def stream(i):
            return orjson.dumps({"name": f"S{i}", "subjects": [f"s{i}.>"], "max_age": 10**15})
        await asyncio.gather(*(ask(f"STREAM.CREATE.S{i}", stream(i)) for i in range(count)))
        config = {"durable_name": "C", "name": "C", "ack_policy": "explicit"}
        def consumer(i):
            return orjson.dumps({"stream_name": f"S{i}", "config": config, "action": "create"})
        await asyncio.gather(*(ask(f"CONSUMER.CREATE.S{i}.C", consumer(i)) for i in range(count)))
    await client.close()

asyncio.run(main())
"""


def workspace(folder: Path, url: str, count: int) -> None:
    """Write a workspace as a person would, one block per stream."""
    lines = [
        "jsplan: 1",
        "workspace: scale",
        f"connections: {{main: {{url: '{url}'}}}}",
        "domains: {main: {connection: main, js_domain: null}}",
    ]
    lines += ["defaults: {domain: main}", "streams:"]
    for i in range(count):
        lines += [
            f"  - name: S{i}",
            f"    subjects: ['s{i}.>']",
            "    max_age: 1000000s",
            "    consumers:",
        ]
        lines += ["      - {name: C, ack_policy: explicit}"]
    (folder / "jsplan.yaml").write_text("\n".join(lines) + "\n")


def measure(count: int, repeat: int) -> dict[str, Any]:
    """Measure empty plans and drift, each next to the bare requests."""
    jsplan, bare = [sys.executable, "-m", "jsplan"], [sys.executable, "-c", BARE]
    out: dict[str, Any] = {"streams": count, "consumers": count}
    with tempfile.TemporaryDirectory() as name, Sandbox.single() as sandbox:
        folder, url, servers = Path(name), sandbox["server"].url, [sandbox["server"].pid]
        workspace(folder, url, count)
        median([*jsplan, "apply", "-y", "--parallelism", "64"], folder, 1)
        out["bare_sweep"] = median([*bare, url, str(count), "sweep"], folder, repeat, servers)
        out["plan"] = median([*jsplan, "plan", "--detailed-exitcode"], folder, repeat, servers)
        out["drift"] = median([*jsplan, "drift"], folder, repeat, servers)
    out["ratios"] = {name: ratio(out[name], out["bare_sweep"]) for name in ("plan", "drift")}
    return out


def main() -> None:
    """Measure every size and print the document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="100,1000,10000")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    rows = [measure(int(size), options.repeat) for size in options.sizes.split(",")]
    print(json.dumps({"benchmark": "plan_scale", "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
