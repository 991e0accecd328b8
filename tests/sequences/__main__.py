"""`python -m tests.sequences --seed N`: play seeds, print findings, and shrink a case."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from jsplan.sandbox import Sandbox, versions
from tests.sequences.known_cases import FOUND, KNOWN, RELOCATED
from tests.sequences.play import play
from tests.sequences.random_cases import make_case
from tests.sequences.show import format_outcome
from tests.sequences.shrink import shrink_case

if TYPE_CHECKING:
    from tests.sequences.cases import Case
    from tests.sequences.play import Outcome


def main() -> int:
    """Play what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.sequences", description=__doc__)
    parser.add_argument(
        "--seed", type=int, nargs="+", default=[1], help="seeds, or the first of --count"
    )
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument(
        "--meddled", action="store_true", help="with another person between plan and apply"
    )
    parser.add_argument("--earlier", action="store_true", help="with a plan applied before")
    parser.add_argument("--relocated", action="store_true", help="with relocations")
    parser.add_argument("--reverted", action="store_true", help="with --earlier: a revert of it")
    parser.add_argument("--restored", action="store_true", help="with streams that are restored")
    parser.add_argument("--killed", action="store_true", help="with a death; one at a time")
    parser.add_argument("--offline", action="store_true", help="with an outage; one at a time")
    parser.add_argument("--adopted", action="store_true", help="with a state that is lost")
    parser.add_argument(
        "--selected", action="store_true", help="with --target, --exclude or --replace"
    )
    parser.add_argument("--named", help="a known case by its name, or `all`")
    parser.add_argument("--server", type=Path, help="another nats-server")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--print", action="store_true", help="print files, load, plan and findings")
    parser.add_argument(
        "--shrink", action="store_true", help="make what fails smaller, and print that"
    )
    wanted = parser.parse_args()
    cases = _cases(wanted)
    with Sandbox.hub_and_leaf(binary=wanted.server or versions.find_in_wheel()) as sandbox:
        return _play_all(cases, sandbox, wanted)


def _cases(wanted: argparse.Namespace) -> list[Case]:
    if wanted.named:
        known = {name: found.case for name, found in (KNOWN | RELOCATED).items()} | FOUND
        return [case for name, case in known.items() if wanted.named in ("all", name)]
    first = wanted.seed[-1]
    seeds = [*wanted.seed, *range(first + 1, first + wanted.count)]
    return [
        make_case(
            seed,
            with_outside_change=wanted.meddled,
            with_earlier_apply=wanted.earlier,
            with_relocation=wanted.relocated,
            with_revert=wanted.reverted,
            with_restore=wanted.restored,
            with_kill=wanted.killed,
            with_offline=wanted.offline,
            with_adoption=wanted.adopted,
            with_selection=wanted.selected,
        )
        for seed in seeds
    ]


def _play_all(cases: list[Case], sandbox: Sandbox, wanted: argparse.Namespace) -> int:
    clocks = time.monotonic(), time.process_time()
    words: Counter[str] = Counter()
    kinds: Counter[str] = Counter()

    def alone(case: Case) -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            return play(case, sandbox, Path(folder))

    def one(case: Case) -> Outcome:
        outcome = alone(case)
        return shrink_case(outcome, alone) if outcome.findings and wanted.shrink else outcome

    bad = 0
    with ThreadPoolExecutor(
        max_workers=1 if wanted.killed or wanted.offline else wanted.workers
    ) as pool:
        for outcome in pool.map(one, cases):
            words[outcome.word] += 1
            kinds.update(outcome.kinds)
            if wanted.print or (wanted.shrink and outcome.findings):
                print(format_outcome(outcome), flush=True)
            elif outcome.findings:
                print(outcome.case.name, *outcome.findings, sep="\n  ", flush=True)
            bad += bool(outcome.findings)
    wall, cpu = time.monotonic() - clocks[0], time.process_time() - clocks[1]
    print(
        f"{len(cases)} cases, {bad} with findings; {dict(words)}; {dict(kinds)}; {wall:.1f} s, {cpu:.1f} s of CPU"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
