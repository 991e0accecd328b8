"""revert: the way back from an apply, as a plan that is shown, asked about and carried out like any other; or saved."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jsplan.address import Address, matches
from jsplan.config.model import LoadOptions
from jsplan.diagnostics import Diagnostic
from jsplan.documents.apply import ApplyResult
from jsplan.documents.plan import Plan
from jsplan.errors import ConflictError, JsplanError, PlanError, UsageError
from jsplan.facts.survey import survey
from jsplan.jetstream import Pool
from jsplan.planning.build import build_plan, compare
from jsplan.planning.following import for_strangers
from jsplan.planning.inputs import Inputs
from jsplan.planning.undoing.inverse import against_files, as_wished, finished
from jsplan.planning.undoing.wishes import Now, Undoing, Wish, undoing
from jsplan.state.history import Item, changes_of
from jsplan.topology import resolve
from jsplan.workflows.apply import carry_out, require_permission
from jsplan.workflows.history import find
from jsplan.workflows.options import Approve, Observer, PlanOptions
from jsplan.workflows.running import run
from jsplan.workflows.world import (
    World,
    inputs_of,
    known_domains,
    locked,
    look_around,
    measure,
    open_pool,
    open_world,
    refresh,
    request_of,
)

#: Sessions that changed state alone: there is nothing on a server to take back.
BY_HAND = ("state push", "state rm", "state mv", "refresh")


@dataclass(frozen=True, slots=True)
class RevertOptions:
    """Which entry of the history, which of its resources (globs), and how the plan is made and carried out."""

    number: int
    targets: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    planning: PlanOptions = field(default_factory=PlanOptions)


def plan_revert(load: LoadOptions, options: RevertOptions, observer: Observer) -> Plan:
    """The plan alone, to be saved: read-only. Raises ConflictError where what it would undo was changed since."""
    return run(_plan_revert(load, options, observer))


async def _plan_revert(load: LoadOptions, options: RevertOptions, observer: Observer) -> Plan:
    async with open_world(load) as world, open_pool(world, read_only=True, sealed=True) as pool:
        return await _plan(world, pool, options, observer)


def revert(load: LoadOptions, options: RevertOptions, approve: Approve, observer: Observer) -> tuple[Plan, ApplyResult]:
    """Plan, let `approve` show it and ask, and carry it out, all under the lock.

    Raises ConflictError where what it would undo was changed since, RefusedError where something is not permitted, JsplanError for an
    entry that cannot be undone, and what `approve` raises. What failed later is in the result.
    """
    return run(_revert(load, options, approve, observer))


async def _revert(load: LoadOptions, options: RevertOptions, approve: Approve, observer: Observer) -> tuple[Plan, ApplyResult]:
    async with (
        open_world(load) as world,
        locked(world, "revert", options.planning.lock_timeout, observer),
        open_pool(world, read_only=False) as pool,
    ):
        plan = await _plan(world, pool, options, observer)
        if plan.errored:
            raise PlanError(plan.diagnostics, "the plan has errors; nothing was changed")
        if plan.has_changes:
            await asyncio.to_thread(approve, plan)
            require_permission(plan)
        return plan, await carry_out(world, pool, plan, options.planning, observer)


async def _plan(world: World, pool: Pool, options: RevertOptions, observer: Observer) -> Plan:
    entry = find(world.state, options.number)
    changes = _chosen(entry, _undoable(entry), options)
    wanted = await _wanted(world, pool, entry, changes)
    if wanted.conflicts:
        raise ConflictError([*wanted.conflicts, *wanted.notes], f"{_named(entry)} cannot be undone as it is; nothing was changed")
    plan = await _inverse(world, pool, wanted, options.planning, observer)
    finished(plan, wanted.wishes)
    files, following = await _files(world, pool, wanted.wishes, plan, options.planning)
    plan.diagnostics += [*wanted.notes, *files]
    plan.backfills = [job | {"runs": False} for job in plan.backfills if "waits" not in job]  # a revert copies nothing, and says how
    plan.options["revert"] = {
        **{name: entry[name] for name in ("id", "operation", "at", "who", "host")}, "next": following,
    }  # fmt: skip
    return plan


def _named(entry: Item) -> str:
    return f"{entry['operation']} {entry['id']}"


def _undoable(entry: Item) -> list[Item]:
    """The changes of an entry. Raises JsplanError where there is nothing that could be planned."""
    if entry["operation"] in BY_HAND:
        raise JsplanError(
            f"{_named(entry)} changed no server, only what is remembered here, so there is nothing to plan",
            hint=f"The state before it: jsplan state pull --serial {entry['id'] - 1}. To put that in place: jsplan state push --force",
        )
    changes = changes_of(entry)
    if changes is None:
        raise JsplanError(
            f"of {_named(entry)} only the counts are kept: it, or what came after it, was too large",
            hint="Put the files back as they were then, and apply them.",
        )
    return changes


def _chosen(entry: Item, changes: list[Item], options: RevertOptions) -> list[Item]:
    """What --target and --exclude leave. A consumer does not come back without the stream that it went with."""
    for option, globs in (("--target", options.targets), ("--exclude", options.excludes)):
        for glob in globs:
            if not any(matches(glob, Address.parse(item["address"])) for item in changes):
                raise UsageError(f"{option} {glob} names nothing that {_named(entry)} changed", hint=f"See: jsplan history {entry['id']}")

    def meant(address: Address) -> bool:
        named = not options.targets or any(matches(glob, address) for glob in options.targets)
        return named and not any(matches(glob, address) for glob in options.excludes)

    found = {address: item for item in changes if meant(address := Address.parse(item["address"]))}
    gone = {Address.parse(item["address"]) for item in changes if item["actions"] == ["delete"]}
    return [item for address, item in found.items() if address.parent not in gone or address.parent in found]


async def _wanted(world: World, pool: Pool, entry: Item, changes: list[Item]) -> Undoing:
    """The wishes, after a look at what is there now."""
    domains = world.workspace.domains
    asked = [address for item in changes if (address := Address.parse(item["address"])).domain in domains]
    if not asked:
        return undoing(changes, Now(world.state, (await survey(pool, domains, [])), frozenset(domains)), entry.get("backup"))
    live = await survey(pool, domains, asked, known_domains(world))
    now = Now(world.state, live, frozenset(domains), _later(world.state.history, entry))
    out = undoing(changes, now, entry.get("backup"))
    for name in entry.get("backfills", ()):
        out.notes.append(Diagnostic("info", "JS493", f"what backfill {name} copied stays where it is"))
    return out


def _later(entries: Sequence[Item], entry: Item) -> Mapping[str, list[Item]]:
    """By address, the entries after this one that changed it."""
    found: dict[str, list[Item]] = {}
    for other in entries:
        for item in (changes_of(other) or ()) if other["id"] > entry["id"] else ():
            found.setdefault(item["address"], []).append(other)
    return found


async def _inverse(world: World, pool: Pool, wanted: Undoing, options: PlanOptions, observer: Observer) -> Plan:
    """What would be planned if the files said what is wished, of the resources that are to be undone alone."""
    workspace = as_wished(world.workspace, wanted.wishes)
    wished = World(workspace, resolve(workspace), world.backend, world.state, world.environ)
    inputs = inputs_of(wished, request_of(options))
    inputs.selected = frozenset({*(wish.address for wish in wanted.wishes), *wanted.away})
    if not inputs.selected:
        return build_plan(inputs, {})
    await refresh(wished, inputs, pool, options, observer)
    verdicts = compare(inputs)
    await look_around(wished, inputs, verdicts, pool)
    for_strangers(inputs, verdicts)
    await measure(wished, inputs, verdicts, pool, observer)
    return build_plan(inputs, verdicts)


async def _files(
    world: World, pool: Pool, wishes: Sequence[Wish], plan: Plan, options: PlanOptions
) -> tuple[list[Diagnostic], dict[str, int]]:
    """What the real files say to the world as it will be."""
    inputs: Inputs = inputs_of(world, replace(request_of(options), targets=(), excludes=()))
    wanted = {wish.address for wish in wishes}
    parents = {address.parent for address in wanted if address.parent is not None}
    origins = {edge.origin for edge in world.topology.edges if edge.copy in wanted}
    if not wanted:
        return [], {}
    inputs.live = await survey(pool, world.workspace.domains, wanted | parents | origins, known_domains(world))
    return against_files(inputs, wishes, plan)
