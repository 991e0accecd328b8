"""Hostile documents: some in `make test`, 200,000 in `make soak`. See CONTRIBUTING.md."""

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
#: Documents of each target in `make test`, besides the seeds and kept cases. One process reads all, because it takes five
#: seconds of CPU to load all of jsplan and to compile its schemas.
FEW: Final = {
    "config": 150, "config-file": 20, "connection": 20, "wire": 50, "advisories": 50, "plan": 20, "state": 20, "state-parts": 15,
    "lock": 20, "manifest": 25, "archive": 35, "answers": 50,
}  # fmt: skip
#: Imports a module without bytecode while the guard is active.
IMPORT_UNDER_GUARD: Final = """
import sys
from pathlib import Path
from tests.fuzz.guard import GUARD, install
folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
install()
with GUARD.watching((folder / "ws",), folder / "tmp", 60):
    import imported_late
"""
#: Documents of all targets in `make soak`.
MANY: Final = 200_000


def fuzz(*args: str) -> subprocess.CompletedProcess[str]:
    """Run the fuzzer in its own process, because it forks."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JSPLAN_", "NATS_"))
    }
    command = [sys.executable, "-m", "tests.fuzz", *args]
    return subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )


def require_no_findings(completed: subprocess.CompletedProcess[str]) -> None:
    """Require that the fuzzer found nothing."""
    assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.mark.timeout(600)
def test_hostile_documents_are_refused_in_words() -> None:
    """Kept cases, seeds and new documents of every target give no traceback, hang or secret."""
    assert FEW.keys() == TARGETS.keys()
    counts = (f"{target}:{count}" for target, count in FEW.items())
    require_no_findings(fuzz(*counts, "--kept", "--seed", str(SEED)))


def test_an_import_is_no_change(tmp_path: Path) -> None:
    """The first import of a module, as in a clean checkout, is no finding and writes no file."""
    (tmp_path / "imported_late.py").touch()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    completed = subprocess.run(
        [sys.executable, "-c", IMPORT_UNDER_GUARD, str(tmp_path)],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )

    require_no_findings(completed)
    assert [path.name for path in tmp_path.iterdir()] == ["imported_late.py"]


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_very_many_hostile_documents(request: pytest.FixtureRequest) -> None:
    """At least 200,000 documents give no failure; the count of each target is printed."""
    shares = sum(target.share for target in TARGETS.values())
    counts = {name: -(-MANY * target.share // shares) for name, target in TARGETS.items()}
    seed = str(SEED + 1)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        completed = dict(
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
    for name, completed_target in completed.items():
        last = completed_target.stdout.strip().rpartition("\n")[2]
        reporter.write_line(last or f"{name}: {completed_target.stderr[-300:]}")
    reporter.write_line(f"in all: {sum(counts.values()):,} documents of seed {seed}")

    assert sum(counts.values()) >= MANY
    assert {} == {
        name: completed_target.stdout[-4000:] + completed_target.stderr[-2000:]
        for name, completed_target in completed.items()
        if completed_target.returncode
    }
