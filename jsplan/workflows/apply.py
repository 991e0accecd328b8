"""apply: lock, plan or load a saved plan, show, approve, check, execute, save."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from jsplan.address import Address
from jsplan.applying.backup_before_delete import BackupBeforeDelete
from jsplan.applying.executor import Execution
from jsplan.applying.operations import Operation
from jsplan.applying.preconditions import open_domains, require_as_planned
from jsplan.applying.result import build_result, summarize_execution
from jsplan.applying.rollout import Wave, require_known_terms, run_in_waves, split_into_waves
from jsplan.applying.saved_plan import (
    contents_of,
    mark_allowed,
    record_deferred,
    record_owner,
    record_servers,
    require_consistent_steps,
    require_planned_contents,
    require_same_workspace,
    require_unguarded,
    resume_plan,
    unplanned_note,
)
from jsplan.backfill.apply_hook import require_runnable, run_planned_backfills
from jsplan.backfill.ranges import collect_planned_ranges, require_unchanged_origins
from jsplan.backfill.snapshot_creates import SnapshotCreates
from jsplan.config.model import LoadOptions
from jsplan.context import Context, Session, hold_session, known_domains, open_context
from jsplan.disk import display_path
from jsplan.documents.apply import ApplyResult, StepResult
from jsplan.documents.plan import Plan
from jsplan.errors import PartialApplyError, PlanError, StateError
from jsplan.event_loop import runs_to_end, stop_on_signal
from jsplan.history import HistoryWriter
from jsplan.options import Approve, Observer, PlanOptions
from jsplan.planning.hazard_permissions import check_permissions
from jsplan.planning.refusals import require_permission
from jsplan.units import count_text
from jsplan.workflows.plan import compute_plan, load_plan

#: Running steps that are named when an apply is interrupted.
_MAX_TITLES = 5


@runs_to_end
async def apply(
    load: LoadOptions, options: PlanOptions, approve: Approve, observer: Observer
) -> tuple[Plan, ApplyResult]:
    """Plan, let `approve` show the plan and ask, and execute it, all under the lock.

    Raises RefusedError before the first write for hazards that are not allowed, StateLockedError,
    PlanError for a plan with errors, and the errors of `approve`. Later failures are in the result.
    """
    async with open_context(load) as context:
        return await plan_and_apply(context, options, approve, observer)


async def plan_and_apply(
    context: Context, options: PlanOptions, approve: Approve, observer: Observer
) -> tuple[Plan, ApplyResult]:
    """Plan and apply with loaded files, for `apply` and `import`."""
    operation = "destroy" if options.destroy else "apply"
    require_known_terms(options.waves, context.workspace.domains)
    async with hold_session(context, operation, options.lock_timeout, observer) as session:
        plan = await compute_plan(session, options)
        if plan.errored:
            raise PlanError(plan.diagnostics, "the plan has errors; nothing was changed")
        if plan.has_changes:
            await asyncio.to_thread(approve, plan)
            require_permission(plan)
            require_runnable(context, plan, options)
        return plan, await _execute_with_backfills(session, plan, options)


def apply_saved(
    load: LoadOptions, plan_path: Path, options: PlanOptions, observer: Observer
) -> tuple[Plan, ApplyResult]:
    """Execute a saved plan without questions, as `apply_plan`, by default in its environment."""
    plan = load_plan(plan_path)
    if load.environment is None and not load.environ.get("JSPLAN_ENV"):
        load = dataclasses.replace(load, environment=plan.environment)
    return plan, apply_plan(load, plan, options, observer, name=display_path(plan_path))


@runs_to_end
async def apply_plan(
    load: LoadOptions,
    plan: Plan,
    options: PlanOptions,
    observer: Observer,
    name: str = "this plan",
) -> ApplyResult:
    """Execute a plan without questions. `options` may only allow more hazards.

    `name` is that of the plan in messages. Raises StalePlanError if the state, or an object that
    the plan touches, has changed since.
    """
    async with (
        open_context(load) as context,
        hold_session(context, "apply", options.lock_timeout, observer) as session,
    ):
        require_known_terms(options.waves, context.workspace.domains)
        require_same_workspace(
            plan, context.workspace, context.state, name, resumed=options.deferred
        )
        options = dataclasses.replace(
            options, backfill=options.backfill and plan.options.get("backfill", True)
        )
        _check_permissions(context, plan, options, observer)
        if options.deferred:
            if note := unplanned_note(plan):
                observer.warn(note)
            plan = resume_plan(plan, context.state, name)
        mark_allowed(plan, options.allow_hazards)
        if plan.errored:
            raise PlanError(plan.diagnostics, "the saved plan has errors; nothing was changed")
        require_unguarded(plan, context.workspace, context.state)
        require_permission(plan)
        require_runnable(context, plan, options)
        return await _execute_with_backfills(session, plan, options, saved=True)


def _check_permissions(
    context: Context, plan: Plan, options: PlanOptions, observer: Observer
) -> None:
    """Warn about a flag that may name nothing; raise PlanError for one that does."""
    known = {
        *(Address.parse(change.address) for change in plan.resource_changes),
        *context.workspace.resources,
        *context.state.resources,
    }
    offline = {deferred.address.partition("/")[0] for deferred in plan.deferred}
    found = list(check_permissions(options.allow_hazards, known, offline))
    if errors := [finding for finding in found if finding.severity == "error"]:
        raise PlanError(errors, errors[0].summary)
    for finding in found:
        observer.warn(f"{finding.summary}. {finding.detail}")


async def _execute_with_backfills(
    session: Session, plan: Plan, options: PlanOptions, *, saved: bool = False
) -> ApplyResult:
    creates = SnapshotCreates(session, plan, with_backfills=options.backfill)
    result = await execute_plan(session, plan, options, creates.operations, saved=saved)
    return await run_planned_backfills(session, plan, result, options, creates.results)


async def execute_plan(
    session: Session,
    plan: Plan,
    options: PlanOptions,
    operations: Mapping[str, Operation] | None = None,
    *,
    saved: bool = False,
) -> ApplyResult:
    """Check all preconditions, run the steps under a new serial, and save the state at the end.

    `operations` are kinds of steps that the caller implements. For a `saved` plan the state stores
    the deferred steps. Raises PartialApplyError when the state cannot be written any more.
    """
    require_consistent_steps(plan)
    context, pool, observer = session.context, session.pool, session.observer
    waves = split_into_waves(options.waves, plan, context.workspace.domains, context.topology)
    apis, lost = await open_domains(pool, plan, context.workspace.domains, known_domains(context))
    require_planned_contents(plan, context.workspace)
    imports = await require_as_planned(plan, apis, lost)
    ranges = collect_planned_ranges(context, plan)
    await require_unchanged_origins(context, pool, ranges.new_origins)
    has_backfills = options.backfill and bool(plan.backfills)
    if not (plan.steps or plan.mode == "refresh-only" or has_backfills or ranges.states):
        return build_result(plan, context.state, [], {}, interrupted=False)
    backups = BackupBeforeDelete(plan, apis, options.backup, observer) if options.backup else None
    if backups is not None:
        backups.require_possible()
    await context.backend.start(context.state)
    history = HistoryWriter.record_begin(context, plan)
    execution = Execution(
        plan,
        apis,
        context.backend,
        context.state,
        observer.event,
        asyncio.Event(),
        options.parallelism,
        options.moves,
        options.follow,
        before_write=backups.before_write if backups else None,
        operations=operations or {},
        imports=imports,
        contents=contents_of(context.workspace),
    )
    try:
        record_servers(context.backend, context.state, plan, context.workspace.domains)
        record_owner(context.backend, context.state, plan)
        ranges.write(context)
        with backups.open_folder() if backups else nullcontext():
            async with stop_on_signal(execution.stop, partial(_report_stop, execution, observer)):
                results = await _run_steps(session, execution, waves, options)
        if saved:
            offline = lost.keys() | execution.lost_domains.keys()
            record_deferred(context.backend, context.state, plan, results, offline)
    finally:
        result = await summarize_execution(execution, lost, backups)
        await _finish_state(context, execution, history, result)
    return result


def _report_stop(execution: Execution, observer: Observer) -> None:
    """Report at once what a Ctrl-C waits for."""
    titles = list(execution.running.values())
    if not titles:
        observer.warn("interrupted; no step is running")
        return
    more = f" and {len(titles) - _MAX_TITLES:,} more" if len(titles) > _MAX_TITLES else ""
    observer.warn(
        f"interrupted; waiting for {count_text(len(titles), 'running step')}: "
        f"{', '.join(titles[:_MAX_TITLES])}{more}. Ctrl-C again does not wait."
    )


async def _run_steps(
    session: Session, execution: Execution, waves: list[Wave], options: PlanOptions
) -> list[StepResult]:
    if not waves:
        return await execution.run()
    context = session.context
    return await run_in_waves(
        execution,
        waves,
        options.max_failures,
        context.topology,
        context.workspace.domains,
        session.pool,
        session.observer,
    )


async def _finish_state(
    context: Context, execution: Execution, history: HistoryWriter | None, result: ApplyResult
) -> None:
    try:
        if history is not None:
            history.record_end(execution.collect_results(), result)
        await context.backend.finish(context.state)
    except StateError as error:
        done = sum(1 for result in execution.results.values() if result.status == "done")
        message = f"{error}; {done} of {len(execution.plan.steps)} steps are done"
        raise PartialApplyError(
            message,
            hint="Finished steps are in the journal of the state."
            " When it can be written again, run: jsplan plan",
        ) from None
