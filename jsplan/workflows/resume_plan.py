"""What is left of a saved plan because domains were away, and how exactly that is applied later (`apply PLANFILE --deferred`).

State remembers the steps by the plan's id, so neither the plan's serial nor the file's age matters: what makes a step safe
is its fingerprint, which is checked before anything is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from jsplan.documents.apply import StepResult
from jsplan.documents.plan import Plan, Step
from jsplan.errors import StalePlanError, UsageError
from jsplan.state import State


def deferred_steps(
    plan: Plan, results: Iterable[StepResult], offline: Collection[str]
) -> list[str]:
    """The ids of steps that were not begun because their domain is in `away`, and of those that wait for such steps alone.

    A step that goes on from what another one left behind is only among them together with that: else nothing says what it
    should find.
    """
    ended = {result.id: result.status for result in results}
    left: set[str] = set()
    for step in plan.steps:
        waits = [other for other in step.depends_on if ended.get(other) != "done"]
        because = step.domain in offline or bool(waits)
        known = (
            "fingerprint" in step.precondition
            or step.precondition.get("after_step") in left
            or step.op == "state.forget"
        )
        if ended.get(step.id) == "skipped" and because and known and left.issuperset(waits):
            left.add(step.id)
    return [step.id for step in plan.steps if step.id in left]


def resume_plan(plan: Plan, state: State, path: Path) -> Plan:
    """The plan with the steps alone that are left of it.

    Raises UsageError for a plan that was not applied yet, StalePlanError for one of which nothing is left.
    """
    found = next((entry["steps"] for entry in state.deferred if entry["plan"] == plan.id), None)
    if found is None and plan.state["serial"] == state.serial:
        raise UsageError(
            f"{path} was not applied yet, so nothing of it is deferred",
            hint="Apply it without --deferred.",
        )
    if found is None or plan.state["lineage"] not in (None, state.lineage):
        raise StalePlanError(
            f"nothing of {path} is deferred (any more). Nothing was changed",
            hint="Plan again: jsplan plan -o FILE",
        )
    left = frozenset(found)
    return replace(
        plan,
        steps=[_without_done(step, left) for step in plan.steps if step.id in left],
        deferred=[],
    )


def _without_done(step: Step, left: frozenset[str]) -> Step:
    """The step without those that are done."""
    waits, later = (
        [other for other in others if other in left]
        for others in (step.depends_on, step.optional_if_offline)
    )
    return replace(step, depends_on=waits, optional_if_offline=later)


def unplanned_note(plan: Plan) -> str:
    """What to say of resources whose domain was away when the plan was made: nobody read them, so nothing was approved for them."""
    if not plan.deferred:
        return ""
    domains = {item.address.partition("/")[0] for item in plan.deferred}
    return (
        f"{len(plan.deferred)} resource{'s' if len(plan.deferred) > 1 else ''} in {len(domains)} domain{'s' if len(domains) > 1 else ''} "
        "were away already when this was planned, so it has no steps for them: they need a new plan"
    )
