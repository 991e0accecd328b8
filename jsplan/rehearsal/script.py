"""The steps of a plan as they are rehearsed: only those that write to a server, with preconditions of what is there instead.

What cannot be rehearsed is left out, with all that depends on it, and said: a rehearsal never shows a refusal that is its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jsplan.address import Address
from jsplan.documents.plan import VERIFY, Plan, Step
from jsplan.rehearsal.surroundings import sent


@dataclass(slots=True)
class Script:
    """`steps` as they are rehearsed; `left_out` are ids of steps that are not, and `reasons` why, by the address at fault."""

    steps: list[Step] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)


def writing(plan: Plan) -> list[Step]:
    """The steps that send something to a server; whether copies follow is not seen without messages."""
    return [step for step in plan.steps if not step.op.startswith("state.") and step.op != VERIFY]


def script_of(plan: Plan, obstacles: Mapping[str, str], prints: Mapping[Address, str], born: Mapping[str, str] | None = None) -> Script:
    """The plan's steps for embedded servers. `obstacles` are reasons by step id, `prints` the fingerprints of what is there, and
    `born` maps when the real objects were created to when their stand-ins were.

    The steps must be in an order in which each comes after those it depends on, as a plan has them.
    """
    script, kept = Script(), {step.id for step in writing(plan)}
    after = {step.id: step.depends_on for step in plan.steps}
    for step in writing(plan):
        depends_on = sorted(_through(step.depends_on, kept, after))
        if script.left_out.intersection(depends_on):
            script.left_out.add(step.id)
        elif (why := obstacles.get(step.id) or _not_there(step, prints)) is not None:
            script.left_out.add(step.id)
            script.reasons.setdefault(step.address, why)
        else:
            precondition, params = _precondition(step, kept, prints), _reborn(step.params, born or {})
            script.steps.append(replace(step, depends_on=depends_on, precondition=precondition, params=params))
    return script


def _through(depends_on: Iterable[str], kept: set[str], after: Mapping[str, list[str]]) -> set[str]:
    """What a step waits for, with steps that only touch state replaced by what these wait for."""
    found: set[str] = set()
    for other in depends_on:
        found |= {other} if other in kept else _through(after.get(other, ()), kept, after)
    return found


def _not_there(step: Step, prints: Mapping[Address, str]) -> str | None:
    if step.precondition.get("fingerprint", "absent") == "absent" or step.touches in prints:
        return None
    return "it is not on the embedded server"


def _precondition(step: Step, kept: set[str], prints: Mapping[Address, str]) -> dict[str, object]:
    """What holds on the embedded servers: another `created`, so another fingerprint, and no data at stake."""
    wanted = {name: value for name, value in step.precondition.items() if name not in ("max_deleted", "parent", "consumers")}
    if wanted.get("fingerprint", "absent") != "absent":
        wanted["fingerprint"] = prints[step.touches]
    if "after_step" in wanted and wanted["after_step"] not in kept:
        del wanted["after_step"]
    return wanted


def _reborn(value: Any, born: Mapping[str, str]) -> Any:
    """What a step remembers of the objects that it replaces, with the creation times of those that stand in for them."""
    if isinstance(value, dict):
        return {key: _reborn(item, born) for key, item in value.items()}
    if isinstance(value, list):
        return [_reborn(item, born) for item in value]
    return born.get(value, value) if isinstance(value, str) else value


def elsewhere(step: Step, cluster: str | None) -> str | None:
    """Why a step cannot be rehearsed: its placement names a cluster that is not the one which was read."""
    named = ((sent(step) or {}).get("placement") or {}).get("cluster")
    if cluster is None or named in (None, "", cluster):
        return None
    return f"it is placed in cluster {named}, and the rehearsal has {cluster} only"
