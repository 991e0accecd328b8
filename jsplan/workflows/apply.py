"""apply: lock, plan or load a saved plan, show, approve, check, execute, save."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from jsplan.address import Address
from jsplan.applying.backup_before_delete import BackupBeforeDelete
from jsplan.applying.executor import Execution
from jsplan.applying.operations import Operation
from jsplan.applying.preconditions import find_changes
from jsplan.applying.resume_plan import deferred_steps, resume_plan, unplanned_note
from jsplan.applying.rollout import Rollout, Wave, require_known_terms, split_into_waves
from jsplan.applying.step_consistency import OP_RULES, require_consistent_steps
from jsplan.backfill.apply_hook import require_runnable, run_planned_backfills
from jsplan.backfill.planned_ranges import collect_planned_ranges, require_unchanged_origins
from jsplan.backfill.snapshot_creates import SnapshotCreates
from jsplan.config.model import LoadOptions
from jsplan.context import Context, hold_lock, known_domains, open_context, open_pool
from jsplan.documents.apply import ApplyResult, StepResult
from jsplan.documents.plan import Deferred, Plan
from jsplan.errors import (
    ApiError,
    ConnectError,
    ExitCode,
    PartialApplyError,
    PlanError,
    RefusedError,
    StalePlanError,
    StateError,
    UsageError,
    combine_exit_codes,
)
from jsplan.event_loop import run_until_complete
from jsplan.facts.duplicate_servers import DuplicateServerCheck
from jsplan.facts.live import DomainFacts
from jsplan.facts.reader import identify_domains, open_answering, read_object
from jsplan.history.record import HistoryWriter
from jsplan.jetstream import DomainApi, Pool
from jsplan.options import Approve, Observer, PlanOptions
from jsplan.planning.guards import is_guarded, is_same_server, server_label
from jsplan.planning.hazard_permissions import check_permissions
from jsplan.planning.hazards import is_permitted
from jsplan.planning.preserve.interrupted import (
    InterruptedReplacement,
    determine_progress,
    list_interrupted,
)
from jsplan.planning.refusals import explain_refusals, list_refusals
from jsplan.workflows.plan import compute_plan, load_plan


def apply(
    load: LoadOptions, options: PlanOptions, approve: Approve, observer: Observer
) -> tuple[Plan, ApplyResult]:
    """Plan, let `approve` show the plan and ask, and execute it, all under the lock.

    Raises RefusedError before the first write for hazards that are not allowed, StateLockedError,
    PlanError for a plan with errors, and the errors of `approve`. Later failures are in the result.
    """
    return run_until_complete(_apply(load, options, approve, observer))


async def _apply(
    load: LoadOptions, options: PlanOptions, approve: Approve, observer: Observer
) -> tuple[Plan, ApplyResult]:
    async with open_context(load) as context:
        return await plan_and_apply(context, options, approve, observer)


async def plan_and_apply(
    context: Context, options: PlanOptions, approve: Approve, observer: Observer
) -> tuple[Plan, ApplyResult]:
    """Plan and apply with loaded files, for `apply` and `import`."""
    operation = "destroy" if options.destroy else "apply"
    require_known_terms(options.waves, context.workspace.domains)
    async with (
        hold_lock(context, operation, options.lock_timeout, observer),
        open_pool(context, read_only=False) as pool,
    ):
        plan = await compute_plan(context, pool, options, observer)
        if plan.errored:
            raise PlanError(plan.diagnostics, "the plan has errors; nothing was changed")
        if plan.has_changes:
            await asyncio.to_thread(approve, plan)
            require_permission(plan)
            require_runnable(context, plan, options)
        creates = SnapshotCreates(context, pool, plan, options, observer)
        result = await execute_plan(context, pool, plan, options, observer, creates.operations)
        return plan, await run_planned_backfills(
            context, pool, plan, result, options, observer, creates.results
        )


def apply_saved(
    load: LoadOptions, plan_path: Path, options: PlanOptions, observer: Observer
) -> tuple[Plan, ApplyResult]:
    """Execute a saved plan without questions. `options` may only allow more hazards.

    Raises StalePlanError if the state, or an object that the plan touches, has changed since.
    """
    plan = load_plan(plan_path)
    return plan, run_until_complete(_apply_saved(load, plan, plan_path, options, observer))


async def _apply_saved(
    load: LoadOptions, plan: Plan, path: Path, options: PlanOptions, observer: Observer
) -> ApplyResult:
    async with (
        open_context(load) as context,
        hold_lock(context, "apply", options.lock_timeout, observer),
    ):
        require_known_terms(options.waves, context.workspace.domains)
        _require_same_workspace(plan, context, path, resumed=options.deferred)
        options = replace(options, backfill=options.backfill and plan.options.get("backfill", True))
        if options.deferred:
            plan = _resume_plan(plan, context, path, observer)
        _mark_allowed(plan, options.allow_hazards)
        for found in check_permissions(
            options.allow_hazards, [change.address for change in plan.resource_changes]
        ):
            observer.warn(f"{found.summary}. {found.detail}")
        if plan.errored:
            raise PlanError(plan.diagnostics, "the saved plan has errors; nothing was changed")
        _require_unguarded(plan, context)
        require_permission(plan)
        require_runnable(context, plan, options)
        async with open_pool(context, read_only=False) as pool:
            creates = SnapshotCreates(context, pool, plan, options, observer)
            result = await execute_plan(
                context, pool, plan, options, observer, creates.operations, saved=True
            )
            return await run_planned_backfills(
                context, pool, plan, result, options, observer, creates.results
            )


def _resume_plan(plan: Plan, context: Context, path: Path, observer: Observer) -> Plan:
    """Return the remaining steps of an applied plan; warn about changes it had no steps for."""
    if note := unplanned_note(plan):
        observer.warn(note)
    return resume_plan(plan, context.state, path)


def _require_same_workspace(plan: Plan, context: Context, path: Path, *, resumed: bool) -> None:
    """Raise if the plan is for another workspace or state. `resumed`: it was applied in part."""
    workspace, state = context.workspace, context.state
    if (plan.workspace, plan.environment) != (workspace.name, workspace.environment):
        planned = f"{plan.workspace}, environment {plan.environment or 'none'}"
        raise UsageError(
            f"{path} was planned for workspace {planned}",
            hint="Run it in that workspace, with its -e.",
        )
    if not resumed and (plan.state["lineage"], plan.state["serial"]) != (
        state.lineage or None,
        state.serial,
    ):
        raise StalePlanError(
            f"the state changed after {path} was made"
            f" (serial {plan.state['serial']}, now {state.serial}): "
            "this plan was applied already, or another one was. Nothing was changed",
            hint="Plan again: jsplan plan -o FILE",
        )


def _require_unguarded(plan: Plan, context: Context) -> None:
    """Raise RefusedError if the plan deletes what files or state guard now."""
    for step in plan.steps:
        address = Address.parse(step.address)
        recorded = Address.parse(str((step.record or {}).get("previous_address") or step.address))
        entry = context.state.resources.get(recorded)
        if OP_RULES[step.op].deletes and is_guarded(
            context.workspace, address, guarded=entry is not None and entry.prevent_destroy
        ):
            raise RefusedError(
                f"refused, nothing was changed: {address} is guarded by prevent_destroy,"
                " and the plan deletes it",
                hint="To lift the guard write prevent_destroy: false in its lifecycle,"
                " or in a removed entry. Then plan again.",
            )


def _mark_allowed(plan: Plan, flags: tuple[str, ...]) -> None:
    for change in plan.resource_changes:
        for hazard in change.hazards:
            hazard.allowed = hazard.allowed or is_permitted(flags, hazard.code, change.address)


def require_permission(plan: Plan) -> None:
    """Raise RefusedError that lists each hazard and guard, and how to allow it."""
    if refusals := list_refusals(plan):
        raise RefusedError(explain_refusals(refusals))


async def execute_plan(
    context: Context,
    pool: Pool,
    plan: Plan,
    options: PlanOptions,
    observer: Observer,
    operations: Mapping[str, Operation] | None = None,
    *,
    saved: bool = False,
) -> ApplyResult:
    """Check all preconditions, run the steps under a new serial, and save the state at the end.

    `operations` are kinds of steps that the caller implements. For a `saved` plan the state stores
    the deferred steps. Raises PartialApplyError when the state cannot be written any more.
    """
    require_consistent_steps(plan)
    waves = split_into_waves(options.waves, plan, context.workspace.domains, context.topology)
    apis, lost = await _open_domains(context, pool, plan)
    await _require_as_planned(plan, apis, lost)
    ranges = collect_planned_ranges(context, plan)
    await require_unchanged_origins(context, pool, ranges.new_origins)
    has_backfills = options.backfill and bool(plan.backfills)
    if not (plan.steps or plan.mode == "refresh-only" or has_backfills or ranges.states):
        return _build_result(plan, context, [], {}, interrupted=False)
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
        before_write=backups.before_write if backups else None,
        operations=operations or {},
    )
    try:
        _record_servers(context, plan)
        _record_owner(context, plan)
        ranges.write(context)
        with backups.open_folder() if backups else nullcontext():
            async with _stop_on_signal(execution.stop):
                results = await (
                    _run_in_waves(context, pool, execution, waves, options, observer)
                    if waves
                    else execution.run()
                )
        if saved:
            _record_deferred(context, plan, results, lost.keys() | execution.lost_domains.keys())
    finally:
        result = await _summarize_execution(context, execution, lost, backups)
        await _finish_state(context, execution, history, result)
    return result


async def _summarize_execution(
    context: Context,
    execution: Execution,
    lost: Mapping[str, str],
    backups: BackupBeforeDelete | None,
) -> ApplyResult:
    """Build the result of all steps so far; `lost` are the domains that were lost before them."""
    result = _build_result(
        execution.plan,
        context,
        execution.collect_results(),
        {**lost, **execution.lost_domains},
        interrupted=execution.stop.is_set(),
    )
    if backups is not None and backups.saved:
        result.backup = {"folder": str(backups.path), "streams": sorted(backups.saved)}
    result.interrupted = list_interrupted(await _read_interrupted(execution))
    return result


async def _read_interrupted(execution: Execution) -> dict[Address, InterruptedReplacement]:
    """Read interrupted replacements from the servers that answer."""
    found: dict[Address, InterruptedReplacement] = {}
    for name, record in execution.state.replacements.items():
        address, api = Address.parse(name), execution.apis.get(Address.parse(name).domain)
        if "staging" in record and api is not None and address.domain not in execution.lost_domains:
            with suppress(ApiError):
                target, staging = (
                    await read_object(api, address),
                    await read_object(api, Address.parse(record["staging"])),
                )
                found[address] = determine_progress(address, record, target, staging)
    return found


async def _run_in_waves(
    context: Context,
    pool: Pool,
    execution: Execution,
    waves: list[Wave],
    options: PlanOptions,
    observer: Observer,
) -> list[StepResult]:
    """Run wave by wave. Between waves unchanged downstream streams are checked too."""
    edges = [
        edge
        for edge in context.topology.edges
        if {edge.origin.domain, edge.downstream.domain} & execution.apis.keys()
    ]
    others = {
        address.domain for edge in edges for address in (edge.origin, edge.downstream)
    } - execution.apis.keys()
    apis = dict(execution.apis) | await open_answering(
        pool, [context.workspace.domains[key] for key in sorted(others)]
    )
    return await Rollout(
        execution, waves, options.max_failures, context.topology, apis, observer
    ).run()


def _record_deferred(
    context: Context, plan: Plan, results: list[StepResult], offline: Collection[str]
) -> None:
    """Store the steps that `apply --deferred` will run, also if there are none any more."""
    deferred = deferred_steps(plan, results, offline)
    if deferred or any(entry["plan"] == plan.id for entry in context.state.deferred):
        context.backend.append(context.state, {"deferred": {"plan": plan.id, "steps": deferred}})


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


async def _open_domains(
    context: Context, pool: Pool, plan: Plan
) -> tuple[dict[str, DomainApi], dict[str, str]]:
    """Open the APIs of the plan's domains; return them, and the reasons of offline domains."""
    touched = {
        key for step in plan.steps if step.op != "state.forget" for key in step.required_domains
    }
    domains = {key: d for key, d in context.workspace.domains.items() if key in touched}
    if missing := sorted(touched - domains.keys()):
        raise UsageError(
            f"the plan touches domain {missing[0]}, which the files no longer declare",
            hint="Plan again.",
        )
    await pool.open(domain.connection for domain in domains.values())
    known = known_domains(context)
    async with DuplicateServerCheck() as witnesses:
        found = await identify_domains(
            pool, domains.values(), context.workspace.domains, known, witnesses
        )
        await witnesses.require_single_servers()
    _require_same_servers(plan, found)
    apis = {facts.key: pool.api(domains[facts.key]) for facts in found if facts.reachable}
    if touched and not apis:
        raise _no_domain_error(found[0].reason)
    return apis, {facts.key: facts.reason for facts in found if not facts.reachable}


def _no_domain_error(reason: str) -> ConnectError:
    return ConnectError(
        f"no domain of the plan can be reached: {reason}",
        hint="Nothing was changed. Apply it again when they are back.",
    )


def _require_same_servers(plan: Plan, found: Iterable[DomainFacts]) -> None:
    """Raise StalePlanError if a domain is on another server than when it was planned."""
    for facts in found:
        planned = (plan.domains.get(facts.key) or {}).get("server") or {}
        if not is_same_server(planned, facts.server):
            raise StalePlanError(
                f"domain {facts.key} was {server_label(planned)} when planned"
                f" and is {server_label(facts.server)} now. Nothing was changed",
                hint="Check the connection, then plan again.",
            )


async def _require_as_planned(plan: Plan, apis: dict[str, DomainApi], lost: dict[str, str]) -> None:
    """Raise StalePlanError for changed objects. Domains that are lost move to `lost`."""
    try:
        stale, newly_lost = await find_changes(plan, apis)
    except ApiError as error:
        raise ConnectError(f"{error}. Nothing was changed", hint=error.hint) from None
    if stale:
        names = ", ".join(stale[:10]) + (f" and {len(stale) - 10} more" if len(stale) > 10 else "")
        raise StalePlanError(
            f"no longer as planned: {names}. Nothing was changed",
            hint="Another process changed them. Plan again and look.",
        )
    for key, reason in newly_lost.items():
        del apis[key]
        lost[key] = reason
    if newly_lost and not apis:
        raise _no_domain_error(next(iter(newly_lost.values())))


def _record_owner(context: Context, plan: Plan) -> None:
    """Store the id that the steps write into metadata, before the first step."""
    owner = str(plan.options.get("owner") or "").rpartition("/")[2]
    if owner and context.state.ownership.get("id") != owner:
        context.backend.append(context.state, {"ownership": {"id": owner}})


def _record_servers(context: Context, plan: Plan) -> None:
    """Store which server answered, and when (`seen`), for the limits of offline domains."""
    for key, facts in plan.domains.items():
        domain = context.workspace.domains.get(key)
        if domain is None:  # no step touches it, and the files no longer declare it
            continue
        known = context.state.domains.get(key, {})
        server = (facts["server"] or known) | {"js_domain": domain.js_domain}
        server["seen"] = max(plan.timestamp if facts["reachable"] else "", known.get("seen", ""))
        if server != known and server["seen"]:
            context.backend.append(context.state, {"domain": {"key": key, "server": server}})


@asynccontextmanager
async def _stop_on_signal(stop: asyncio.Event) -> AsyncIterator[None]:
    """Set the event on the first Ctrl-C, SIGTERM or SIGHUP; the second one raises as usual."""
    loop = asyncio.get_running_loop()
    undo: list[Callable[[], object]] = []

    def on_signal() -> None:
        stop.set()
        for restore in undo:
            restore()
        undo.clear()

    hangup = getattr(signal, "SIGHUP", None)
    ignored = hangup is None or signal.getsignal(hangup) is signal.SIG_IGN  # nohup
    for number in (signal.SIGINT, signal.SIGTERM, *(() if ignored else (hangup,))):
        # Not in the main thread, or the platform has no such signal.
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, on_signal)
            undo.append(partial(loop.remove_signal_handler, number))
    try:
        yield
    finally:
        for restore in undo:
            restore()


def _build_result(
    plan: Plan,
    context: Context,
    results: list[StepResult],
    lost: Mapping[str, str],
    *,
    interrupted: bool,
) -> ApplyResult:
    finished = {r.address for r in results} - {r.address for r in results if r.status != "done"}
    deferred = [
        *plan.deferred,
        *(d for d in _deferred_resources(plan, lost) if d.address not in finished),
    ]
    codes = [ExitCode.INTERRUPTED] if interrupted else []
    if any(r.status != "done" for r in results) or (plan.mode == "destroy" and deferred):
        codes.append(ExitCode.PARTIAL)
    return ApplyResult(
        plan_id=plan.id,
        steps=results,
        summary=_summarize(plan, results, len(deferred)),
        state={"lineage": context.state.lineage or None, "serial": context.state.serial},
        exit_code=int(combine_exit_codes(codes)),
        deferred=[d.to_json() for d in deferred],
    )


def _deferred_resources(plan: Plan, lost: Mapping[str, str]) -> list[Deferred]:
    """Return the resources of domains that were lost since planning, changed or not."""
    reasons = {
        key: DomainFacts(key, reachable=False, reason=reason).offline_text
        for key, reason in lost.items()
    }
    changes = plan.resource_changes
    return [Deferred(c.address, reasons[c.domain]) for c in changes if c.domain in lost]


def _parent_address(address: str) -> str:
    """Return the stream of a consumer, whose restore includes it; empty for others."""
    return str(Address.parse(address).parent or "")


def _summarize(plan: Plan, results: list[StepResult], deferred: int) -> dict[str, int]:
    """Count resources by action: those whose steps, or those of their stream, are all done."""
    undone = {r.address for r in results if r.status != "done"}
    touched = {step.address for step in plan.steps}
    preserved = {
        c.address for c in plan.resource_changes if c.change.actions == ["create", "delete"]
    }
    bearers = (
        (c, c.address if c.address in touched else _parent_address(c.address))
        for c in plan.resource_changes
    )
    done = [
        c
        for c, bearer in bearers
        if bearer in touched - undone and (bearer == c.address or bearer in preserved)
    ]
    actions = [tuple(c.change.actions) for c in done]
    return {
        "imported": sum(1 for c in done if c.change.importing),
        "added": actions.count(("create",)),
        "changed": actions.count(("update",)),
        "replaced": sum(1 for action in actions if len(action) == 2),
        "destroyed": actions.count(("delete",)),
        "forgotten": actions.count(("forget",)),
        "deferred": deferred,
        "failed": sum(1 for r in results if r.status in ("failed", "unknown")),
        "skipped": sum(1 for r in results if r.status == "skipped"),
    }
