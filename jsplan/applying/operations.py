"""What each kind of step does. Most are one request; those that are more have a module of their own and a line in `OPERATIONS`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from jsplan.applying import placeholders
from jsplan.applying.downstream import create_origin, delete_origin, leave, rejoin
from jsplan.applying.following import verify
from jsplan.applying.positions import replace_consumer, tidy_up
from jsplan.applying.preserve import comparing, copying, probing, returning, stopping
from jsplan.applying.preserve.undoing import undone_if_failed
from jsplan.applying.work import Work, gone, settled
from jsplan.documents.plan import Op, Step

Operation = Callable[[Work, Step], Awaitable[None]]


async def carry_out(work: Work, step: Step, more: Mapping[str, Operation]) -> None:
    """Do one step; `more` has kinds of steps that are not always possible. Raises StepFailed, NotBegun, ApiError and StateError."""
    await (more.get(step.op) or OPERATIONS.get(step.op, _request))(work, step)


async def _request(work: Work, step: Step) -> None:
    """The common case: what was planned still holds, one request, and the server kept it."""
    live = await work.check(step)
    if step.request is None:
        await (work.remember(step, live) if live is not None and step.record else work.record(*settled(step, live)))
        return
    await work.begin(step, None if step.op.endswith(".delete") else live)
    await work.call(step)
    await work.read_back(step)


async def _forget(work: Work, step: Step) -> None:
    await work.record(*gone(step))


OPERATIONS: Final[Mapping[Op, Operation]] = {
    "state.forget": _forget,
    "stream.probe": undone_if_failed(probing.probe),
    "stream.quiesce": undone_if_failed(stopping.stop),
    "stream.pause_consumers": undone_if_failed(stopping.hold),
    "stream.copy": undone_if_failed(copying.copy),
    "stream.compare": undone_if_failed(comparing.compare),
    "stream.delete_old": undone_if_failed(stopping.retire),
    "stream.resume_consumers": returning.resume,
    "stream.activate": returning.give_back,
    "stream.delete_staging": returning.clear,
    "consumer.replace": replace_consumer,
    "consumer.cleanup": tidy_up,
    "consumer.create_placeholder": placeholders.hold,
    "consumer.delete_placeholder": placeholders.release,
    "origin.delete": delete_origin,
    "origin.create": create_origin,
    "sources.detach": leave,
    "sources.attach": rejoin,
    "replication.verify": verify,
}
