"""The command of a job file: `backfill run` on the session of `spark-submit`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jsplan.cli import exit_status
from jsplan.cli.main import main as jsplan
from jsplan.cli.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(job: str, argv: Sequence[str] | None = None) -> int:
    """Run with the options after the script's name; return the exit code, raise nothing."""
    given = list(sys.argv[1:] if argv is None else argv)

    def run() -> object:
        from jsplan.backfill import spark_job
        from jsplan.backfill.spark_extra import require_spark

        require_spark()
        with spark_job.unpack_job(job) as (words, name):
            from jsplan.config.model import LoadOptions

            environment = words[3] if len(words) > 2 else None
            spark_job.require_pinned(
                LoadOptions(Path(words[1]), environment, environ=dict(os.environ)), job
            )
            return _run_on_spark([*words, "backfill", "run", name, *given])

    return exit_status.run_to_exit_code(run, Settings(), given)


def _run_on_spark(words: list[str]) -> int:
    from jsplan.backfill.spark.session import get_submitted_session

    session = get_submitted_session()
    try:
        return jsplan(words)
    finally:
        session.stop()
