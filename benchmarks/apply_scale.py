"""Measure what `jsplan apply` costs next to bare requests that create the same.

N streams with one consumer each in one domain. The bare client sends the same CREATE requests over
nats-py, 64 at once, and does nothing else. jsplan then creates them in another server of the same
run, and adopts them into an empty state, which writes nothing.

    python benchmarks/apply_scale.py [--sizes 1000,10000] [--repeat 1]

Prints one JSON document: whole processes, see `processes.py`; of several runs the least of each
figure, which is the nearest to what a machine would measure that does nothing else. The ratios
compare with the bare client.

The files of all servers stay until the end: for minutes after many were deleted, ext4 without a
journal searches long for each new file, at five times the CPU time of a server that creates
streams. Nothing else on the machine may delete many files for five minutes before.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from plan_scale import BARE, workspace
from processes import Measured, least, ratio, run

from jsplan.sandbox import Sandbox


def measure(count: int, repeat: int, root: Path) -> dict[str, Any]:
    """Measure creating and adopting, each next to bare creates; the least of several runs."""
    runs = [_measure_once(count, Path(tempfile.mkdtemp(dir=root))) for _ in range(repeat)]
    out: dict[str, Any] = {"streams": count, "consumers": count}
    out |= {name: least([each[name] for each in runs]) for name in runs[0]}
    out["ratios"] = {name: ratio(out[name], out["bare_create"]) for name in ("create", "adopt")}
    return out


def _measure_once(count: int, folder: Path) -> dict[str, Measured]:
    apply = [sys.executable, "-m", "jsplan", "apply", "-y", "--parallelism", "64"]
    out: dict[str, Measured] = {}
    with Sandbox.single(folder=folder / "bare") as sandbox:
        server = sandbox["server"]
        words = [sys.executable, "-c", BARE, server.url, str(count), "create"]
        out["bare_create"] = run(words, folder, [server.pid])
    with Sandbox.single(folder=folder / "jsplan") as sandbox:
        server = sandbox["server"]
        workspace(folder, server.url, count)
        out["create"] = run(apply, folder, [server.pid])
        shutil.rmtree(folder / "state")
        out["adopt"] = run(apply, folder, [server.pid])
    return out


def main() -> None:
    """Measure every size and print the document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="1000,10000")
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        sizes = map(int, options.sizes.split(","))
        rows = [measure(size, options.repeat, Path(root)) for size in sizes]
    print(json.dumps({"benchmark": "apply_scale", "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
