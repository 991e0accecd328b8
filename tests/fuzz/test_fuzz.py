"""Hostile documents: a seeded part in `make test`, at least 200,000 of them in `make soak`. How it works is in CONTRIBUTING.md."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.fuzz.targets import TARGETS

ROOT: Final = Path(__file__).parents[2]
SEED: Final = 15
#: Documents of each target in `make test`, a seeded minute of computing in all. A process reads several targets: it takes three
#: seconds to load all of jsplan and to compile its schemas.
FEW: Final = {
    "workspaces": {
        "config": 250,
        "config-file": 250,
        "connection": 250,
        "job": 300,
        "job-script": 300,
    },
    "documents": {
        "plan": 100,
        "state": 130,
        "state-parts": 120,
        "lock": 300,
        "manifest": 200,
        "archive": 500,
    },
    "servers": {"wire": 1000, "answers": 150, "advisories": 1500},
}
#: Documents of all targets in `make soak`.
MANY: Final = 200_000


def fuzz(*args: str) -> subprocess.CompletedProcess[str]:
    """Run the fuzzer as a developer does. It forks, so it is a process of its own."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JSPLAN_", "NATS_"))
    }
    command = [sys.executable, "-m", "tests.fuzz", *args]
    return subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )


def require_no_findings(ended: subprocess.CompletedProcess[str]) -> None:
    """It found nothing."""
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize("group", FEW)
def test_hostile_documents_are_refused_in_words(group: str) -> None:
    """What was found once, the seeds themselves, and documents of a fixed seed: no traceback, hang, escape or secret."""
    require_no_findings(
        fuzz(
            *(f"{target}:{count}" for target, count in FEW[group].items()),
            "--kept",
            "--seed",
            str(SEED),
        )
    )


def test_every_target_is_read() -> None:
    """A new target is read in `make test`, too."""
    assert sorted(target for group in FEW.values() for target in group) == sorted(TARGETS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_very_many_hostile_documents(request: pytest.FixtureRequest) -> None:
    """The same for at least 200,000 documents; how many of each target is printed."""
    shares = sum(target.share for target in TARGETS.values())
    counts = {name: -(-MANY * target.share // shares) for name, target in TARGETS.items()}
    seed = str(SEED + 1)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        ended = dict(
            zip(
                counts,
                pool.map(
                    lambda name: fuzz(name, "--seed", seed, "--count", str(counts[name])), counts
                ),
                strict=True,
            )
        )
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None
    reporter.write_line("")
    for name, one in ended.items():
        reporter.write_line(one.stdout.partition("\n")[0] or f"{name}: {one.stderr[-300:]}")
    reporter.write_line(f"in all: {sum(counts.values()):,} documents of seed {seed}")

    assert sum(counts.values()) >= MANY
    assert {} == {
        name: one.stdout[-4000:] + one.stderr[-2000:]
        for name, one in ended.items()
        if one.returncode
    }
