"""Expect a stream and its consumers to be the same as when they were read. Pure.

Which messages go with a consumer, or stay for a new one, is decided by the retention of its stream. What the plan itself does to the
stream is seen by the executor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jsplan.address import Address
from jsplan.documents.plan import Step
from jsplan.facts.live import get_retention, is_durable
from jsplan.planning.decide import ResourceDecision
from jsplan.planning.model import PlanInputs
from jsplan.planning.preserve.hazards import list_consumers
from jsplan.planning.split_updates import stream_of


def expect_streams(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision], steps: Iterable[Step]
) -> None:
    """Write the stream as it was read into the precondition of each consumer's step, unless the plan makes that stream.

    Nor where the plan changes it under another name of its domain: the executor would not know it again.
    """
    for step in steps:
        address = Address.parse(step.address)
        if step.op == "stream.quiesce":
            step.precondition["consumers"] = _durable_consumers(inputs, step.target_address)
        if address.parent is None or step.request is None:
            continue
        planned = verdicts.get(stream_of(inputs, verdicts, address))
        live = inputs.live.get(address.parent) or (planned.live if planned is not None else None)
        if live is not None and not (
            planned is not None and _is_recreated(inputs, planned, address.parent)
        ):
            step.precondition["parent"] = {
                "created": live.created,
                "retention": get_retention(live.compact),
            }


def _durable_consumers(inputs: PlanInputs, stream: Address) -> dict[str, str]:
    """The durable consumers of a stream that is replaced with its messages, by name, with `created`.

    Whether one is there decides which messages stay, and whether the new stream may have its limits.
    """
    there = ((one.address.consumer, one) for one in list_consumers(inputs, stream))
    return {name: one.created for name, one in there if is_durable(name, one.raw)}


def _is_recreated(inputs: PlanInputs, stream: ResourceDecision, name: Address) -> bool:
    renamed = stream.address != name and stream.actions != ["no-op"]
    return stream.replaces or stream.address in inputs.interrupted or renamed
