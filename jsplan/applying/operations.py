"""The operation of each kind of step. Most are one request; the others are in `OPERATIONS`.

State has a placeholder consumer in `replacements` from before it is created until it is deleted:
with what the plan said that is deleted then, so that messages that consumers finish meanwhile do
not count as deleted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from jsplan.applying.accounts import delete_account, write_account
from jsplan.applying.contents import (
    clean_object,
    delete_entry,
    delete_object,
    delete_schedule,
    upload_object,
    write_entry,
    write_schedule,
)
from jsplan.applying.replicated_streams import (
    attach_sources,
    create_origin,
    delete_origin,
    detach_sources,
)
from jsplan.applying.replication_wait import verify_replication
from jsplan.applying.requests import FAILURES, may_run_together, run_requests
from jsplan.applying.step_context import StepContext, removal_lines
from jsplan.applying.transfer import consumers, copy, cutover
from jsplan.applying.transfer.compare import compare
from jsplan.applying.transfer.single_consumer import (
    clean_up_consumer,
    relocate_consumer,
    replace_consumer,
    reset_consumer,
)
from jsplan.applying.transfer.undo import release_origin, undo, with_undo
from jsplan.documents.plan import Step
from jsplan.documents.step_kinds import Op


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


Operation = Callable[[StepContext, Step], Awaitable[None]]


async def run_step(context: StepContext, step: Step) -> None:
    """Run one step as `run_steps` does. Raises its failure."""
    if failure := (await run_steps(context, [step], {})).get(step.id):
        raise failure


async def run_steps(
    context: StepContext, steps: Sequence[Step], extra: Mapping[str, Operation]
) -> dict[str, Exception]:
    """Run one step, or several that `may_run_together`; return the failures by id of the step.

    `extra` replaces operations. A step without an operation is one request.
    """
    operation = extra.get(steps[0].op) or OPERATIONS.get(steps[0].op)
    if operation is None:
        return await run_requests(context, steps)
    try:
        await operation(context, steps[0])
    except FAILURES as failure:
        return {steps[0].id: failure}
    return {}


def group_steps(
    steps: Iterable[Step], extra: Mapping[str, Operation], most: int
) -> Iterator[list[Step]]:
    """Yield steps that begin now in groups of at most `most` that run together."""
    groups: dict[str, list[Step]] = {}
    for step in steps:
        if step.op in extra or not may_run_together(step):
            yield [step]
            continue
        group = groups.setdefault(step.domain, [])
        group.append(step)
        if len(group) >= most:
            yield groups.pop(step.domain)
    yield from groups.values()


async def _forget(context: StepContext, step: Step) -> None:
    await context.record(*removal_lines(step))


OPERATIONS: Final[Mapping[Op, Operation]] = {
    "state.forget": _forget,
    "consumer.replace": replace_consumer,
    "consumer.cleanup": clean_up_consumer,
    "consumer.reset": reset_consumer,
    "consumer.create_placeholder": create_placeholder,
    "consumer.delete_placeholder": remove_placeholder,
    "origin.delete": delete_origin,
    "origin.create": create_origin,
    "sources.detach": detach_sources,
    "sources.attach": attach_sources,
    "replication.verify": verify_replication,
    "transfer.probe": with_undo(cutover.probe),
    "transfer.mirror": with_undo(copy.open_mirror),
    "transfer.compare": with_undo(compare),
    "transfer.quiesce": with_undo(cutover.quiesce),
    "transfer.promote": with_undo(copy.copy_by_mirror),
    "transfer.copy": with_undo(copy.copy_by_snapshot),
    "transfer.retire": with_undo(cutover.delete_old),
    "transfer.consumers": consumers.restore_consumers,
    "transfer.activate": with_undo(cutover.activate),
    "transfer.clear": cutover.delete_staging,
    "transfer.consumer": relocate_consumer,
    "transfer.delete": cutover.delete_origin,
    "transfer.end": cutover.end_without_origin,
    "transfer.undo": undo,
    "transfer.release": release_origin,
    "kv_entry.create": write_entry,
    "kv_entry.update": write_entry,
    "kv_entry.delete": delete_entry,
    "object.create": upload_object,
    "object.update": upload_object,
    "object.delete": delete_object,
    "object.clean": clean_object,
    "schedule.create": write_schedule,
    "schedule.update": write_schedule,
    "schedule.delete": delete_schedule,
    "account.create": write_account,
    "account.update": write_account,
    "account.delete": delete_account,
}
