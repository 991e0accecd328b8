"""apply: lock, plan (or take a saved plan), show, approve, check, carry out, save."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from jsplan.address import Address
from jsplan.applying.executor import Execution
from jsplan.applying.operations import Operation
from jsplan.applying.preconditions import find_changes
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
from jsplan.jetstream import DomainApi, Pool
from jsplan.options import Approve, Observer, PlanOptions
from jsplan.planning.guards import is_guarded, is_same_server, refusal_reasons, server_label
from jsplan.planning.hazard_permissions import check_permissions
from jsplan.planning.hazards import is_permitted
from jsplan.planning.preserve.interrupted import (
    InterruptedReplacement,
    determine_progress,
    list_interrupted,
)
from jsplan.workflows.backup_before_delete import BackupBeforeDelete
from jsplan.workflows.history_writer import HistoryWriter
from jsplan.workflows.plan import compute_plan, load_plan
from jsplan.workflows.resume_plan import deferred_steps, resume_plan, unplanned_note
from jsplan.workflows.rollout import Rollout, Wave, require_known_terms, split_into_waves


def apply(
    load: LoadOptions, options: PlanOptions, approve: Approve, observer: Observer
) -> tuple[Plan, ApplyResult]:
    """Plan, let `approve` show it and ask, and carry it out, all under the lock.

    Raises RefusedError before the first write when something is not permitted, StateLockedError, PlanError
    when the plan has errors, and what `approve` raises. What failed later is in the result.
    """
    return run_until_complete(_apply(load, options, approve, observer))


async def _apply(
    load: LoadOptions, options: PlanOptions, approve: Approve, observer: Observer
) -> tuple[Plan, ApplyResult]:
    async with open_context(load) as world:
        return await plan_and_apply(world, options, approve, observer)


async def plan_and_apply(
    world: Context, options: PlanOptions, approve: Approve, observer: Observer
) -> tuple[Plan, ApplyResult]:
    """The sequence itself, with the files loaded: what `apply` and `import` share."""
    operation = "destroy" if options.destroy else "apply"
    require_known_terms(options.waves, world.workspace.domains)
    async with (
        hold_lock(world, operation, options.lock_timeout, observer),
        open_pool(world, read_only=False) as pool,
    ):
        plan = await compute_plan(world, pool, options, observer)
        if plan.errored:
            raise PlanError(plan.diagnostics, "the plan has errors; nothing was changed")
        if plan.has_changes:
            await asyncio.to_thread(approve, plan)
            require_permission(plan)
            require_runnable(world, plan, options)
        seeding = SnapshotCreates(world, pool, plan, options, observer)
        result = await execute_plan(world, pool, plan, options, observer, seeding.operations)
        return plan, await run_planned_backfills(
            world, pool, plan, result, options, observer, seeding.results
        )


def apply_saved(
    load: LoadOptions, plan_path: Path, options: PlanOptions, observer: Observer
) -> tuple[Plan, ApplyResult]:
    """Carry out exactly a saved plan, no questions. `options` may add hazards to allow, nothing else.

    Raises StalePlanError when state has moved on since, or when something it touches is no longer as planned.
    """
    plan = load_plan(plan_path)
    return plan, run_until_complete(_apply_saved(load, plan, plan_path, options, observer))


async def _apply_saved(
    load: LoadOptions, plan: Plan, path: Path, options: PlanOptions, observer: Observer
) -> ApplyResult:
    async with (
        open_context(load) as world,
        hold_lock(world, "apply", options.lock_timeout, observer),
    ):
        require_known_terms(options.waves, world.workspace.domains)
        _require_same_workspace(plan, world, path, resumed=options.deferred)
        options = replace(options, backfill=options.backfill and plan.options.get("backfill", True))
        if options.deferred:
            plan = _resume_plan(plan, world, path, observer)
        _mark_allowed(plan, options.allow_hazards)
        for found in check_permissions(
            options.allow_hazards, [change.address for change in plan.resource_changes]
        ):
            observer.warn(f"{found.summary}. {found.detail}")
        if plan.errored:
            raise PlanError(plan.diagnostics, "the saved plan has errors; nothing was changed")
        _require_unguarded(plan, world)
        require_permission(plan)
        require_runnable(world, plan, options)
        async with open_pool(world, read_only=False) as pool:
            seeding = SnapshotCreates(world, pool, plan, options, observer)
            result = await execute_plan(
                world, pool, plan, options, observer, seeding.operations, saved=True
            )
            return await run_planned_backfills(
                world, pool, plan, result, options, observer, seeding.results
            )


def _resume_plan(plan: Plan, world: Context, path: Path, observer: Observer) -> Plan:
    """What is left of a plan that was applied; what it never had steps for is said."""
    if note := unplanned_note(plan):
        observer.warn(note)
    return resume_plan(plan, world.state, path)


def _require_same_workspace(plan: Plan, world: Context, path: Path, *, resumed: bool) -> None:
    """`again`: the plan was applied, so state is not as it was planned against, and knows what is left."""
    workspace, state = world.workspace, world.state
    if (plan.workspace, plan.environment) != (workspace.name, workspace.environment):
        theirs = f"{plan.workspace}, environment {plan.environment or 'none'}"
        raise UsageError(
            f"{path} was planned for workspace {theirs}",
            hint="Run it in that workspace, with its -e.",
        )
    if not resumed and (plan.state["lineage"], plan.state["serial"]) != (
        state.lineage or None,
        state.serial,
    ):
        raise StalePlanError(
            f"the state changed after {path} was made (serial {plan.state['serial']}, now {state.serial}): "
            "this plan was applied already, or another one was. Nothing was changed",
            hint="Plan again: jsplan plan -o FILE",
        )


def _require_unguarded(plan: Plan, world: Context) -> None:
    """Raise RefusedError for a deletion of what files or state guard now: the plan may be edited, or older than the guard."""
    for step in plan.steps:
        address = Address.parse(step.address)
        recorded = Address.parse(str((step.record or {}).get("previous_address") or step.address))
        entry = world.state.resources.get(recorded)
        if OP_RULES[step.op].deletes and is_guarded(
            world.workspace, address, guarded=entry is not None and entry.prevent_destroy
        ):
            raise RefusedError(
                f"refused, nothing was changed: {address} is guarded by prevent_destroy, and the plan deletes it",
                hint="To lift the guard write prevent_destroy: false in its lifecycle, or in a removed entry. Then plan again.",
            )


def _mark_allowed(plan: Plan, flags: tuple[str, ...]) -> None:
    for change in plan.resource_changes:
        for hazard in change.hazards:
            hazard.allowed = hazard.allowed or is_permitted(flags, hazard.code, change.address)


def require_permission(plan: Plan) -> None:
    """Raise RefusedError that lists every hazard nobody allowed, every guard, and what to write to go on."""
    reasons = refusal_reasons(plan)
    if reasons:
        raise RefusedError(
            "refused, nothing was changed:\n" + "\n".join(f"  - {reason}" for reason in reasons)
        )


async def execute_plan(
    world: Context,
    pool: Pool,
    plan: Plan,
    options: PlanOptions,
    observer: Observer,
    operations: Mapping[str, Operation] | None = None,
    *,
    saved: bool = False,
) -> ApplyResult:
    """Check every precondition, then run the steps under a new serial of the state, and save it whatever happens.

    `operations` do kinds of steps that only the caller has the means for. Of a `saved` plan state remembers what is left.
    Raises PartialApplyError when steps are done and the state cannot be written any more.
    """
    require_consistent_steps(plan)
    waves = (
        split_into_waves(options.waves, plan, world.workspace.domains, world.topology)
        if options.waves
        else []
    )
    apis, gone = await _open_domains(world, pool, plan)
    await _require_as_planned(plan, apis, gone)
    ranges = collect_planned_ranges(world, plan, backfill=options.backfill)
    await require_unchanged_origins(world, pool, ranges.new_origins)
    if (
        not plan.steps
        and plan.mode != "refresh-only"
        and not (plan.runnable_backfills and options.backfill)
        and not ranges.states
    ):
        return _build_result(plan, world, [], {}, interrupted=False)
    securing = BackupBeforeDelete(plan, apis, options.backup, observer) if options.backup else None
    if securing is not None:
        securing.require_possible()
    await world.backend.start(world.state)
    recording = HistoryWriter.record_begin(world, plan)
    execution = Execution(
        plan,
        apis,
        world.backend,
        world.state,
        observer.event,
        asyncio.Event(),
        options.parallelism,
        before_write=securing.before_write if securing else None,
        operations=operations or {},
    )
    try:
        _record_servers(world, plan)
        _record_owner(world, plan)
        ranges.write(world)
        with securing.open_folder() if securing else nullcontext():
            async with _stop_on_signal(execution.stop):
                results = await (
                    _run_in_waves(world, pool, execution, waves, options, observer)
                    if waves
                    else execution.run()
                )
        if saved:
            _record_deferred(world, plan, results, gone.keys() | execution.lost_domains.keys())
    finally:
        result = _build_result(
            plan,
            world,
            execution.collect_results(),
            gone | execution.lost_domains,
            interrupted=execution.stop.is_set(),
        )
        if securing is not None and securing.saved:
            result.backup = {"folder": str(securing.path), "streams": sorted(securing.saved)}
        result.interrupted = list_interrupted(await _read_interrupted(execution))
        await _finish_state(world, execution, recording, result)
    return result


async def _read_interrupted(execution: Execution) -> dict[Address, InterruptedReplacement]:
    """Replacements of streams that are not finished, as they are on the servers now, as far as those answer."""
    found: dict[Address, InterruptedReplacement] = {}
    for name, record in execution.state.replacements.items():
        address, api = Address.parse(name), execution.apis.get(Address.parse(name).domain)
        if "staging" in record and api is not None and address.domain not in execution.lost_domains:
            with suppress(ApiError):
                now, stand = (
                    await read_object(api, address),
                    await read_object(api, Address.parse(record["staging"])),
                )
                found[address] = determine_progress(address, record, now, stand)
    return found


async def _run_in_waves(
    world: Context,
    pool: Pool,
    execution: Execution,
    waves: list[Wave],
    options: PlanOptions,
    observer: Observer,
) -> list[StepResult]:
    """Between two waves the copies are looked at too, also those at which the plan changes nothing."""
    edges = [
        edge
        for edge in world.topology.edges
        if {edge.origin.domain, edge.downstream.domain} & execution.apis.keys()
    ]
    others = {
        address.domain for edge in edges for address in (edge.origin, edge.downstream)
    } - execution.apis.keys()
    apis = dict(execution.apis) | await open_answering(
        pool, [world.workspace.domains[key] for key in sorted(others)]
    )
    return await Rollout(
        execution, waves, options.max_failures, world.topology, apis, observer
    ).run()


def _record_deferred(
    world: Context, plan: Plan, results: list[StepResult], away: Collection[str]
) -> None:
    """What `apply --deferred` will do of this plan, and that nothing is left of it any more."""
    left = deferred_steps(plan, results, away)
    if left or any(entry["plan"] == plan.id for entry in world.state.deferred):
        world.backend.append(world.state, {"deferred": {"plan": plan.id, "steps": left}})


async def _finish_state(
    world: Context, execution: Execution, recording: HistoryWriter | None, result: ApplyResult
) -> None:
    try:
        if recording is not None:
            recording.record_end(execution.collect_results(), result)
        await world.backend.finish(world.state)
    except StateError as error:
        done = sum(1 for result in execution.results.values() if result.status == "done")
        message = f"{error}; {done} of {len(execution.plan.steps)} steps are done"
        raise PartialApplyError(
            message,
            hint="What is done is in the journal of the state. When it can be written again, run: jsplan plan",
        ) from None


async def _open_domains(
    world: Context, pool: Pool, plan: Plan
) -> tuple[dict[str, DomainApi], dict[str, str]]:
    """The APIs of the domains that the plan touches, and why the others are away: what has gone since is deferred."""
    touched = {
        key for step in plan.steps if step.op != "state.forget" for key in step.required_domains
    }
    domains = {key: d for key, d in world.workspace.domains.items() if key in touched}
    if missing := sorted(touched - domains.keys()):
        raise UsageError(
            f"the plan touches domain {missing[0]}, which the files no longer declare",
            hint="Plan again.",
        )
    await pool.open(domain.connection for domain in domains.values())
    known = known_domains(world)
    async with DuplicateServerCheck() as witnesses:
        found = await identify_domains(
            pool, domains.values(), world.workspace.domains, known, witnesses
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
    """A saved plan is for the servers that it was made with, also where nothing is there yet."""
    for facts in found:
        planned = (plan.domains.get(facts.key) or {}).get("server") or {}
        if not is_same_server(planned, facts.server):
            raise StalePlanError(
                f"domain {facts.key} was {server_label(planned)} when planned and is {server_label(facts.server)} now. Nothing was changed",
                hint="Check the connection, then plan again.",
            )


async def _require_as_planned(plan: Plan, apis: dict[str, DomainApi], gone: dict[str, str]) -> None:
    """Raise StalePlanError if something is not as planned. Domains that stop answering move from `apis` to `gone`."""
    try:
        stale, lost = await find_changes(plan, apis)
    except ApiError as error:
        raise ConnectError(f"{error}. Nothing was changed", hint=error.hint) from None
    if stale:
        names = ", ".join(stale[:10]) + (f" and {len(stale) - 10} more" if len(stale) > 10 else "")
        raise StalePlanError(
            f"no longer as planned: {names}. Nothing was changed",
            hint="Somebody else works there. Plan again and look.",
        )
    for key, reason in lost.items():
        del apis[key]
        gone[key] = reason
    if lost and not apis:
        raise _no_domain_error(next(iter(lost.values())))


def _record_owner(world: Context, plan: Plan) -> None:
    """The id that the steps write into metadata, before the first of them does."""
    owner = str(plan.options.get("owner") or "").rpartition("/")[2]
    if owner and world.state.ownership.get("id") != owner:
        world.backend.append(world.state, {"ownership": {"id": owner}})


def _record_servers(world: Context, plan: Plan) -> None:
    """Who answered, and when (`seen`): what a later run goes by to say whether a domain is away for too long."""
    for key, facts in plan.domains.items():
        domain = world.workspace.domains.get(key)
        if domain is None:  # no step touches it, and the files no longer declare it
            continue
        known = world.state.domains.get(key, {})
        server = (facts["server"] or known) | {"js_domain": domain.js_domain}
        server["seen"] = max(plan.timestamp if facts["reachable"] else "", known.get("seen", ""))
        if server != known and server["seen"]:
            world.backend.append(world.state, {"domain": {"key": key, "server": server}})


@asynccontextmanager
async def _stop_on_signal(stop: asyncio.Event) -> AsyncIterator[None]:
    """The first Ctrl-C (or SIGTERM, or the end of the terminal) sets the event instead of raising; the second raises as usual."""
    loop = asyncio.get_running_loop()
    undo: list[Callable[[], object]] = []

    def asked() -> None:
        stop.set()
        for restore in undo:
            restore()
        undo.clear()

    hung_up = getattr(signal, "SIGHUP", None)
    spared = hung_up is None or signal.getsignal(hung_up) is signal.SIG_IGN  # nohup
    for number in (signal.SIGINT, signal.SIGTERM, *(() if spared else (hung_up,))):
        with suppress(
            NotImplementedError, RuntimeError, ValueError
        ):  # not the main thread, or no such signal here
            loop.add_signal_handler(number, asked)
            undo.append(partial(loop.remove_signal_handler, number))
    try:
        yield
    finally:
        for restore in undo:
            restore()


def _build_result(
    plan: Plan,
    world: Context,
    results: list[StepResult],
    gone: Mapping[str, str],
    *,
    interrupted: bool,
) -> ApplyResult:
    finished = {r.address for r in results} - {r.address for r in results if r.status != "done"}
    deferred = [
        *plan.deferred,
        *(d for d in _deferred_resources(plan, gone) if d.address not in finished),
    ]
    codes = [ExitCode.INTERRUPTED] if interrupted else []
    if any(r.status != "done" for r in results) or (plan.mode == "destroy" and deferred):
        codes.append(ExitCode.PARTIAL)
    return ApplyResult(
        plan_id=plan.id,
        steps=results,
        summary=_summarize(plan, results, len(deferred)),
        state={"lineage": world.state.lineage or None, "serial": world.state.serial},
        exit_code=int(combine_exit_codes(codes)),
        deferred=[d.to_json() for d in deferred],
    )


def _deferred_resources(plan: Plan, gone: Mapping[str, str]) -> list[Deferred]:
    """Every resource of a domain that was there when planned and is not any more, whether it was to change or not."""
    said = {
        key: DomainFacts(key, reachable=False, reason=reason).offline_text
        for key, reason in gone.items()
    }
    return [Deferred(c.address, said[c.domain]) for c in plan.resource_changes if c.domain in gone]


def _parent_address(address: str) -> str:
    """The stream of a consumer, which brings its consumers back with it where it keeps its messages; empty for others."""
    return str(Address.parse(address).parent or "")


def _summarize(plan: Plan, results: list[StepResult], deferred: int) -> dict[str, int]:
    """Resources by what was really done with them: one counts when all of its steps are done, or those of the stream it goes with."""
    undone = {r.address for r in results if r.status != "done"}
    touched = {step.address for step in plan.steps}
    kept = {c.address for c in plan.resource_changes if c.change.actions == ["create", "delete"]}
    bearers = (
        (c, c.address if c.address in touched else _parent_address(c.address))
        for c in plan.resource_changes
    )
    done = [
        c
        for c, bearer in bearers
        if bearer in touched - undone and (bearer == c.address or bearer in kept)
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
