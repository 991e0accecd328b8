"""A saved plan: its checks against the workspace and state, and its deferred steps.

State has the deferred steps by the plan's id, so neither the plan's serial nor the file's age
matters. What makes a step safe is its fingerprint, which is checked before every write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.applying.contents import find_content
from jsplan.config.model import ContentFile, Workspace
from jsplan.documents.apply import StepResult
from jsplan.documents.plan import Plan, Step
from jsplan.errors import RefusedError, StalePlanError, UsageError
from jsplan.planning.guards import is_guarded
from jsplan.planning.hazard_permissions import is_permitted
from jsplan.resources.kv_entry import VALUE
from jsplan.state import State
from jsplan.units import count_text


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


# --- deferred steps (`apply PLANFILE --deferred`) -------------------------------------------------


def deferred_steps(
    plan: Plan, results: Iterable[StepResult], offline: Collection[str]
) -> list[str]:
    """Return the ids of steps that wait only for offline domains.

    A step that uses the result of another one is included only together with that one: otherwise
    nothing says what it should find.
    """
    ended = {result.id: result.status for result in results}
    deferred: set[str] = set()
    for step in plan.steps:
        waits = [other for other in step.depends_on if ended.get(other) != "done"]
        is_waiting = step.domain in offline or bool(waits)
        known = (
            "fingerprint" in step.precondition
            or step.precondition.get("after_step") in deferred
            or step.op == "state.forget"
        )
        skipped = ended.get(step.id) == "skipped"
        if skipped and is_waiting and known and deferred.issuperset(waits):
            deferred.add(step.id)
    return [step.id for step in plan.steps if step.id in deferred]


def resume_plan(plan: Plan, state: State, name: str) -> Plan:
    """Return the plan with only its deferred steps.

    Raises UsageError for a plan that was not applied yet, StalePlanError if nothing is deferred.
    """
    found = next((entry["steps"] for entry in state.deferred if entry["plan"] == plan.id), None)
    if found is None and plan.state["serial"] == state.serial:
        raise UsageError(
            f"{name} was not applied yet, so nothing of it is deferred",
            hint="Apply it without --deferred.",
        )
    if found is None or plan.state["lineage"] not in (None, state.lineage):
        raise StalePlanError(
            f"nothing of {name} is deferred (any more). Nothing was changed",
            hint="Plan again: jsplan plan -o FILE",
        )
    deferred = frozenset(found)
    return replace(
        plan,
        steps=[_without_done(step, deferred) for step in plan.steps if step.id in deferred],
        deferred=[],
    )


def _without_done(step: Step, deferred: frozenset[str]) -> Step:
    """Return the step without dependencies that are done."""
    depends_on, optional = (
        [other for other in others if other in deferred]
        for others in (step.depends_on, step.optional_if_offline)
    )
    return replace(step, depends_on=depends_on, optional_if_offline=optional)


def unplanned_note(plan: Plan) -> str:
    """Return a note about resources that the plan has no steps for, since they were offline."""
    if not plan.deferred:
        return ""
    domains = {item.address.partition("/")[0] for item in plan.deferred}
    resources = count_text(len(plan.deferred), "resource")
    return (
        f"{resources} in {count_text(len(domains), 'domain')}"
        " were offline already when this was planned, so it has no steps for them:"
        " they need a new plan"
    )
