"""Bounds of the messages that a deletion may delete before the apply stops. Pure.

The apply compares the bound with the current count. It measures the
deletions of an update again instead: see `applying.remeasure`.
"""

from __future__ import annotations

from collections.abc import Iterable

from jsplan.address import Address
from jsplan.documents.plan import Step
from jsplan.planning.model import Decisions, PlanInputs


def bound_deletions(inputs: PlanInputs, decisions: Decisions, steps: Iterable[Step]) -> None:
    """Set `max_deleted` of each deletion: messages, or unfinished messages of a consumer.

    Set `max_consumers` of a stream that needs no permission because it has none.
    """
    safe_below = inputs.options.safe_below
    for step in steps:
        decision = decisions.get(Address.parse(step.address))
        if (
            decision is None
            or decision.live is None
            or step.request is None
            or "fingerprint" not in step.precondition
        ):
            continue
        messages = decision.live.messages_at_risk
        if step.op == "stream.delete" or (
            step.op == "consumer.delete" and decision.actions == ["delete"]
        ):
            step.precondition["max_deleted"] = _deletion_bound(messages, safe_below)
        if (
            step.op == "stream.delete"
            and messages <= safe_below
            and not decision.live.state.get("consumer_count")
        ):
            step.precondition["max_consumers"] = 0


def _deletion_bound(planned: int, safe_below: int) -> int:
    return max(planned + planned // 10, safe_below)
