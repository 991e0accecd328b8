"""The placeholder consumer of an interest stream.

State has it in `replacements` from before it is created until it is deleted: with the last sequence
of the stream and the position of each consumer at that moment, so that messages that consumers
finish meanwhile do not count as deleted.
"""

from __future__ import annotations

from typing import Any

from jsplan.applying.step_context import StepContext
from jsplan.documents.plan import Step
from jsplan.facts.interest import parse_interest


async def create_placeholder(context: StepContext, step: Step) -> None:
    """Run `consumer.create_placeholder`: create the placeholder, or keep an existing one.

    Raises as `remove_placeholder` does.
    """
    live = await context.check_precondition(step)
    await context.begin(step)
    if live is None or str(step.target_address) not in context.state.replacements:
        await context.record(
            {
                "replacing": {"address": str(step.target_address)}
                | await _snapshot_positions(context, step)
            }
        )
    assert step.request is not None
    await context.send(step, step.request["api"], step.request["payload"])
    await context.record({"end": step.address}, durable=False)


async def _snapshot_positions(context: StepContext, step: Step) -> dict[str, Any]:
    """Read the last sequence of the stream, and the position of each consumer.
    consumer.
    """
    api, stream = context.api(step), step.target_address.stream
    consumers = [parse_interest(info) for info in await api.all_consumers(stream)]
    info = await api.stream_info(stream)
    last = int(info["state"]["last_seq"]) if info is not None else 0
    return {
        "last_seq": last,
        "consumers": {
            consumer.name: [consumer.floor, consumer.delivered, consumer.pending]
            for consumer in consumers
        },
    }


async def remove_placeholder(context: StepContext, step: Step) -> None:
    """Run `consumer.delete_placeholder`: the stream deletes what no consumer wants.

    Raises StepFailed, StepNotStarted, ApiError and StateError.
    """
    await context.check_precondition(step)
    await context.begin(step)
    assert step.request is not None
    await context.send_if_exists(step, step.request["api"])
    await context.record({"end": step.address}, {"replaced": str(step.target_address)})
