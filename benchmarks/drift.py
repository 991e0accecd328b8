"""Measure how soon `jsplan drift watch` reports a change, and what `jsplan drift` costs.

A hub and a leaf; another client changes a stream of either, and the time is taken from just before
the request to the line that the job prints. Memory is the job's resident size before and after
10,000 changes. `plan_scale.py` has drift next to plan and bare requests.

    python benchmarks/drift.py [--changes 50] [--events 10000] [--streams 10000]

Prints one JSON document: ms, MiB and seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from plan_scale import BARE
from plan_scale import workspace as many_streams
from processes import median

from jsplan.sandbox import Sandbox, Server


def workspace(folder: Path, hub: Server) -> None:
    """Return two streams, one on each side of the link."""
    document = {
        "jsplan": 1,
        "workspace": "bench",
        "connections": {"hub": {"url": hub.url, "user": hub.user, "password": hub.password}},
        "domains": {"hub": {"connection": "hub"}, "leaf": {"connection": "hub"}},
        "streams": [
            {"name": "A", "domain": "hub", "subjects": ["a"]},
            {"name": "B", "domain": "leaf", "subjects": ["b"]},
        ],
    }
    (folder / "jsplan.yaml").write_text(json.dumps(document))
    subprocess.run(
        [sys.executable, "-m", "jsplan", "apply", "-y"],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def change(server: Server, stream: str, number: int) -> None:
    """Change the stream as another client."""
    answer = server.request(f"$JS.API.STREAM.INFO.{stream}")
    assert answer is not None
    server.request(
        f"$JS.API.STREAM.UPDATE.{stream}",
        json.dumps(answer["config"] | {"max_age": 10**12 + number * 10**9}).encode(),
    )


def next_line(out: IO[bytes]) -> dict[str, Any]:
    """Return the next notification."""
    notice = json.loads(out.readline())
    assert isinstance(notice, dict)
    return notice


def latency(sandbox: Sandbox, folder: Path, changes: int) -> dict[str, Any]:
    """Return the milliseconds from a change to its line, on the hub and behind the leafnode."""
    job = begin(folder)
    assert job.stdout is not None
    found: dict[str, list[float]] = {"hub": [], "leaf": []}
    for number in range(changes):
        for domain, stream in (("hub", "A"), ("leaf", "B")):
            begun = time.monotonic()
            change(sandbox[domain], stream, number + 1)
            assert next_line(job.stdout)["situation"]["address"] == f"{domain}/stream/{stream}"
            found[domain].append((time.monotonic() - begun) * 1000)
            time.sleep(0.15)
    end(job)
    return {
        f"{domain}_ms": {
            "median": round(statistics.median(times), 1),
            "p95": round(sorted(times)[int(len(times) * 0.95)], 1),
            "max": round(max(times), 1),
        }
        for domain, times in found.items()
    }


def begin(folder: Path) -> subprocess.Popen[bytes]:
    """Start a job and wait for its first full check."""
    words = [sys.executable, "-m", "jsplan", "drift", "watch", "--every", "1h", "--format", "json"]
    job = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert job.stderr is not None
    while b"Watching" not in job.stderr.readline():
        pass
    return job


def end(job: subprocess.Popen[bytes]) -> None:
    """End it as Kubernetes does."""
    job.terminate()
    assert job.wait(30) == 0
    for stream in (job.stdout, job.stderr):
        if stream is not None:
            stream.close()


def mib(job: subprocess.Popen[bytes]) -> float:
    """Return the resident memory in MiB."""
    status = Path(f"/proc/{job.pid}/status").read_text()
    return round(
        next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        / 1024,
        1,
    )


def memory(sandbox: Sandbox, folder: Path, events: int) -> dict[str, Any]:
    """Return the resident MiB at the start and after each fifth of the changes."""
    job = begin(folder)
    assert job.stdout is not None
    sizes = [mib(job)]
    number = 1000
    for _ in range(5):
        for _ in range(events // 5):
            number += 1
            change(sandbox["hub"], "A", number)
        wanted = 10**12 + number * 10**9
        while wanted not in [
            field["after"] for field in next_line(job.stdout)["situation"]["fields"]
        ]:
            pass
        sizes.append(mib(job))
    end(job)
    return {"events": events, "mib": sizes}


def cost(streams: int, repeat: int) -> dict[str, Any]:
    """Return the seconds of plan and drift over so many unchanged streams with a consumer each."""
    jsplan = [sys.executable, "-m", "jsplan"]
    with tempfile.TemporaryDirectory() as name, Sandbox.single() as sandbox:
        folder, url = Path(name), sandbox["server"].url
        many_streams(folder, url, streams)
        median([*jsplan, "apply", "-y", "--parallelism", "64"], folder, 1)
        turns = [
            (median([*jsplan, "plan"], folder, 1), median([*jsplan, "drift"], folder, 1))
            for _ in range(repeat)
        ]
        bare = median([sys.executable, "-c", BARE, url, str(streams), "sweep"], folder, repeat)
    plan, drift = (
        round(statistics.median(turn[i]["seconds"] for turn in turns), 3) for i in (0, 1)
    )
    return {
        "streams": streams,
        "bare_seconds": bare["seconds"],
        "plan_seconds": plan,
        "drift_seconds": drift,
        "ratio": round(drift / plan, 2),
    }


def main() -> None:
    """Measure and print the document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Sandbox.hub_and_leaf() as sandbox:
        workspace(Path(name), sandbox["hub"])
        row = {
            "change_to_line": latency(sandbox, Path(name), options.changes),
            "memory": memory(sandbox, Path(name), options.events),
        }
    row["cost"] = cost(options.streams, options.repeat)
    print(json.dumps({"benchmark": "drift", **row}, indent=2))


if __name__ == "__main__":
    main()
