"""How much more than planned may go with a stream or consumer before apply stops (contract, section 4). Pure arithmetic.

What is there when the moment comes is seen by the executor, against the number that is written here. What an update
deletes is measured again instead, by `applying.remeasure`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jsplan.address import Address
from jsplan.documents.plan import Step
from jsplan.planning.decide import ResourceDecision
from jsplan.planning.model import PlanInputs


def bound_deletions(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision], steps: Iterable[Step]
) -> None:
    """Give each step that deletes something the `max_deleted` it may find at most: messages, or a consumer's unfinished ones."""
    for step in steps:
        verdict = verdicts.get(Address.parse(step.address))
        if (
            verdict is None
            or verdict.live is None
            or step.request is None
            or "fingerprint" not in step.precondition
        ):
            continue
        there = verdict.live.messages_at_risk
        if step.op == "stream.delete" or (
            step.op == "consumer.delete" and verdict.actions == ["delete"]
        ):
            step.precondition["max_deleted"] = _deletion_bound(there, inputs.request.safe_below)


def _deletion_bound(planned: int, safe_below: int) -> int:
    return max(planned + planned // 10, safe_below)
