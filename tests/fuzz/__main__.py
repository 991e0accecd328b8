"""`python -m tests.fuzz TARGET… --seed N --count N`: documents of some targets, or of all of them."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# One thread, and memory from where its limit is known: before the libraries are loaded that look at it.
os.environ |= {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}

from tests.fuzz import findings, harness
from tests.fuzz.documents import dump, load
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Read documents and print what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "targets", nargs="+", metavar="TARGET[:COUNT]", help=f"all, {', '.join(TARGETS)}"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--count", type=int, default=1000, help="how many documents of each target that says none"
    )
    parser.add_argument(
        "--most",
        type=int,
        default=harness.MAX_FAILURES,
        help="different failures after which it ends",
    )
    parser.add_argument("--only", type=int, help="the document of this number alone")
    parser.add_argument("--file", type=Path, help="a document that was kept, alone")
    parser.add_argument(
        "--kept",
        action="store_true",
        help="first the seeds and the documents under tests/fuzz/found/; they must be right",
    )
    parser.add_argument("--print", action="store_true", help="print the document as well")
    parser.add_argument(
        "--keep", action="store_true", help="keep the smallest documents under tests/fuzz/found/"
    )
    parser.add_argument("--quick", action="store_true", help="do not make them smaller")
    given = parser.parse_args()
    named = dict(
        text.partition(":")[::2] for text in (TARGETS if "all" in given.targets else given.targets)
    )
    if unknown := named.keys() - TARGETS:
        parser.error(f"there is no target {', '.join(unknown)}")
    bad = 0
    for name, said in named.items():
        bad += _read_kept(TARGETS[name]) if given.kept else 0
        count = int(said or given.count)
        bad += _run_target(TARGETS[name], given, count) if count else 0
    return 1 if bad else 0


def _run_target(target: harness.Target, given: argparse.Namespace, count: int) -> int:
    if given.file is not None or given.only is not None:
        document = (
            load(given.file) if given.file is not None else target.document(given.seed, given.only)
        )
        if given.print:
            print(dump(document))
        failure = harness.check_document(target, document)
        print(f"{failure.key}\n{failure.detail}" if failure else "nothing is wrong with it")
        return 1 if failure else 0
    report = harness.run(target, given.seed, range(count), most=given.most)
    speed = report.documents / report.seconds if report.seconds else 0
    print(
        f"{target.name}: {report.documents} documents, {len(report.found)} failures, {speed:.0f} a second of computing",
        flush=True,
    )
    print(findings.format_report(report, given.seed, smaller=not given.quick), end="", flush=True)
    for found in report.found.values() if given.keep else ():
        print(findings.keep_case(target, findings.shrink_failure(target, found)))
    return len(report.found)


def _read_kept(target: harness.Target) -> int:
    """Read what was found, and the seeds, which must be right."""
    documents = {str(path): load(path) for path in findings.kept_cases(target)}
    failures = harness.check_documents(target, documents)
    once = {dump(document): number for number, document in enumerate(target.documents)}
    seeds = {f"seed {number}": target.documents[number] for number in once.values()}
    failures |= harness.check_documents(target, seeds, seeds=True)
    for name, failure in failures.items():
        print(f"--- {target.name}, {name}: {failure.key}\n{failure.detail}")
    print(f"{target.name}: {len(documents)} cases and {len(seeds)} seeds, {len(failures)} failures")
    return len(failures)


if __name__ == "__main__":
    sys.exit(main())
