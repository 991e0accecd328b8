"""Read hostile documents: `python -m tests.fuzz TARGET… --seed N --count N`."""

from __future__ import annotations

import argparse
import os
import sys
from operator import methodcaller
from pathlib import Path

# One thread and a bounded allocator. The libraries read these variables when they are loaded.
os.environ |= {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}

from tests.fuzz.documents import load
from tests.fuzz.harness import CHUNK, Reader, Target, run
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Read documents and print those that fail, each shrunk to the least change of a seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "targets", nargs="+", metavar="TARGET[:COUNT]", help=f"all, {', '.join(TARGETS)}"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--count", type=int, default=1000, help="documents of each target without a COUNT"
    )
    parser.add_argument("--file", type=Path, help="read only this document")
    parser.add_argument(
        "--kept",
        action="store_true",
        help="first read the seeds and the documents under tests/fuzz/found/",
    )
    options = parser.parse_args()
    named = dict(
        text.partition(":")[::2]
        for text in (TARGETS if "all" in options.targets else options.targets)
    )
    if unknown := named.keys() - TARGETS:
        parser.error(f"there is no target {', '.join(unknown)}")
    if options.file is not None:
        document = load(options.file)
        return max(run(TARGETS[name], methodcaller("read", document)) for name in named)
    return max(
        _read_target(TARGETS[name], options, int(count or options.count))
        for name, count in named.items()
    )


def _read_target(target: Target, options: argparse.Namespace, count: int) -> int:
    failures = run(target, Reader.read_kept) if options.kept else 0
    for begin in range(0, count, CHUNK):
        number, size = options.seed * 1_000_000 + begin, min(CHUNK, count - begin)
        failures += run(target, methodcaller("read_changed", number, size))
    print(f"{target.name}: {count} changed documents of seed {options.seed}", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
