"""The steps of a plan as they are rehearsed: only those that write to a server, with preconditions of what is there instead.

What cannot be rehearsed is left out, with all that depends on it, and said: a rehearsal never shows a refusal that is its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jsplan.address import Address
from jsplan.documents.plan import VERIFY_OP, Plan, Step
from jsplan.rehearsal.live_snapshot import sent_config


@dataclass(slots=True)
class RehearsedSteps:
    """`steps` as they are rehearsed; `skipped` are ids of steps that are not, and `reasons` why, by the address at fault."""

    steps: list[Step] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)


def list_writing_steps(plan: Plan) -> list[Step]:
    """The steps that send something to a server; whether copies follow is not seen without messages."""
    return [
        step for step in plan.steps if not step.op.startswith("state.") and step.op != VERIFY_OP
    ]


def build_steps(
    plan: Plan,
    obstacles: Mapping[str, str],
    prints: Mapping[Address, str],
    born: Mapping[str, str] | None = None,
) -> RehearsedSteps:
    """The plan's steps for embedded servers. `obstacles` are reasons by step id, `prints` the fingerprints of what is there, and
    `born` maps when the real objects were created to when their stand-ins were.

    The steps must be in an order in which each comes after those it depends on, as a plan has them.
    """
    script, kept = RehearsedSteps(), {step.id for step in list_writing_steps(plan)}
    after = {step.id: step.depends_on for step in plan.steps}
    for step in list_writing_steps(plan):
        depends_on = sorted(_expand_dependencies(step.depends_on, kept, after))
        if script.skipped.intersection(depends_on):
            script.skipped.add(step.id)
        elif (why := obstacles.get(step.id) or _missing_reason(step, prints)) is not None:
            script.skipped.add(step.id)
            script.reasons.setdefault(step.address, why)
        else:
            precondition, params = (
                _rehearsed_precondition(step, kept, prints),
                _replace_created(step.params, born or {}),
            )
            script.steps.append(
                replace(step, depends_on=depends_on, precondition=precondition, params=params)
            )
    return script


def _expand_dependencies(
    depends_on: Iterable[str], kept: set[str], after: Mapping[str, list[str]]
) -> set[str]:
    """What a step waits for, with steps that only touch state replaced by what these wait for."""
    found: set[str] = set()
    for other in depends_on:
        found |= (
            {other} if other in kept else _expand_dependencies(after.get(other, ()), kept, after)
        )
    return found


def _missing_reason(step: Step, prints: Mapping[Address, str]) -> str | None:
    if step.precondition.get("fingerprint", "absent") == "absent" or step.target_address in prints:
        return None
    return "it is not on the embedded server"


def _rehearsed_precondition(
    step: Step, kept: set[str], prints: Mapping[Address, str]
) -> dict[str, object]:
    """What holds on the embedded servers: another `created`, so another fingerprint, and no data at stake."""
    wanted = {
        name: value
        for name, value in step.precondition.items()
        if name not in ("max_deleted", "parent", "consumers")
    }
    if wanted.get("fingerprint", "absent") != "absent":
        wanted["fingerprint"] = prints[step.target_address]
    if "after_step" in wanted and wanted["after_step"] not in kept:
        del wanted["after_step"]
    return wanted


def _replace_created(value: Any, born: Mapping[str, str]) -> Any:
    """What a step remembers of the objects that it replaces, with the creation times of those that stand in for them."""
    if isinstance(value, dict):
        return {key: _replace_created(item, born) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_created(item, born) for item in value]
    return born.get(value, value) if isinstance(value, str) else value


def placement_problem(step: Step, cluster: str | None) -> str | None:
    """Why a step cannot be rehearsed: its placement names a cluster that is not the one which was read."""
    named = ((sent_config(step) or {}).get("placement") or {}).get("cluster")
    if cluster is None or named in (None, "", cluster):
        return None
    return f"it is placed in cluster {named}, and the rehearsal has {cluster} only"
