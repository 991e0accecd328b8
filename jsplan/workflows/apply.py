"""apply: lock, plan (or take a saved plan), show, approve, check, carry out, save."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from jsplan.address import Address
from jsplan.applying.executor import Execution
from jsplan.applying.preconditions import changed_since
from jsplan.config.model import LoadOptions
from jsplan.documents.apply import ApplyResult, StepResult
from jsplan.documents.plan import Deferred, Plan
from jsplan.errors import ApiError, ConnectError, ExitCode, PlanError, RefusedError, StalePlanError, UsageError, combine
from jsplan.facts.live import DomainFacts
from jsplan.facts.survey import identify
from jsplan.jetstream import DomainApi, Pool
from jsplan.planning.guards import refusal_reasons
from jsplan.planning.hazards import permits
from jsplan.state import LockInfo
from jsplan.workflows.options import Approve, Observer, PlanOptions
from jsplan.workflows.plan import load_plan, plan_world
from jsplan.workflows.running import run
from jsplan.workflows.world import World, load_world, open_pool


def apply(load: LoadOptions, options: PlanOptions, approve: Approve, observer: Observer) -> tuple[Plan, ApplyResult]:
    """Plan, let `approve` show it and ask, and carry it out, all under the lock.

    Raises RefusedError before the first write when something is not permitted, StateLockedError, PlanError
    when the plan has errors, and what `approve` raises. What failed later is in the result.
    """
    world = load_world(load)
    with world.backend.lock(LockInfo.here("destroy" if options.destroy else "apply"), options.lock_timeout):
        world.state = world.backend.read()
        return run(_apply(world, options, approve, observer))


async def _apply(world: World, options: PlanOptions, approve: Approve, observer: Observer) -> tuple[Plan, ApplyResult]:
    async with open_pool(world, read_only=False) as pool:
        plan = await plan_world(world, pool, options, observer)
        if plan.errored:
            raise PlanError(plan.diagnostics, "the plan has errors; nothing was changed")
        if plan.has_changes:
            await asyncio.to_thread(approve, plan)
            require_permission(plan)
        return plan, await carry_out(world, pool, plan, options, observer)


def apply_saved(load: LoadOptions, plan_path: Path, options: PlanOptions, observer: Observer) -> tuple[Plan, ApplyResult]:
    """Carry out exactly a saved plan, no questions. `options` may add hazards to allow, nothing else.

    Raises StalePlanError when state has moved on since, or when something it touches is no longer as planned.
    """
    plan = load_plan(plan_path)
    world = load_world(load)
    with world.backend.lock(LockInfo.here("apply"), options.lock_timeout):
        world.state = world.backend.read()
        _check_belongs(plan, world, plan_path)
        _allow(plan, options.allow_hazards)
        return plan, run(_apply_saved(world, plan, options, observer))


async def _apply_saved(world: World, plan: Plan, options: PlanOptions, observer: Observer) -> ApplyResult:
    if plan.errored:
        raise PlanError(plan.diagnostics, "the saved plan has errors; nothing was changed")
    require_permission(plan)
    async with open_pool(world, read_only=False) as pool:
        return await carry_out(world, pool, plan, options, observer)


def _check_belongs(plan: Plan, world: World, path: Path) -> None:
    workspace, state = world.workspace, world.state
    if (plan.workspace, plan.environment) != (workspace.name, workspace.environment):
        theirs = f"{plan.workspace}, environment {plan.environment or 'none'}"
        raise UsageError(f"{path} was planned for workspace {theirs}", hint="Run it in that workspace, with its -e.")
    if (plan.state["lineage"], plan.state["serial"]) != (state.lineage or None, state.serial):
        raise StalePlanError(
            f"{path} was planned against serial {plan.state['serial']} of the state, which is now at {state.serial}: "
            "it was applied before, or something else was. Nothing was changed",
            hint="Plan again: jsplan plan -o FILE",
        )


def _allow(plan: Plan, flags: tuple[str, ...]) -> None:
    for change in plan.resource_changes:
        for hazard in change.hazards:
            hazard.allowed = hazard.allowed or permits(flags, hazard.code, change.address)


def require_permission(plan: Plan) -> None:
    """Raise RefusedError that lists every hazard nobody allowed, every guard, and what to write to go on."""
    reasons = refusal_reasons(plan)
    if reasons:
        raise RefusedError("refused, nothing was changed:\n" + "\n".join(f"  - {reason}" for reason in reasons))


async def carry_out(world: World, pool: Pool, plan: Plan, options: PlanOptions, observer: Observer) -> ApplyResult:
    """Check every precondition, then run the steps under a new serial of the state, and save it whatever happens."""
    apis, gone = await _reach(world, pool, plan)
    await _require_fresh(plan, apis)
    if not plan.steps:
        return _result(plan, world, [], gone, interrupted=False)
    world.backend.start(world.state)
    try:
        _remember_servers(world, plan)
        async with _stoppable() as stop:
            execution = Execution(plan, apis, world.backend, world.state, observer.event, stop, options.parallelism)
            results = await execution.run()
            interrupted = stop.is_set()
    finally:
        world.backend.finish(world.state)
    return _result(plan, world, results, gone, interrupted=interrupted)


async def _reach(world: World, pool: Pool, plan: Plan) -> tuple[dict[str, DomainApi], list[Deferred]]:
    """The APIs of the domains that the plan touches. One that has gone since is deferred, the rest goes on."""
    touched = {Address.parse(step.address).domain for step in plan.steps if step.op != "state.forget"}
    domains = {key: d for key, d in world.workspace.domains.items() if key in touched}
    if missing := sorted(touched - domains.keys()):
        raise UsageError(f"the plan touches domain {missing[0]}, which the files no longer declare", hint="Plan again.")
    await pool.open(domain.connection for domain in domains.values())
    found = [await identify(pool, d, world.workspace.domains, frozenset(world.state.domains)) for d in domains.values()]
    _check_servers(plan, found)
    apis = {facts.key: pool.api(domains[facts.key]) for facts in found if facts.reachable}
    if touched and not apis:
        raise ConnectError(
            f"no domain of the plan can be reached: {found[0].reason}", hint="Nothing was changed. Apply it again when they are back."
        )
    away = {facts.key: facts.reason for facts in found if not facts.reachable}
    steps = [step for step in plan.steps if Address.parse(step.address).domain in away and step.op != "state.forget"]
    return apis, [
        Deferred(s.address, f"domain {Address.parse(s.address).domain} is away: {away[Address.parse(s.address).domain]}") for s in steps
    ]


def _check_servers(plan: Plan, found: list[DomainFacts]) -> None:
    for facts in found:
        planned = (plan.domains.get(facts.key) or {}).get("server") or {}
        if (
            facts.server
            and planned
            and facts.server.get("name") != planned.get("name")
            and facts.server.get("cluster") != planned.get("cluster")
        ):
            raise StalePlanError(
                f"domain {facts.key} was server {planned.get('name')} when planned and is {facts.server.get('name')} now. "
                "Nothing was changed",
                hint="Check the connection, then plan again.",
            )


async def _require_fresh(plan: Plan, apis: dict[str, DomainApi]) -> None:
    try:
        stale = await changed_since(plan, apis)
    except ApiError as error:
        raise ConnectError(f"{error}. Nothing was changed", hint=error.hint) from None
    if stale:
        names = ", ".join(stale[:10]) + (f" and {len(stale) - 10} more" if len(stale) > 10 else "")
        raise StalePlanError(f"no longer as planned: {names}. Nothing was changed", hint="Somebody else works there. Plan again and look.")


def _remember_servers(world: World, plan: Plan) -> None:
    for key, facts in plan.domains.items():
        if facts["server"] and world.state.domains.get(key) != facts["server"]:
            world.backend.append(world.state, {"domain": {"key": key, "server": facts["server"]}})


@asynccontextmanager
async def _stoppable() -> AsyncIterator[asyncio.Event]:
    """The first Ctrl-C (or SIGTERM) sets the event instead of raising; the second raises as usual."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    undo: list[Callable[[], object]] = []

    def asked() -> None:
        stop.set()
        for restore in undo:
            restore()
        undo.clear()

    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread, or no such signal here
            loop.add_signal_handler(number, asked)
            undo.append(partial(loop.remove_signal_handler, number))
    try:
        yield stop
    finally:
        for restore in undo:
            restore()


def _result(plan: Plan, world: World, results: list[StepResult], gone: list[Deferred], *, interrupted: bool) -> ApplyResult:
    deferred = [*plan.deferred, *gone]
    codes = [ExitCode.INTERRUPTED] if interrupted else []
    skipped_away = {d.address for d in gone}
    if any(r.status != "done" for r in results) or skipped_away:
        codes.append(ExitCode.PARTIAL)
    if plan.mode == "destroy" and deferred:
        codes.append(ExitCode.PARTIAL)
    return ApplyResult(
        plan_id=plan.id, steps=results, summary=_summary(plan, results, len(deferred)),
        state={"lineage": world.state.lineage or None, "serial": world.state.serial},
        exit_code=int(combine(codes)), deferred=[d.to_json() for d in deferred],
    )  # fmt: skip


def _summary(plan: Plan, results: list[StepResult], deferred: int) -> dict[str, int]:
    """Resources by what was really done with them: one counts when all of its steps are done."""
    undone = {r.address for r in results if r.status != "done"}
    touched = {step.address for step in plan.steps}
    done = [c for c in plan.resource_changes if c.address in touched and c.address not in undone]
    actions = [tuple(c.change.actions) for c in done]
    return {
        "imported": sum(1 for c in done if c.change.importing), "added": actions.count(("create",)), "changed": actions.count(("update",)),
        "replaced": sum(1 for action in actions if len(action) == 2), "destroyed": actions.count(("delete",)),
        "forgotten": actions.count(("forget",)),
        "deferred": deferred, "failed": sum(1 for r in results if r.status in ("failed", "unknown")),
        "skipped": sum(1 for r in results if r.status == "skipped"),
    }  # fmt: skip
