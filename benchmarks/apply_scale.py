"""Measure what `jsplan apply` costs next to bare requests that create the same.

N streams with one consumer each in one domain. The bare client sends the same CREATE requests over
nats-py, 64 at once, and does nothing else. jsplan then creates them in another server of the same
run, and adopts them into an empty state, which writes nothing.

    python benchmarks/apply_scale.py [--sizes 1000,10000] [--profile FILE]

Prints one JSON document: `seconds` is the wall time of a whole process, `cpu` the CPU seconds of
that process, `server_cpu` those of the server meanwhile, `mib` peak resident memory. The ratios
compare with the bare client: `wall` seconds, `cpu` the CPU of client and server together. On a
machine that others use too, trust `cpu`. With `--profile` the apply that creates writes its
profile, and that of adopting to FILE.adopt; both are slower then.
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
from processes import ratio, run

from jsplan.sandbox import Sandbox


def measure(count: int, profile: str | None) -> dict[str, Any]:
    """Measure creating and adopting, each next to bare creates."""
    apply = ["-m", "jsplan", "apply", "-y", "--parallelism", "64"]
    created, adopted = (
        [] if profile is None else ["-m", "cProfile", "-o", profile + end] for end in ("", ".adopt")
    )
    out: dict[str, Any] = {"streams": count, "consumers": count}
    with tempfile.TemporaryDirectory() as name, Sandbox.single() as sandbox:
        server = sandbox["server"]
        words = [sys.executable, "-c", BARE, server.url, str(count), "create"]
        out["bare_create"] = run(words, Path(name), [server.pid])
    with tempfile.TemporaryDirectory() as name, Sandbox.single() as sandbox:
        folder, server = Path(name), sandbox["server"]
        workspace(folder, server.url, count)
        out["create"] = run([sys.executable, *created, *apply], folder, [server.pid])
        shutil.rmtree(folder / "state")
        out["adopt"] = run([sys.executable, *adopted, *apply], folder, [server.pid])
    out["ratios"] = {name: ratio(out[name], out["bare_create"]) for name in ("create", "adopt")}
    return out


def main() -> None:
    """Measure every size and print the document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="1000,10000")
    parser.add_argument("--profile")
    options = parser.parse_args()
    rows = [measure(int(size), options.profile) for size in options.sizes.split(",")]
    print(json.dumps({"benchmark": "apply_scale", "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
