"""revert: undo an apply by a plan that is shown, approved and applied, or saved."""

from __future__ import annotations

import asyncio

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.config.model import LoadOptions
from jsplan.context import Context, Session, hold_session, open_context, open_session
from jsplan.diagnostics import Diagnostic
from jsplan.documents.apply import ApplyResult
from jsplan.documents.plan import Plan
from jsplan.errors import PlanError
from jsplan.event_loop import runs_to_end
from jsplan.history import find_entry
from jsplan.options import Approve, Observer, PlanOptions
from jsplan.plan_inputs import build_inputs
from jsplan.planning.refusals import require_permission
from jsplan.planning.revert.selection import list_later_applies, select_changes
from jsplan.planning.revert.targets import (
    complete_plan,
    declare_targets,
    find_targets,
    warn_of_files,
)
from jsplan.server_reader import ServerReader
from jsplan.topology import build_topology
from jsplan.workflows.apply import execute_plan
from jsplan.workflows.plan import compute_plan


class RevertOptions(Struct, frozen=True):
    """The entry of the history, globs of its resources, and the options of the plan."""

    number: int
    targets: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    planning: PlanOptions = field(default_factory=PlanOptions)


@runs_to_end
async def plan_revert(load: LoadOptions, options: RevertOptions, observer: Observer) -> Plan:
    """Compute the plan only, read-only. Raises JsplanError for what cannot be undone."""
    async with open_session(load, observer) as session:
        return await _build_plan(session, options)


@runs_to_end
async def revert(
    load: LoadOptions, options: RevertOptions, approve: Approve, observer: Observer
) -> tuple[Plan, ApplyResult]:
    """Plan, let `approve` show the plan and ask, and execute it, all under the lock.

    Raises RefusedError for what a revert cannot undo and for hazards that are not allowed,
    JsplanError for an entry that the history does not have, and the errors of `approve`. Later
    failures are in the result.
    """
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
    """Plan a workspace that declares what was there before the apply, for its resources only."""
    context, planning = session.context, options.planning
    workspace, state = context.workspace, context.state
    entry = find_entry(state, options.number)
    changes = select_changes(entry, options.targets, options.excludes, workspace, state)
    live = await ServerReader(session).read({Address.parse(item["address"]) for item in changes})
    later = list_later_applies(state.history, entry)
    reverted = find_targets(entry, changes, workspace, state, live, later)
    workspace = declare_targets(workspace, reverted)
    before = Context(workspace, build_topology(workspace), context.backend, state, context.environ)
    plan = await compute_plan(replace(session, context=before), planning, reverted.selected)
    complete_plan(plan, reverted.targets)
    plan.diagnostics += [
        *reverted.findings,
        *(
            Diagnostic("info", "JS493", f"the messages that backfill {name} copied are not removed")
            for name in entry.get("backfills", ())
        ),
        *warn_of_files(build_inputs(context, planning), reverted.targets),
    ]
    plan.options["revert"] = {
        name: entry[name] for name in ("id", "operation", "at", "who", "host")
    }
    return plan
