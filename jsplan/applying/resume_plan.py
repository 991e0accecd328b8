"""Deferred steps of a saved plan, and the plan that runs them (`apply PLANFILE --deferred`).

State has the steps by the plan's id, so neither the plan's serial nor the file's age matters. What
makes a step safe is its fingerprint, which is checked before every write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from jsplan.documents.apply import StepResult
from jsplan.documents.plan import Plan, Step
from jsplan.errors import StalePlanError, UsageError
from jsplan.state import State
from jsplan.units import count_text


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
