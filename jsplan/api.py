"""The Python API: what the commands of the same names do, over the same documents.

    from jsplan.api import PlanOptions, Workspace

    workspace = Workspace.at("infra", environment="prod")
    plan = workspace.plan(PlanOptions(targets=("hub/**",)))
    if plan.has_changes:
        result = workspace.apply(plan)

Each method raises the errors of `jsplan.errors`, all of them JsplanError, whose `exit_code` is that
of the command. Each runs an event loop of its own: from a coroutine, call it in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from jsplan.backfill.options import BackfillOptions, VerifyOptions
from jsplan.config.model import LoadOptions
from jsplan.options import Approve, DriftOptions, NullObserver, Observer, PlanOptions

if TYPE_CHECKING:
    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.backfill import (
        BackfillPreview,
        BackfillResult,
        BackfillStatus,
        Verification,
    )
    from jsplan.documents.drift import Drift
    from jsplan.documents.plan import Plan

__all__ = [
    "Approve",
    "BackfillOptions",
    "DriftOptions",
    "LoadOptions",
    "NullObserver",
    "Observer",
    "PlanOptions",
    "VerifyOptions",
    "Workspace",
    "save_plan",
]


@dataclass(frozen=True, slots=True)
class Workspace:
    """A workspace on disk. Nothing is read before a method is called.

    The progress is reported to `observer`.
    """

    load: LoadOptions
    observer: Observer = field(default_factory=NullObserver)

    @classmethod
    def at(
        cls,
        directory: Path | str,
        environment: str | None = None,
        variables: Mapping[str, str] | None = None,
        var_files: Iterable[Path | str] = (),
        environ: Mapping[str, str] | None = None,
        observer: Observer | None = None,
    ) -> Workspace:
        """Return the workspace of a folder, with the values of -e, --var and --var-file.

        `environ` is the environment of `${env.NAME}`, by default that of the process.
        """
        load = LoadOptions(
            Path(directory),
            environment,
            tuple(f"{name}={value}" for name, value in (variables or {}).items()),
            tuple(Path(path) for path in var_files),
            dict(os.environ) if environ is None else environ,
        )
        return cls(load, observer or NullObserver())

    # --- plan, apply, drift -----------------------------------------------------------------------

    def plan(self, options: PlanOptions = PlanOptions()) -> Plan:
        """Compare files, servers and state. Takes no lock and writes nothing.

        Findings about single resources are in `diagnostics`; `errored` is True if one is an error.
        Raises ConfigError, StateError, ConnectError and ApiError.
        """
        from jsplan.workflows.plan import plan

        return plan(self.load, options, self.observer)

    def apply(self, plan: Plan, options: PlanOptions = PlanOptions()) -> ApplyResult:
        """Execute exactly this plan, without a question. `options` may only allow more hazards.

        Raises, before the first write: PlanError for a plan with errors, RefusedError for hazards
        that are not allowed, StalePlanError if the state, or an object that the plan touches, has
        changed since, StateLockedError. What fails later is in the result.
        """
        from jsplan.workflows.apply import apply_plan

        return apply_plan(self.load, plan, options, self.observer)

    def apply_saved(
        self, path: Path | str, options: PlanOptions = PlanOptions()
    ) -> tuple[Plan, ApplyResult]:
        """Execute a plan that `save_plan`, or `jsplan plan -o`, wrote. Raises as `apply`."""
        from jsplan.workflows.apply import apply_saved

        return apply_saved(self.load, Path(path), options, self.observer)

    def plan_and_apply(self, options: PlanOptions, approve: Approve) -> tuple[Plan, ApplyResult]:
        """Plan, call `approve` with a plan that has changes, and execute it, all under the lock.

        `approve` raises NotApprovedError to stop. Raises the errors of `plan` and `apply`.
        """
        from jsplan.workflows.apply import apply

        return apply(self.load, options, approve, self.observer)

    def drift(self, options: DriftOptions = DriftOptions()) -> Drift:
        """Compare servers and state. Sends nothing that could change a server; takes no lock.

        Raises ConfigError, StateError, ConnectError (no domain at all answers) and ApiError.
        """
        from jsplan.workflows.drift import drift

        return drift(self.load, options, self.observer)

    # --- backfill, which needs the extra `spark` --------------------------------------------------

    def backfill(self, options: BackfillOptions) -> BackfillResult:
        """Copy the pending messages of an entry, then verify them. Resumes an interrupted run.

        Raises RefusedError for hazards that are not allowed, StateLockedError, ConnectError,
        NotAvailableError without Spark or Java, and JsplanError or ApiError for an interrupted
        copy, which another run resumes.
        """
        from jsplan.workflows import backfill

        return backfill.run(self.load, options, self.observer)

    def preview_backfill(self, options: BackfillOptions) -> BackfillPreview:
        """Count the pending messages of an entry; choose the strategy and estimate the time.

        Takes no lock and writes nothing. Raises UsageError, ConnectError, ApiError and
        NotAvailableError.
        """
        from jsplan.workflows import backfill

        return backfill.plan(self.load, options)

    def verify_backfill(self, options: VerifyOptions) -> Verification:
        """Compare origins and target of an entry, message by message.

        Takes no lock and writes nothing. Raises UsageError, ConnectError, ApiError and
        NotAvailableError.
        """
        from jsplan.workflows import backfill

        return backfill.verify(self.load, options, self.observer)

    def backfill_status(self, *names: str) -> BackfillStatus:
        """Read the progress of entries, of all without names. Raises UsageError."""
        from jsplan.workflows import backfill

        return backfill.status(self.load, names)


def save_plan(plan: Plan, path: Path | str) -> None:
    """Write a plan, which has no secrets. Raises JsplanError if it cannot be written."""
    from jsplan.workflows.plan import save_plan

    save_plan(plan, Path(path))
