"""backfill: messages of one stream into another, exactly once. `run` works under the state's lock; `verify` and `status` take none.

What needs the extra `spark` is imported when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.backfill.options import BackfillOptions, VerifyOptions
from jsplan.backfill.spark_extra import require_spark
from jsplan.errors import InterruptedByUser
from jsplan.event_loop import run_until_complete as run_workflow

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.config.model import LoadOptions
    from jsplan.documents.backfill import BackfillResult, BackfillStatus, Verification
    from jsplan.documents.backfill_preview import BackfillPreview
    from jsplan.options import Observer

__all__ = ["BackfillOptions", "VerifyOptions", "plan", "run", "status", "verify", "write_job"]


def run(load: LoadOptions, options: BackfillOptions, observer: Observer) -> BackfillResult:
    """Copy what is missing of an entry, and prove that it arrived. What an attempt that died left is taken over first.

    Raises RefusedError for what must be allowed, StateLockedError, ConnectError, NotAvailableError without Spark or Java,
    InterruptedByUser, and JsplanError or ApiError for a copy that broke off: run again, it goes on.
    """
    require_spark()
    from jsplan.backfill.run import run_backfill  # noqa: PLC0415

    try:
        return run_workflow(run_backfill(load, options, observer))
    except KeyboardInterrupt:
        raise InterruptedByUser(
            "interrupted; what was copied is kept, the state is saved and its lock released",
            hint="Run it again: it goes on from there.",
        ) from None


def plan(load: LoadOptions, options: BackfillOptions) -> BackfillPreview:
    """What is missing of an entry, measured, by what it would be copied and about how long that takes. Starts no Spark, takes no lock and
    writes nothing; counting takes consumers in memory. Raises UsageError, ConnectError, ApiError and NotAvailableError.
    """
    require_spark()
    from jsplan.backfill.preview import preview_backfill  # noqa: PLC0415

    return run_workflow(preview_backfill(load, options))


def write_job(load: LoadOptions, options: BackfillOptions, path: Path, observer: Observer) -> None:
    """Freeze the range of an entry, keep it in state, and write it as a job for `spark-submit`. Raises what a run raises before it copies,
    and RefusedError for a secret that stands in the files.
    """
    require_spark()
    from jsplan.backfill.spark_job import write_job  # noqa: PLC0415

    run_workflow(write_job(load, options, path, observer))


def verify(load: LoadOptions, options: VerifyOptions, observer: Observer) -> Verification:
    """Compare both sides of an entry, message by message. Takes no lock and writes nothing; reading takes consumers in memory.

    Raises UsageError, ConnectError, ApiError and NotAvailableError.
    """
    require_spark()
    from jsplan.backfill.verify.command import verify_backfill  # noqa: PLC0415

    return run_workflow(verify_backfill(load, options, observer))


def status(load: LoadOptions, names: tuple[str, ...] = ()) -> BackfillStatus:
    """How far each entry is and what lies around of it. Starts no Spark, takes no lock, writes nothing. Raises UsageError."""
    from jsplan.backfill.status import read_backfill_status  # noqa: PLC0415

    return run_workflow(read_backfill_status(load, names))
