"""Read hostile documents: `python -m tests.fuzz TARGET… --seed N --count N`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# One thread and a bounded allocator. The libraries read these variables when they are loaded.
os.environ |= {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}

from tests.fuzz import findings, harness
from tests.fuzz.documents import dump, load
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Read documents and print the failures."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "targets", nargs="+", metavar="TARGET[:COUNT]", help=f"all, {', '.join(TARGETS)}"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--count", type=int, default=1000, help="documents of each target without a COUNT"
    )
    parser.add_argument(
        "--most",
        type=int,
        default=harness.MAX_FAILURES,
        help="end after N different failures",
    )
    parser.add_argument("--only", type=int, help="read only the document of this number")
    parser.add_argument("--file", type=Path, help="read only this kept document")
    parser.add_argument(
        "--kept",
        action="store_true",
        help="first read the seeds and the documents under tests/fuzz/found/; none may fail",
    )
    parser.add_argument("--print", action="store_true", help="print the document too")
    parser.add_argument(
        "--keep", action="store_true", help="keep the smallest documents under tests/fuzz/found/"
    )
    parser.add_argument("--quick", action="store_true", help="do not shrink the failing documents")
    options = parser.parse_args()
    named = dict(
        text.partition(":")[::2]
        for text in (TARGETS if "all" in options.targets else options.targets)
    )
    if unknown := named.keys() - TARGETS:
        parser.error(f"there is no target {', '.join(unknown)}")
    failures = 0
    for name, own_count in named.items():
        failures += _read_kept(TARGETS[name]) if options.kept else 0
        count = int(own_count or options.count)
        failures += _run_target(TARGETS[name], options, count) if count else 0
    return 1 if failures else 0


def _run_target(target: harness.Target, options: argparse.Namespace, count: int) -> int:
    if options.file is not None or options.only is not None:
        document = (
            load(options.file)
            if options.file is not None
            else target.document(options.seed, options.only)
        )
        if options.print:
            print(dump(document))
        failure = harness.check_document(target, document)
        print(f"{failure.key}\n{failure.detail}" if failure else "no failure")
        return 1 if failure else 0
    report = harness.run(target, options.seed, range(count), most=options.most)
    speed = report.documents / report.seconds if report.seconds else 0
    print(
        f"{target.name}: {report.documents} documents, {len(report.found)} failures, {speed:.0f} per second of CPU time",
        flush=True,
    )
    print(
        findings.format_report(report, options.seed, smaller=not options.quick), end="", flush=True
    )
    for case in report.found.values() if options.keep else ():
        print(findings.keep_case(target, findings.shrink_failure(target, case)))
    return len(report.found)


def _read_kept(target: harness.Target) -> int:
    """Read the kept cases and the seeds; return the number of failures."""
    documents = {str(path): load(path) for path in findings.kept_cases(target)}
    failures = harness.check_documents(target, documents)
    numbers = {dump(document): number for number, document in enumerate(target.documents)}
    seeds = {f"seed {number}": target.documents[number] for number in numbers.values()}
    failures |= harness.check_documents(target, seeds, seeds=True)
    for name, failure in failures.items():
        print(f"--- {target.name}, {name}: {failure.key}\n{failure.detail}")
    print(f"{target.name}: {len(documents)} cases and {len(seeds)} seeds, {len(failures)} failures")
    return len(failures)


if __name__ == "__main__":
    sys.exit(main())
