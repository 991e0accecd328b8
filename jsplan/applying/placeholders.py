"""Makes and removes the placeholder consumer of an interest stream. When it is needed is decided in `planning.interest`.

State has it among its `replacements` from before it is made until it is gone: with the stream's last sequence and each consumer's
position at that moment, so that what consumers finish meanwhile does not count as deleted.
"""

from __future__ import annotations

from typing import Any

from jsplan.applying.step_context import StepContext
from jsplan.documents.plan import Step
from jsplan.errors import ServerRefusedError
from jsplan.facts.interest import parse_interest
from jsplan.jetstream.api import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND


async def create_placeholder(work: StepContext, step: Step) -> None:
    """Carry out `consumer.create_placeholder`: make the placeholder or keep the one that is there. Raises as `remove_placeholder` does."""
    live = await work.check_precondition(step)
    await work.begin(step)
    if live is None or str(step.target_address) not in work.state.replacements:
        await work.record(
            {
                "replacing": {"address": str(step.target_address)}
                | await _snapshot_positions(work, step)
            }
        )
    assert step.request is not None
    await work.send(step, step.request["api"], step.request["payload"])
    await work.record({"end": step.address}, durable=False)


async def _snapshot_positions(work: StepContext, step: Step) -> dict[str, Any]:
    """The last sequence of the stream, and of each consumer its ack floor, its last delivery and what it has out."""
    api, stream = work.api(step), step.target_address.stream
    consumers = [parse_interest(info) for info in await api.consumers(stream)]
    info = await api.stream_info(stream)
    last = int(info["state"]["last_seq"]) if info is not None else 0
    return {
        "last_seq": last,
        "consumers": {one.name: [one.floor, one.delivered, one.pending] for one in consumers},
    }


async def remove_placeholder(work: StepContext, step: Step) -> None:
    """Run `consumer.delete_placeholder`: the stream deletes what no consumer wants.

    Raises StepFailed, NotBegun, ApiError and StateError.
    """
    await work.check_precondition(step)
    await work.begin(step)
    assert step.request is not None
    try:
        await work.send(step, step.request["api"])
    except ServerRefusedError as error:
        if error.err_code not in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
            raise
    await work.record({"end": step.address}, {"replaced": str(step.target_address)})
