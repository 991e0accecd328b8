"""revert: the way back from an apply, as a plan that is shown, asked about and carried out like any other; or saved."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jsplan.address import Address, matches
from jsplan.config.model import LoadOptions
from jsplan.context import (
    Context,
    build_inputs,
    build_request,
    hold_lock,
    known_domains,
    measure,
    open_context,
    open_pool,
    read_affected,
    refresh,
)
from jsplan.diagnostics import Diagnostic
from jsplan.documents.apply import ApplyResult
from jsplan.documents.plan import Plan
from jsplan.errors import ConflictError, JsplanError, PlanError, UsageError
from jsplan.event_loop import run_until_complete
from jsplan.facts.reader import read_live
from jsplan.jetstream import Pool
from jsplan.options import Approve, Observer, PlanOptions
from jsplan.planning.build import build_plan, decide_all
from jsplan.planning.model import PlanInputs
from jsplan.planning.replication.checks import continue_sequence_for_unmanaged
from jsplan.planning.revert.plan import compare_with_files, complete_plan, with_targets
from jsplan.planning.revert.targets import (
    CurrentState,
    RevertDecisions,
    RevertTarget,
    decide_revert,
)
from jsplan.state.history import JsonObject, unpack_changes
from jsplan.topology import build_topology
from jsplan.workflows.apply import execute_plan, require_permission
from jsplan.workflows.history import find_entry

#: Sessions that changed state alone: there is nothing on a server to take back.
STATE_ONLY_OPERATIONS = ("state push", "state rm", "state mv", "refresh")


@dataclass(frozen=True, slots=True)
class RevertOptions:
    """Which entry of the history, which of its resources (globs), and how the plan is made and carried out."""

    number: int
    targets: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    planning: PlanOptions = field(default_factory=PlanOptions)


def plan_revert(load: LoadOptions, options: RevertOptions, observer: Observer) -> Plan:
    """The plan alone, to be saved: read-only. Raises ConflictError where what it would undo was changed since."""
    return run_until_complete(_plan_revert(load, options, observer))


async def _plan_revert(load: LoadOptions, options: RevertOptions, observer: Observer) -> Plan:
    async with open_context(load) as world, open_pool(world, read_only=True, guarded=True) as pool:
        return await _build_plan(world, pool, options, observer)


def revert(
    load: LoadOptions, options: RevertOptions, approve: Approve, observer: Observer
) -> tuple[Plan, ApplyResult]:
    """Plan, let `approve` show it and ask, and carry it out, all under the lock.

    Raises ConflictError where what it would undo was changed since, RefusedError where something is not permitted, JsplanError for an
    entry that cannot be undone, and what `approve` raises. What failed later is in the result.
    """
    return run_until_complete(_revert(load, options, approve, observer))


async def _revert(
    load: LoadOptions, options: RevertOptions, approve: Approve, observer: Observer
) -> tuple[Plan, ApplyResult]:
    async with (
        open_context(load) as world,
        hold_lock(world, "revert", options.planning.lock_timeout, observer),
        open_pool(world, read_only=False) as pool,
    ):
        plan = await _build_plan(world, pool, options, observer)
        if plan.errored:
            raise PlanError(plan.diagnostics, "the plan has errors; nothing was changed")
        if plan.has_changes:
            await asyncio.to_thread(approve, plan)
            require_permission(plan)
        return plan, await execute_plan(world, pool, plan, options.planning, observer)


async def _build_plan(
    world: Context, pool: Pool, options: RevertOptions, observer: Observer
) -> Plan:
    entry = find_entry(world.state, options.number)
    changes = _select_changes(entry, _revertable_changes(entry), options)
    wanted = await _build_targets(world, pool, entry, changes)
    if wanted.conflicts:
        raise ConflictError(
            [*wanted.conflicts, *wanted.notes],
            f"{_entry_name(entry)} cannot be undone as it is; nothing was changed",
        )
    plan = await _plan_inverse(world, pool, wanted, options.planning, observer)
    complete_plan(plan, wanted.targets)
    files, following = await _compare_files(world, pool, wanted.targets, plan, options.planning)
    plan.diagnostics += [*wanted.notes, *files]
    plan.backfills = [
        job | {"runs": False} for job in plan.backfills if "waits" not in job
    ]  # a revert copies nothing, and says how
    plan.options["revert"] = {
        **{name: entry[name] for name in ("id", "operation", "at", "who", "host")},
        "next": following,
    }
    return plan


def _entry_name(entry: JsonObject) -> str:
    return f"{entry['operation']} {entry['id']}"


def _revertable_changes(entry: JsonObject) -> list[JsonObject]:
    """The changes of an entry. Raises JsplanError where there is nothing that could be planned."""
    if entry["operation"] in STATE_ONLY_OPERATIONS:
        raise JsplanError(
            f"{_entry_name(entry)} changed no server, only what is remembered here, so there is nothing to plan",
            hint=f"The state before it: jsplan state pull --serial {entry['id'] - 1}. To put that in place: jsplan state push --force",
        )
    changes = unpack_changes(entry)
    if changes is None:
        raise JsplanError(
            f"of {_entry_name(entry)} only the counts are kept: it, or what came after it, was too large",
            hint="Put the files back as they were then, and apply them.",
        )
    return changes


def _select_changes(
    entry: JsonObject, changes: list[JsonObject], options: RevertOptions
) -> list[JsonObject]:
    """What --target and --exclude leave. A consumer does not come back without the stream that it went with."""
    for option, globs in (("--target", options.targets), ("--exclude", options.excludes)):
        for glob in globs:
            if not any(matches(glob, Address.parse(item["address"])) for item in changes):
                raise UsageError(
                    f"{option} {glob} names nothing that {_entry_name(entry)} changed",
                    hint=f"See: jsplan history {entry['id']}",
                )

    def meant(address: Address) -> bool:
        named = not options.targets or any(matches(glob, address) for glob in options.targets)
        return named and not any(matches(glob, address) for glob in options.excludes)

    found = {address: item for item in changes if meant(address := Address.parse(item["address"]))}
    gone = {Address.parse(item["address"]) for item in changes if item["actions"] == ["delete"]}
    return [
        item
        for address, item in found.items()
        if address.parent not in gone or address.parent in found
    ]


async def _build_targets(
    world: Context, pool: Pool, entry: JsonObject, changes: list[JsonObject]
) -> RevertDecisions:
    """The wishes, after a look at what is there now."""
    domains = world.workspace.domains
    asked = [
        address for item in changes if (address := Address.parse(item["address"])).domain in domains
    ]
    if not asked:
        return decide_revert(
            changes,
            CurrentState(world.state, (await read_live(pool, domains, [])), frozenset(domains)),
            entry.get("backup"),
        )
    live = await read_live(pool, domains, asked, known_domains(world))
    now = CurrentState(
        world.state, live, frozenset(domains), _later_entries(world.state.history, entry)
    )
    out = decide_revert(changes, now, entry.get("backup"))
    for name in entry.get("backfills", ()):
        out.notes.append(
            Diagnostic("info", "JS493", f"what backfill {name} copied stays where it is")
        )
    return out


def _later_entries(
    entries: Sequence[JsonObject], entry: JsonObject
) -> Mapping[str, list[JsonObject]]:
    """By address, the entries after this one that changed it."""
    found: dict[str, list[JsonObject]] = {}
    for other in entries:
        for item in (unpack_changes(other) or ()) if other["id"] > entry["id"] else ():
            found.setdefault(item["address"], []).append(other)
    return found


async def _plan_inverse(
    world: Context, pool: Pool, wanted: RevertDecisions, options: PlanOptions, observer: Observer
) -> Plan:
    """What would be planned if the files said what is wished, of the resources that are to be undone alone."""
    workspace = with_targets(world.workspace, wanted.targets)
    wished = Context(
        workspace, build_topology(workspace), world.backend, world.state, world.environ
    )
    inputs = build_inputs(wished, build_request(options))
    inputs.selected = frozenset({*(wish.address for wish in wanted.targets), *wanted.offline})
    if not inputs.selected:
        return build_plan(inputs, {})
    await refresh(wished, inputs, pool, options, observer)
    verdicts = decide_all(inputs)
    await read_affected(wished, inputs, verdicts, pool)
    continue_sequence_for_unmanaged(inputs, verdicts)
    await measure(wished, inputs, verdicts, pool, observer)
    return build_plan(inputs, verdicts)


async def _compare_files(
    world: Context, pool: Pool, wishes: Sequence[RevertTarget], plan: Plan, options: PlanOptions
) -> tuple[list[Diagnostic], dict[str, int]]:
    """What the real files say to the world as it will be."""
    inputs: PlanInputs = build_inputs(
        world, replace(build_request(options), targets=(), excludes=())
    )
    wanted = {wish.address for wish in wishes}
    parents = {address.parent for address in wanted if address.parent is not None}
    origins = {edge.origin for edge in world.topology.edges if edge.downstream in wanted}
    if not wanted:
        return [], {}
    inputs.live = await read_live(
        pool, world.workspace.domains, wanted | parents | origins, known_domains(world)
    )
    return compare_with_files(inputs, wishes, plan)
