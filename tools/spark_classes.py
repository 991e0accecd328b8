"""Make an archive of the classes that Spark loads, so that Spark starts with half the work.

`make pytest` makes it once per environment, and tests/conftest.py lets every Java of the tests use
it. Without it, or with another Java, Spark starts as always.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Final

from jsplan.errors import JsplanError
from jsplan.sandbox import Sandbox
from tests.support.raw import Raw

#: For Java: an archive that does not fit is passed over without a word.
USE_OPTION: Final = "-Xlog:disable -XX:SharedArchiveFile={}"
MAKE_OPTION: Final = "-Xlog:disable -XX:ArchiveClassesAtExit={}"
#: For Java to write the archive.
JVM_EXIT_TIMEOUT: Final = 120
BACKFILLS: Final = (
    {
        "name": "stream",
        "from": {"domain": "main", "stream": "S"},
        "to": {"domain": "main", "stream": "T"},
        "strategy": "spark",
    },
    {
        "name": "shaped",
        "from": {"domain": "main", "stream": "S"},
        "to": {"parquet": "shaped"},
        "where": "length(subject) > 1",
    },
)


def archive_path() -> Path:
    """Return the path of the archive of this environment."""
    return Path(sys.prefix) / f"spark-{version('pyspark')}.jsa"


def main() -> int:
    """Make the archive unless it is there."""
    if archive_path().exists() or not shutil.which("java"):
        return 0
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "classes.jsa"
        os.environ["SPARK_SUBMIT_OPTS"] = MAKE_OPTION.format(archive)
        try:
            run_backfills(Path(folder))
        except (
            JsplanError,
            OSError,
            subprocess.SubprocessError,
        ) as error:  # Spark then starts as always
            sys.stderr.write(f"No archive of classes for Spark: {error}\n")
            return 0
        if archive.exists():
            shutil.move(archive, archive_path())
    return 0


def run_backfills(folder: Path) -> None:
    """Copy and compare a few messages, then wait until Java has ended."""
    from pyspark import SparkContext  # noqa: PLC0415 - only when there is something to make

    with Sandbox.single() as sandbox:
        url = sandbox["server"].url
        streams = [
            {"name": name, "domain": "main", "subjects": [f"{name.lower()}.>"]} for name in "ST"
        ]
        (folder / "jsplan.yaml").write_text(
            json.dumps(
                {
                    "jsplan": 1,
                    "workspace": "classes",
                    "connections": {"main": {"url": url}},
                    "domains": {"main": {"connection": "main", "js_domain": None}},
                    "streams": streams,
                    "backfills": BACKFILLS,
                }
            ),
            encoding="utf-8",
        )
        run_jsplan(folder, "apply", "-y", "--no-backfill")
        with Raw(url, None, None) as raw:
            for number in range(100):
                raw.request("s.x", b"%d" % number)
        for words in (("run", "stream"), ("verify", "stream"), ("run", "shaped")):
            run_jsplan(folder, "backfill", *words)
        gateway = SparkContext._gateway  # noqa: SLF001 - Java writes the archive when it ends, and nothing else waits for that
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(JVM_EXIT_TIMEOUT)


def run_jsplan(folder: Path, *words: str) -> None:
    """Run one command in this process, so that all of them have the same Java."""
    from jsplan.cli.main import main as cli  # noqa: PLC0415 - tests read this module when they start

    with (
        (folder / "log").open("a", encoding="utf-8") as log,
        redirect_stdout(log),
        redirect_stderr(log),
    ):
        if cli(["-C", str(folder), *words]):
            raise JsplanError(
                f"jsplan {' '.join(words)}: {(folder / 'log').read_text(encoding='utf-8')}"
            )


if __name__ == "__main__":
    sys.exit(main())
