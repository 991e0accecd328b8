"""restore: create the streams of a backup by a plan that is shown, approved and applied."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from msgspec.structs import replace

from jsplan.applying.restore import RestoreOperations, verify_snapshots
from jsplan.backup.folder import read_manifest
from jsplan.config.model import LoadOptions
from jsplan.context import Context, Session, hold_session, open_context
from jsplan.documents.apply import ApplyResult
from jsplan.documents.plan import Plan
from jsplan.errors import PlanError
from jsplan.event_loop import runs_to_end
from jsplan.options import Approve, Observer, PlanOptions
from jsplan.plan_inputs import build_inputs
from jsplan.planning.refusals import require_permission
from jsplan.planning.restore.obstacles import complete_plan, warn_of_flows
from jsplan.planning.restore.selection import (
    Backup,
    RestoreSelection,
    declare_saved,
    mark_known,
    select_streams,
)
from jsplan.topology import build_topology
from jsplan.units import SECOND, count_text
from jsplan.workflows.apply import execute_plan
from jsplan.workflows.plan import compute_plan


@dataclass(frozen=True, slots=True)
class RestoreOptions(RestoreSelection):
    """The selection, and how it is restored. `allow_hazards` are `CODE` or `CODE:ADDR`.

    `lock_timeout` is ns; `parallelism` is in streams per domain.
    """

    allow_hazards: tuple[str, ...] = ()
    parallelism: int = 4
    lock_timeout: int = 10 * SECOND


@runs_to_end
async def restore(
    load: LoadOptions, options: RestoreOptions, approve: Approve, observer: Observer
) -> tuple[Plan, ApplyResult]:
    """Verify the archives, plan, let `approve` show and ask, and execute, all under the lock.

    Existing objects are not touched. Restored resources of the files become managed. Raises
    BackupError for a damaged backup and UsageError for names that do not fit it, both before any
    request to a server; RefusedError if an object exists already, PlanError if a server cannot take
    it, and the errors of `approve`. Later failures are in the result.
    """
    async with open_context(load) as context:
        saved = read_manifest(options.folder).streams
        backup = select_streams(saved, context.workspace.domains, options)
        observer.phase(f"Verifying {count_text(len(backup), 'archive')}")
        await verify_snapshots(options.folder, backup)
        async with hold_session(context, "restore", options.lock_timeout, observer) as session:
            backup = mark_known(backup, session.context.state, context.workspace.resources)
            plan = await _build_plan(session, backup, options)
            if plan.errored:
                raise PlanError(
                    plan.diagnostics, "the backup cannot be restored like this; nothing was changed"
                )
            if plan.has_changes:
                await asyncio.to_thread(approve, plan)
            require_permission(plan)
            operations = RestoreOperations(options.folder, backup, observer.event)
            execution = PlanOptions(parallelism=options.parallelism)
            return plan, await execute_plan(session, plan, execution, operations.by_op)


async def _build_plan(session: Session, backup: Backup, options: RestoreOptions) -> Plan:
    """Plan a workspace that declares what the backup holds, and only that, without last applied."""
    context, planning = session.context, PlanOptions(allow_hazards=options.allow_hazards)
    only = frozenset(address for target in backup.values() for address in target.configs)
    workspace = declare_saved(context.workspace, backup.values())
    state = replace(context.state, resources={}, pending={}, replacements={})
    topology = build_topology(workspace)
    topology.diagnostics = warn_of_flows(topology.diagnostics, only)
    saved = Context(workspace, topology, context.backend, state, context.environ)
    plan = await compute_plan(replace(session, context=saved), planning, only, backup)
    complete_plan(plan, backup, options.folder, build_inputs(context, planning))
    return plan
