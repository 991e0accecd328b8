"""The backfill commands, which copy messages between streams exactly once.

`run` takes the lock of the state; `plan`, `verify` and `status` do not. Modules that need the extra
`spark` are imported at the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.backfill.options import BackfillOptions, VerifyOptions
from jsplan.backfill.spark_extra import require_spark
from jsplan.errors import InterruptedByUser
from jsplan.event_loop import run_until_complete as run_workflow

if TYPE_CHECKING:
    from jsplan.config.model import LoadOptions
    from jsplan.documents.backfill import (
        BackfillPreview,
        BackfillResult,
        BackfillStatus,
        Verification,
    )
    from jsplan.options import Observer

__all__ = ["BackfillOptions", "VerifyOptions", "plan", "run", "status", "verify"]


def run(load: LoadOptions, options: BackfillOptions, observer: Observer) -> BackfillResult:
    """Copy the pending messages of an entry, then verify them. Resumes an interrupted run first.

    Raises RefusedError for hazards that are not allowed, StateLockedError, ConnectError,
    NotAvailableError without Spark or Java, InterruptedByUser, and JsplanError or ApiError for an
    interrupted copy, which another run resumes.
    """
    require_spark()
    from jsplan.backfill.run import run_backfill  # noqa: PLC0415

    try:
        return run_workflow(run_backfill(load, options, observer))
    except KeyboardInterrupt:
        raise InterruptedByUser(
            "interrupted; what was copied is kept, the state is saved and its lock released",
            hint="Run it again to resume.",
        ) from None


def plan(load: LoadOptions, options: BackfillOptions) -> BackfillPreview:
    """Preview an entry: its pending messages, the strategy and the estimated time.

    Starts no Spark, takes no lock and writes nothing; counting creates consumers in memory. Without
    the extra the numbers are upper bounds. Raises UsageError, ConnectError, ApiError and
    NotAvailableError.
    """
    from jsplan.backfill.preview import preview_backfill  # noqa: PLC0415

    return run_workflow(preview_backfill(load, options))


def verify(load: LoadOptions, options: VerifyOptions, observer: Observer) -> Verification:
    """Compare origins and target of an entry, message by message.

    Takes no lock and writes nothing; reading creates consumers in memory. Raises UsageError,
    ConnectError, ApiError and NotAvailableError.
    """
    require_spark()
    from jsplan.backfill.verify import verify_backfill  # noqa: PLC0415

    return run_workflow(verify_backfill(load, options, observer))


def status(load: LoadOptions, names: tuple[str, ...] = ()) -> BackfillStatus:
    """Read the progress and the orphans of entries.

    Starts no Spark, takes no lock and writes nothing. Raises UsageError.
    """
    from jsplan.backfill.status import read_backfill_status  # noqa: PLC0415

    return run_workflow(read_backfill_status(load, names))
