"""The placeholder consumer of an interest stream.

State has it in `replacements` from before it is created until it is deleted: with what the plan
said that is deleted then, so that messages that consumers finish meanwhile do not count as deleted.
"""

from __future__ import annotations

from jsplan.applying.step_context import StepContext
from jsplan.documents.plan import Step


async def create_placeholder(context: StepContext, step: Step) -> None:
    """Run `consumer.create_placeholder`: create the placeholder, or keep an existing one.

    Raises as `remove_placeholder` does.
    """
    await context.check_precondition(step)
    await context.begin(step)
    consumers = {change.name for one in step.deletions for change in one.request.consumers}
    held = (one.request.held for one in step.deletions)
    consumers.update(*(before.consumers for before in held if before is not None))
    await context.record(
        {
            "replacing": {
                "address": str(step.target_address),
                "at_most": sum(one.at_most for one in step.deletions),
                "consumers": sorted(consumers),
            }
        }
    )
    assert step.request is not None
    await context.send(step, step.request["api"], step.request["payload"])
    await context.record({"end": step.address}, durable=False)


async def remove_placeholder(context: StepContext, step: Step) -> None:
    """Run `consumer.delete_placeholder`: the stream deletes what no consumer wants.

    Raises StepFailed, StepNotStarted, ApiError and StateError.
    """
    await context.check_precondition(step)
    await context.begin(step)
    assert step.request is not None
    await context.send_if_exists(step, step.request["api"])
    await context.record({"end": step.address}, {"replaced": str(step.target_address)})
