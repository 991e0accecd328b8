"""Preconditions that a stream and its consumers are the same as when they were read.

The retention of the stream decides which messages are deleted with a consumer. Apply accounts for
what the plan itself changes.
"""

from __future__ import annotations

from collections.abc import Iterable

from jsplan.address import Address
from jsplan.documents.plan import Step
from jsplan.facts.live import get_retention, is_durable
from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision
from jsplan.planning.split_updates import stream_of
from jsplan.planning.transfer.replacement import list_consumers


def expect_streams(inputs: PlanInputs, decisions: Decisions, steps: Iterable[Step]) -> None:
    """Write the stream as it was read into the precondition of each consumer's step.

    Not where the plan creates the stream, or changes it under another name of its domain: apply
    would not recognise it.
    """
    for step in steps:
        address = Address.parse(step.address)
        if step.op == "transfer.quiesce":
            step.precondition["consumers"] = _durable_consumers(inputs, step.target_address)
        if address.parent is None or step.request is None:
            continue
        planned = decisions.get(stream_of(inputs, decisions, address))
        live = inputs.live.get(address.parent) or (planned.live if planned is not None else None)
        if live is not None and not (
            planned is not None and _is_recreated(inputs, planned, address.parent)
        ):
            step.precondition["parent"] = {
                "created": live.created,
                "retention": get_retention(live.compact),
            }


def _durable_consumers(inputs: PlanInputs, stream: Address) -> dict[str, str]:
    """Return by name the `created` of the durable consumers of a stream that is replaced.

    They decide which messages stay, and whether the new stream may have its limits.
    """
    consumers = (
        (consumer.address.consumer, consumer) for consumer in list_consumers(inputs, stream)
    )
    return {
        name: consumer.created for name, consumer in consumers if is_durable(name, consumer.raw)
    }


def _is_recreated(inputs: PlanInputs, stream: ResourceDecision, name: Address) -> bool:
    renamed = stream.address != name and stream.actions != ["no-op"]
    return stream.replaces or stream.address in inputs.interrupted.streams or renamed
