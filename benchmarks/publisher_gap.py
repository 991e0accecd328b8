"""Measure how long a publisher waits while its stream is replaced or relocated.

A publisher sends 3,000 messages of 100 bytes a second to a stream that has many already, and never
stops. The figure is the longest time between two acknowledgements, next to that of the same
publisher in the seconds before the apply, which the machine causes.

    python benchmarks/publisher_gap.py [--messages 500000] [--repeat 1] [--uses quiet,busy]
        [--code DIR]

`--code` is another working copy whose apply is measured. Prints one JSON document, in seconds.
Nothing else heavy may run on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from jsplan.sandbox import Sandbox, Server

#: Publishes until its input ends; each line of input makes it print the longest gap so far.
PUBLISHER = r"""
import socket, sys, threading, time
host, port, user, password = sys.argv[1:]
link = socket.create_connection((host, int(port)))
login = '"user":"%s","pass":"%s",' % (user, password) if user else ""
link.sendall(('CONNECT {%s"verbose":false}\r\nSUB ack 1\r\n' % login).encode())
message = b"PUB A.live ack 100\r\n" + b"x" * 100 + b"\r\n"
longest = 0.0
def read():
    global longest
    last, rest = time.monotonic(), b""
    while data := link.recv(1 << 20):
        if b"PING\r\n" in data:
            link.sendall(b"PONG\r\n")
        if b'"seq":' in rest + data:
            now = time.monotonic()
            last, longest = now, max(longest, now - last)
        rest = data[-5:]
def report():
    global longest
    for _ in sys.stdin:
        print(longest, flush=True)
        longest = 0.0
for work in read, report:
    threading.Thread(target=work, daemon=True).start()
begun, sent = time.monotonic(), 0
while threading.active_count() == 3:
    due = int((time.monotonic() - begun) * 3000) - sent
    link.sendall(message * due)
    sent += due
    time.sleep(0.001)
"""
#: Publishes so many messages as fast as the server stores them; takes some of them with `busy`.
FILL = r"""
import asyncio, sys, nats
url, user, password, count, busy = sys.argv[1:]
async def main():
    client = await nats.connect(url, user=user or None, password=password or None)
    for number in range(int(count) // 1000):
        for _ in range(999):
            await client.publish("A.%d" % (number % 10), b"x" * 100)
        await client.request("A.last", b"x" * 100, timeout=60)
    if busy:
        await client.subscribe("taken")
        await client.publish("$JS.API.CONSUMER.MSG.NEXT.A.C", b'{"batch": 5}', reply="taken")
        await client.flush()
    await client.close()
asyncio.run(main())
"""
STREAM: dict[str, Any] = {
    "name": "A",
    "subjects": ["A.>"],
    "consumers": [{"name": "C", "ack_policy": "explicit"}],
}
KEPT: dict[str, Any] = {"storage": "memory", "lifecycle": {"on_replace": "preserve"}}
#: Fields of the stream, and whether its consumer has messages out.
USES: dict[str, tuple[dict[str, Any], bool]] = {
    "quiet": ({}, False),
    "busy": ({}, True),
    "queue": ({"retention": "workqueue"}, True),
    "relocate": ({}, False),
}
ALLOWED = ("REMOVES_SUBJECTS", "DUPLICATES_MESSAGES", "IRREVERSIBLE", "DELETES_MESSAGES")


def write(folder: Path, sandbox: Sandbox, **sections: Any) -> None:
    """Write the files of a hub and a leaf."""
    hub = sandbox["hub"]
    connection = {"url": hub.url, "user": hub.user, "password": hub.password}
    base = {
        "jsplan": 1,
        "workspace": "gap",
        "connections": {"hub": connection},
        "domains": {"hub": {"connection": "hub"}, "leaf": {"connection": "hub"}},
    }
    (folder / "jsplan.yaml").write_text(json.dumps(base | sections))


def apply(folder: Path, code: str) -> float:
    """Apply by the program in `code`, and return the seconds."""
    words = [sys.executable, "-m", "jsplan", "apply", "-y"]
    allowed = [part for hazard in ALLOWED for part in ("--allow-hazard", hazard)]
    begun = time.monotonic()
    subprocess.run(
        words + allowed,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": code},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.monotonic() - begun


def start_publisher(server: Server) -> subprocess.Popen[str]:
    """Start a publisher on a server."""
    words = ("127.0.0.1", str(server.port), server.user or "", server.password or "")
    return subprocess.Popen(
        [sys.executable, "-c", PUBLISHER, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def longest_gap(publisher: subprocess.Popen[str]) -> float:
    """Return the longest gap in seconds since the last call."""
    assert publisher.stdin is not None
    assert publisher.stdout is not None
    publisher.stdin.write("\n")
    publisher.stdin.flush()
    return float(publisher.stdout.readline())


def measure(use: str, count: int, code: str) -> dict[str, float]:
    """Measure one apply."""
    fields, busy = USES[use]
    domain = "leaf" if use == "relocate" else "hub"
    with tempfile.TemporaryDirectory() as name, Sandbox.hub_and_leaf() as sandbox:
        folder, server = Path(name), sandbox[domain]
        before = STREAM | {"domain": domain} | fields
        write(folder, sandbox, streams=[before])
        apply(folder, code)
        login = (server.user or "", server.password or "", str(count), "yes" if busy else "")
        subprocess.run([sys.executable, "-c", FILL, server.url, *login], check=True)
        if use == "relocate":
            moved = [{"from": "leaf/stream/A", "to": "hub/stream/A"}]
            write(folder, sandbox, streams=[before | {"domain": "hub"}], relocate=moved)
        else:
            write(folder, sandbox, streams=[before | KEPT])
        publisher = start_publisher(server)
        try:
            time.sleep(1)
            longest_gap(publisher)
            time.sleep(3)
            quiet = longest_gap(publisher)
            seconds = apply(folder, code)
            time.sleep(1)
            found = {"gap": longest_gap(publisher), "machine": quiet, "apply": seconds}
        finally:
            publisher.kill()
            publisher.wait()
    return {name: round(value, 3) for name, value in found.items()}


def main() -> None:
    """Measure every use and print the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--uses", default=",".join(USES))
    parser.add_argument("--code", default=str(Path(__file__).parents[1]))
    args = parser.parse_args()
    uses = args.uses.split(",")
    rows = [
        {"use": use, "runs": [measure(use, args.messages, args.code) for _ in range(args.repeat)]}
        for use in uses
    ]
    print(json.dumps({"benchmark": "publisher_gap", "messages": args.messages, "rows": rows}))


if __name__ == "__main__":
    main()
