"""Messages that workers finish at the origin while a work queue moves.

A copy of a work queue cannot follow it. So workers continue at the origin until their consumer
moves, and what was acknowledged there meanwhile is deleted from the copy. An acknowledgement that
the origin has taken thus counts, and only what workers still have is delivered again.
"""

from __future__ import annotations

from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.transfer.compare import compare_range
from jsplan.applying.transfer.record import (
    TransferRecord,
    at,
    delete_message,
    hop_of,
    is_workqueue,
    read_origin,
    require_record,
)
from jsplan.documents.plan import Step
from jsplan.planning.transfer.configs import is_quiesced


async def delete_finished(context: StepContext, step: Step) -> None:
    """Delete from the target what workers have finished at the origin, if that is a work queue.

    What no consumer had received is not deleted: its absence is a loss of the origin's server, as
    is a lower last sequence. Raises StepFailed where another client changed the origin.
    """
    record = require_record(context, step)
    if not is_workqueue(record):
        return
    origin = await read_origin(context, step, record)
    last, now = int(record["last_seq"]), int(origin.state.get("last_seq") or 0)
    if now > last or not is_quiesced(hop_of(step).origin, origin, record["id"]):
        raise StepFailed(f"{origin.address} was changed by another client; nothing was deleted")
    if now < last:
        return
    last = min(last, await _last_delivered(context, step, record))
    first = int(origin.state.get("first_seq") or 0)
    if origin.state.get("messages") and first > 1:
        await _purge_before(context, step, min(first, last + 1))
    elif not origin.state.get("messages"):
        await _purge_before(context, step, last + 1)
        return
    while first <= last:
        found = await compare_range(context, step, first, last)
        for seq in found.extra:
            await delete_message(context, at(step, hop_of(step).copy), seq)
        if not found.extra.omitted:
            return


async def _last_delivered(context: StepContext, step: Step, record: TransferRecord) -> int:
    """Return the last sequence that consumers of the origin delivered, also deleted ones."""
    origin = hop_of(step).origin
    now = await context.api(at(step, origin)).all_consumers(origin.stream)
    known = [consumer["state"] for consumer in record.get("consumers", {}).values()]
    return max(
        (int((state.get("delivered") or {}).get("stream_seq") or 0) for state in [*known, *now]),
        default=0,
    )


async def _purge_before(context: StepContext, step: Step, seq: int) -> None:
    """Delete what the target has before the first message of the origin."""
    target = hop_of(step).copy
    live = await context.read(target)
    if live is not None and live.state.get("messages") and int(live.state["first_seq"]) < seq:
        await context.send(at(step, target), f"STREAM.PURGE.{target.stream}", {"seq": seq})
