"""Measure `jsplan compare` of a stream and its mirror, next to the server's own copy of it.

A leaf mirrors a stream of the hub with messages of 128 bytes. The time of the mirror is from its
creation to the last message. A kept result is continued after one hundredth of the
messages was added.

    python benchmarks/compare.py [--messages 1000000] [--repeat 2]

Prints one JSON document: seconds, and `ratio`, the rate of the comparison by that of the mirror.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from jsplan.sandbox import Sandbox, Server

#: Publishes so many messages as fast as the server stores them.
FILL = r"""
import asyncio, sys, nats
url, user, password, count = sys.argv[1:]
async def main():
    client = await nats.connect(url, user=user or None, password=password or None)
    for number in range(int(count) // 1000):
        for _ in range(999):
            await client.publish("A.%d" % (number % 10), b"x" * 128)
        await client.request("A.last", b"x" * 128, timeout=60)
    await client.close()
asyncio.run(main())
"""
#: Creates the mirror M in the leaf as a bare client, and prints the seconds until it has a message.
MIRROR = r"""
import asyncio, json, sys, time, nats
url, user, password, count = sys.argv[1:]
config = {"name": "M", "mirror": {"name": "A", "external": {"api": "$JS.hub.API"}}}
async def main():
    client = await nats.connect(url, user=user or None, password=password or None)
    begun, last = time.monotonic(), 0
    await client.request("$JS.leaf.API.STREAM.CREATE.M", json.dumps(config).encode(), timeout=30)
    while last < int(count):
        await asyncio.sleep(0.02)
        answer = await client.request("$JS.leaf.API.STREAM.INFO.M", b"", timeout=30)
        last = json.loads(answer.data)["state"]["last_seq"]
    print(time.monotonic() - begun)
    await client.close()
asyncio.run(main())
"""


def run(code: str, server: Server, count: int) -> str:
    """Run a program with the login of a server, and return what it prints."""
    words = [server.url, server.user or "", server.password or "", str(count)]
    return subprocess.run(
        [sys.executable, "-c", code, *words], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def jsplan(folder: Path, *words: str) -> dict[str, Any]:
    """Run a command and return its document, with the seconds of its process as `wall`."""
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "jsplan", "--json", *words],
        cwd=folder,
        env=os.environ,
        check=True,
        capture_output=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"wall": time.monotonic() - begun}


def measure(count: int) -> dict[str, float]:
    """Measure once with fresh servers."""
    with tempfile.TemporaryDirectory() as name, Sandbox.hub_and_leaf() as sandbox:
        folder, hub = Path(name), sandbox["hub"]
        connection = {"url": hub.url, "user": hub.user, "password": hub.password}
        origin = {"name": "A", "domain": "hub", "subjects": ["A.>"]}
        base: dict[str, Any] = {
            "jsplan": 1,
            "workspace": "compare",
            "connections": {"hub": connection},
            "domains": {"hub": {"connection": "hub"}, "leaf": {"connection": "hub"}},
        }
        (folder / "jsplan.yaml").write_text(json.dumps(base | {"streams": [origin]}))
        jsplan(folder, "apply", "-y")
        run(FILL, hub, count)
        mirrored = float(run(MIRROR, hub, count))
        kept = str(folder / "kept.json")
        ends = ("compare", "hub/stream/A", "leaf/stream/M")
        first = jsplan(folder, *ends, "-o", kept)
        run(FILL, hub, count // 100)
        again = jsplan(folder, *ends, "--since", kept)
        assert first["equal"] == count
        assert again["equal"] == count + count // 100
        assert again["since"]
        return {"mirror": mirrored, "compare": first["wall"], "since": again["wall"]}


def main() -> None:
    """Measure and print the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=2)
    args = parser.parse_args()
    runs = [measure(args.messages) for _ in range(args.repeat)]
    found = {name: round(statistics.median(r[name] for r in runs), 2) for name in runs[0]}
    ratio = round(found["mirror"] / found["compare"], 2)
    print(
        json.dumps({"benchmark": "compare", "messages": args.messages} | found | {"ratio": ratio})
    )


if __name__ == "__main__":
    main()
