"""The steps of a plan as they are rehearsed: those that write, with adapted preconditions.

A step that cannot be rehearsed is left out with all that depend on it, and a warning says so. So a
rehearsal never reports a refusal that only it causes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.documents.plan import Plan, Step
from jsplan.documents.step_kinds import VERIFY_OP
from jsplan.rehearsal.live_snapshot import sent_config


class RehearsedSteps(Struct):
    """Rehearsed `steps`, ids of `skipped` ones, and `reasons` by address."""

    steps: list[Step] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)


def list_writing_steps(plan: Plan) -> list[Step]:
    """List the steps that send something to a server, and that embedded servers can show.

    Replication checks need messages, and contents are messages.
    """
    return [
        step
        for step in plan.steps
        if not step.op.startswith("state.")
        and step.op != VERIFY_OP
        and not step.target_address.is_content
    ]


def build_steps(
    plan: Plan,
    obstacles: Mapping[str, str],
    fingerprints: Mapping[Address, str],
    created_times: Mapping[str, str] | None = None,
) -> RehearsedSteps:
    """Adapt the plan's steps to embedded servers.

    `obstacles` are reasons by step id. `fingerprints` are those of the embedded objects.
    `created_times` maps the `created` of the real objects to that of the embedded ones. Each step
    must follow its dependencies, as in a plan.
    """
    script, writing = RehearsedSteps(), {step.id for step in list_writing_steps(plan)}
    after = {step.id: step.depends_on for step in plan.steps}
    for step in list_writing_steps(plan):
        depends_on = sorted(_expand_dependencies(step.depends_on, writing, after))
        if script.skipped.intersection(depends_on):
            script.skipped.add(step.id)
        elif (why := obstacles.get(step.id) or _missing_reason(step, fingerprints)) is not None:
            script.skipped.add(step.id)
            script.reasons.setdefault(step.address, why)
        else:
            precondition, params = (
                _rehearsed_precondition(step, writing, fingerprints),
                _replace_created(step.params, created_times or {}),
            )
            script.steps.append(
                replace(step, depends_on=depends_on, precondition=precondition, params=params)
            )
    return script


def _expand_dependencies(
    depends_on: Iterable[str], writing: set[str], after: Mapping[str, list[str]]
) -> set[str]:
    """Replace dependencies on steps that only touch state by the dependencies of these."""
    found: set[str] = set()
    for other in depends_on:
        found |= (
            {other}
            if other in writing
            else _expand_dependencies(after.get(other, ()), writing, after)
        )
    return found


def _missing_reason(step: Step, fingerprints: Mapping[Address, str]) -> str | None:
    wanted = step.precondition.get("fingerprint", "absent")
    if wanted == "absent" or step.target_address in fingerprints:
        return None
    return "it is not on the embedded server"


def _rehearsed_precondition(
    step: Step, writing: set[str], fingerprints: Mapping[Address, str]
) -> dict[str, object]:
    """Return the precondition for embedded servers: another fingerprint, and no data."""
    wanted = {
        name: value
        for name, value in step.precondition.items()
        if name not in ("max_deleted", "max_consumers", "parent", "consumers", "readers", "related")
    }
    if wanted.get("fingerprint", "absent") != "absent":
        wanted["fingerprint"] = fingerprints[step.target_address]
    if "after_step" in wanted and wanted["after_step"] not in writing:
        del wanted["after_step"]
    return wanted


def _replace_created(value: Any, created_times: Mapping[str, str]) -> Any:
    """Replace creation times of real objects by those of the embedded ones."""
    if isinstance(value, dict):
        return {key: _replace_created(item, created_times) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_created(item, created_times) for item in value]
    return created_times.get(value, value) if isinstance(value, str) else value


def placement_problem(step: Step, cluster: str | None) -> str | None:
    """Return a reason if the step's placement names a cluster other than `cluster`, or None."""
    named = ((sent_config(step) or {}).get("placement") or {}).get("cluster")
    if cluster is None or named in (None, "", cluster):
        return None
    return f"it is placed in cluster {named}, and the rehearsal has {cluster} only"
