"""How much more than planned a deletion may delete before apply stops (contract, section 4). Pure arithmetic.

What is there when the moment comes is measured by the executor, against the number that is written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jsplan.address import Address
from jsplan.documents.plan import Step
from jsplan.planning.hazards import assess
from jsplan.planning.inputs import Inputs
from jsplan.planning.verdict import Verdict

#: Limits under which every message that arrives pushes another one out, or is deleted itself.
GROWING = frozenset({"max_msgs", "max_bytes", "max_msgs_per_subject", "retention"})


def bound(inputs: Inputs, verdicts: Mapping[Address, Verdict], steps: Iterable[Step]) -> None:
    """Give each step that deletes something the `at_stake` it may find at most: messages, or a consumer's unfinished ones."""
    for step in steps:
        verdict = verdicts.get(Address.parse(step.address))
        if verdict is None or verdict.live is None or step.request is None or "fingerprint" not in step.precondition:
            continue
        there = verdict.live.at_stake
        if step.op == "stream.delete" or (step.op == "consumer.delete" and verdict.actions == ["delete"]):
            step.precondition["at_stake"] = _most(there, inputs.request.safe_below)
        elif step.op == "stream.update" and (deleted := _trimmed(inputs, verdict, dict(verdicts))) is not None:
            step.precondition["at_stake"] = there - deleted + _most(deleted, inputs.request.safe_below)


def _most(planned: int, safe_below: int) -> int:
    return max(planned + planned // 10, safe_below)


def _trimmed(inputs: Inputs, verdict: Verdict, verdicts: dict[Address, Verdict]) -> int | None:
    """How many messages an update deletes, where more messages mean more deleted ones."""
    found = next((h for h in assess(inputs, verdict, verdicts) if h.code == "DELETES_MESSAGES"), None)
    return (found.messages or 0) if found is not None and GROWING.intersection(found.causes) else None
