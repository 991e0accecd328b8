"""revert: undo an apply by a plan that is shown, approved and applied, or saved."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.config.model import LoadOptions
from jsplan.context import Context, Session, hold_session, open_context, open_session
from jsplan.diagnostics import Diagnostic
from jsplan.documents.apply import ApplyResult
from jsplan.documents.plan import Plan
from jsplan.errors import ConflictError, PlanError
from jsplan.event_loop import run_until_complete
from jsplan.history.read import find_entry
from jsplan.options import Approve, Observer, PlanOptions
from jsplan.plan_inputs import build_entry_inputs, build_inputs
from jsplan.planning.build import build_plan
from jsplan.planning.contents.steps import add_entries
from jsplan.planning.model import ResourceDecision
from jsplan.planning.refusals import require_permission
from jsplan.planning.revert.entries import EntryReverts, decide_entries, with_entry_targets
from jsplan.planning.revert.entries import compare_with_files as compare_entries
from jsplan.planning.revert.plan import compare_with_files, complete_plan, with_targets
from jsplan.planning.revert.selection import (
    entry_name,
    list_later_entries,
    list_revertable_changes,
    select_changes,
)
from jsplan.planning.revert.targets import (
    CurrentState,
    RevertDecisions,
    RevertTarget,
    decide_revert,
)
from jsplan.server_reader import ServerReader
from jsplan.state.history import JsonObject
from jsplan.topology import build_topology
from jsplan.workflows.apply import execute_plan


class RevertOptions(Struct, frozen=True):
    """The entry of the history, globs of its resources, and the options of the plan."""

    number: int
    targets: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    planning: PlanOptions = field(default_factory=PlanOptions)


def plan_revert(load: LoadOptions, options: RevertOptions, observer: Observer) -> Plan:
    """Compute the plan only, read-only. Raises ConflictError for objects that changed since."""
    return run_until_complete(_plan_revert(load, options, observer))


async def _plan_revert(load: LoadOptions, options: RevertOptions, observer: Observer) -> Plan:
    async with open_session(load, observer) as session:
        return await _build_plan(session, options)


def revert(
    load: LoadOptions, options: RevertOptions, approve: Approve, observer: Observer
) -> tuple[Plan, ApplyResult]:
    """Plan, let `approve` show the plan and ask, and execute it, all under the lock.

    Raises ConflictError for objects that changed since, RefusedError for hazards that are not
    allowed, JsplanError for an entry that cannot be undone, and the errors of `approve`. Later
    failures are in the result.
    """
    return run_until_complete(_revert(load, options, approve, observer))


async def _revert(
    load: LoadOptions, options: RevertOptions, approve: Approve, observer: Observer
) -> tuple[Plan, ApplyResult]:
    async with (
        open_context(load) as context,
        hold_session(context, "revert", options.planning.lock_timeout, observer) as session,
    ):
        plan = await _build_plan(session, options)
        if plan.errored:
            raise PlanError(plan.diagnostics, "the plan has errors; nothing was changed")
        if plan.has_changes:
            await asyncio.to_thread(approve, plan)
            require_permission(plan)
        return plan, await execute_plan(session, plan, options.planning)


async def _build_plan(session: Session, options: RevertOptions) -> Plan:
    entry = find_entry(session.context.state, options.number)
    changes = select_changes(
        entry, list_revertable_changes(entry), options.targets, options.excludes
    )
    decided, entries = await _build_targets(session, entry, changes)
    if conflicts := [*decided.conflicts, *entries.conflicts]:
        raise ConflictError(
            [*conflicts, *decided.notes, *entries.notes],
            f"{entry_name(entry)} cannot be undone without conflicts; nothing was changed",
        )
    plan = await _plan_inverse(session, decided, entries, options.planning)
    complete_plan(plan, decided.targets)
    files, next_summary = await _compare_files(session, decided.targets, plan, options.planning)
    gone = {
        Address.parse(c.address)
        for c in plan.resource_changes
        if c.change.actions in (["delete"], ["delete", "create"])
    }
    files += compare_entries(
        session.context.workspace, entries, next_summary, gone, datetime.now(UTC)
    )
    notes = [n for n in entries.notes if Address.parse(n.address or "").parent not in gone]
    plan.diagnostics += [*decided.notes, *notes, *files]
    plan.backfills = []  # a revert copies nothing
    plan.options["revert"] = {
        **{name: entry[name] for name in ("id", "operation", "at", "who", "host")},
        "next": next_summary,
    }
    return plan


async def _build_targets(
    session: Session, entry: JsonObject, changes: list[JsonObject]
) -> tuple[RevertDecisions, EntryReverts]:
    """Read the current objects and decide on the target of each change, and of each entry."""
    context, domains = session.context, session.context.workspace.domains
    addresses = [
        address for item in changes if (address := Address.parse(item["address"])).domain in domains
    ]
    live = await ServerReader(session).read(addresses)
    if not addresses:
        nothing = CurrentState(context.state, live, frozenset(domains))
        return decide_revert(changes, nothing, entry.get("backup")), EntryReverts()
    current = CurrentState(
        context.state, live, frozenset(domains), list_later_entries(context.state.history, entry)
    )
    out = decide_revert(changes, current, entry.get("backup"))
    for name in entry.get("backfills", ()):
        out.notes.append(
            Diagnostic("info", "JS493", f"the messages that backfill {name} copied are not removed")
        )
    removed = [target.address for target in out.targets if target.action == "removed"]
    known = [item for item in changes if Address.parse(item["address"]).domain in domains]
    return out, decide_entries(known, context.state.resources, live, removed)


async def _plan_inverse(
    session: Session, decided: RevertDecisions, entries: EntryReverts, options: PlanOptions
) -> Plan:
    """Plan the targets as if the files declared them, for the selected resources only."""
    context = session.context
    workspace = with_targets(context.workspace, decided.targets)
    workspace = with_entry_targets(workspace, entries)
    target_context = Context(
        workspace, build_topology(workspace), context.backend, context.state, context.environ
    )
    inputs = build_inputs(target_context, options)
    selected = frozenset({*(each.address for each in decided.targets), *decided.offline})
    inputs = replace(inputs, selected=selected)
    reader = ServerReader(replace(session, context=target_context))
    decisions: dict[Address, ResourceDecision] = {}
    if selected:
        inputs = await reader.refresh(inputs, require_online=options.offline == "fail")
    buckets = {address.parent for address in entries.targets if address.parent is not None}
    if buckets - inputs.live.requested:
        inputs = replace(inputs, live=inputs.live.merge(await reader.read(buckets)))
    if selected:
        inputs, decisions = await reader.decide(inputs)
    plan = build_plan(inputs, decisions)
    if entries.targets:
        values = build_entry_inputs(target_context, options)
        values = replace(values, selected=frozenset(entries.targets))
        add_entries(plan, await reader.read_entries(values, inputs), inputs, decisions)
    return plan


async def _compare_files(
    session: Session, targets: Sequence[RevertTarget], plan: Plan, options: PlanOptions
) -> tuple[list[Diagnostic], dict[str, int]]:
    """Compare the real files with the state after the revert."""
    context = session.context
    inputs = build_inputs(context, dataclasses.replace(options, targets=(), excludes=()))
    wanted = {target.address for target in targets}
    parents = {address.parent for address in wanted if address.parent is not None}
    origins = {edge.origin for edge in context.topology.edges if edge.downstream in wanted}
    if not wanted:
        return [], {}
    live = await ServerReader(session).read(wanted | parents | origins)
    return compare_with_files(replace(inputs, live=live), targets, plan)
