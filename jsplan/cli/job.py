"""Runs a job file under `spark-submit`: the command `backfill run` on the session that spark-submit has given to this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jsplan.cli import outcome
from jsplan.cli.main import main as jsplan
from jsplan.cli.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(job: str, argv: Sequence[str] | None = None) -> int:
    """Run it with the options that follow the script's name and return the exit code; raises nothing."""
    given = list(sys.argv[1:] if argv is None else argv)

    def run() -> object:
        from jsplan.backfill.installed import require
        from jsplan.workflows.backfill import job_file

        require()
        with job_file.unpacked(job) as (words, name):
            from jsplan.config.model import LoadOptions

            environment = words[3] if len(words) > 2 else None
            job_file.require_frozen(LoadOptions(Path(words[1]), environment, environ=dict(os.environ)), job)
            return _on_spark([*words, "backfill", "run", name, *given])

    return outcome.exit_code_of(run, Settings(), given)


def _on_spark(words: list[str]) -> int:
    from jsplan.backfill.spark.session import submitted

    session = submitted()
    try:
        return jsplan(words)
    finally:
        session.stop()
