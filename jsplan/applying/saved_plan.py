"""Checks a saved plan against the workspace and the state that it is applied to."""

from __future__ import annotations

from collections.abc import Mapping

from jsplan.address import Address
from jsplan.applying.kv_entries import find_content
from jsplan.config.model import ContentFile, Workspace
from jsplan.documents.plan import Plan, Step
from jsplan.errors import RefusedError, StalePlanError, UsageError
from jsplan.planning.guards import is_guarded
from jsplan.planning.hazard_permissions import is_permitted
from jsplan.resources.kv_entry import VALUE
from jsplan.state import State


def require_same_workspace(
    plan: Plan, workspace: Workspace, state: State, name: str, *, resumed: bool
) -> None:
    """Raise if the plan is for another workspace or state. `resumed`: it was applied in part."""
    if (plan.workspace, plan.environment) != (workspace.name, workspace.environment):
        planned = f"{plan.workspace}, environment {plan.environment or 'none'}"
        raise UsageError(
            f"{name} was planned for workspace {planned}",
            hint="Run it in that workspace, with its -e.",
        )
    if not resumed and (plan.state["lineage"], plan.state["serial"]) != (
        state.lineage or None,
        state.serial,
    ):
        raise StalePlanError(
            f"{name} is stale: it was made from serial {plan.state['serial']} of the state,"
            f" which has serial {state.serial} now. It was applied before, or another apply ran. "
            "Nothing was changed",
            hint="Plan again: jsplan plan -o FILE",
        )


def require_unguarded(plan: Plan, workspace: Workspace, state: State) -> None:
    """Raise RefusedError if the plan deletes what files or state guard now."""
    for step in plan.steps:
        address = Address.parse(step.address)
        recorded = Address.parse(str((step.record or {}).get("previous_address") or step.address))
        entry = state.resources.get(recorded)
        if step.kind.deletes and is_guarded(
            workspace, address, guarded=entry is not None and entry.prevent_destroy
        ):
            raise RefusedError(
                f"refused, nothing was changed: {address} is guarded by prevent_destroy,"
                " and the plan deletes it",
                hint="To lift the guard write prevent_destroy: false in its lifecycle,"
                " or in a removed entry. Then plan again.",
            )


def contents_of(workspace: Workspace) -> Mapping[Address, bytes | ContentFile]:
    """Return the values of entries and the files of objects that the files have."""
    found = {
        address: one.content if one.content is not None else one.file
        for address, one in workspace.resources.items()
    }
    return {address: one for address, one in found.items() if one is not None}


def require_planned_contents(plan: Plan, workspace: Workspace) -> None:
    """Raise StalePlanError if the files no longer have a value that the plan only names."""
    contents = contents_of(workspace)
    changed = [
        step.address
        for step in plan.steps
        if (
            step.op in ("kv_entry.create", "kv_entry.update", "schedule.create", "schedule.update")
            and find_content(step, contents) is None
        )
        or (step.op in ("object.create", "object.update") and not _has_object(step, workspace))
    ]
    if changed:
        more = f" and {len(changed) - 10:,} more" if len(changed) > 10 else ""
        raise StalePlanError(
            f"the files have other values now than were planned: {', '.join(changed[:10])}{more}. "
            "Nothing was changed",
            hint="Plan again: jsplan plan -o FILE",
        )


def _has_object(step: Step, workspace: Workspace) -> bool:
    """Check whether the file of an object has the planned content."""
    declared = workspace.resources.get(Address.parse(step.address))
    return declared is not None and declared.body[VALUE] == (step.expect or {}).get(VALUE)


def mark_allowed(plan: Plan, flags: tuple[str, ...]) -> None:
    """Mark the hazards of the plan that `--allow` permits too."""
    for change in plan.resource_changes:
        for hazard in change.hazards:
            hazard.allowed = hazard.allowed or is_permitted(flags, hazard.code, change.address)
