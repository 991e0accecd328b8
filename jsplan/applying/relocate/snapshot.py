"""The copy of a relocation that no mirror can make: a snapshot of the quiesced origin.

Everything is copied while publishers wait. A restore is repeated from its begin: what a killed one
left may lack messages.
"""

from __future__ import annotations

from jsplan.applying.preserve.journal import (
    require_lock,
    require_not_stopped,
    require_ours,
    require_record,
    update_record,
    wait_until_ready,
)
from jsplan.applying.relocate.journal import (
    at,
    origin_address,
    read_origin,
    read_target,
    require_complete,
    target_address,
)
from jsplan.applying.step_context import WRITE_TIMEOUT, StepContext, StepFailed
from jsplan.documents.plan import Step
from jsplan.jetstream import snapshots
from jsplan.jetstream.repeated_restore import repeat_restore
from jsplan.planning.preserve.staging import accepts_nothing


async def copy_snapshot(context: StepContext, step: Step) -> None:
    """Restore a snapshot of the quiesced origin as the target. Ctrl-C gives the origin back."""
    record = require_record(context, step)
    origin = await read_origin(context, step, record)
    if not accepts_nothing(origin_address(step), origin, record["id"]):
        raise StepFailed(f"{origin.address} accepts messages; it was not copied")
    if record["phase"] == "promoted" and await context.read(target_address(step)) is not None:
        await read_target(context, step, record)
        return
    api = context.api(at(step, target_address(step)))
    await repeat_restore(api, lambda: _restore_once(context, step), name_is_ours=True)
    live = await wait_until_ready(context, target_address(step))
    if live is None:
        raise StepFailed(
            f"{target_address(step)} is gone again: another client deleted it during the apply"
        )
    await update_record(
        context,
        step,
        durable=False,
        phase="promoted",
        target_created=live.created,
        made_seen=live.answered_at,
        last_seq=int(origin.state.get("last_seq") or 0),
    )


async def _restore_once(context: StepContext, step: Step) -> None:
    """Delete what an earlier attempt left, and restore the snapshot while it is taken."""
    target, origin = target_address(step), origin_address(step)
    found = await context.read(target)
    if found is not None:
        record = require_record(context, step)
        require_ours(found, record)
        require_complete(await read_origin(context, step, record), found)
        await context.send_if_exists(at(step, target), f"STREAM.DELETE.{target.stream}")
    assert step.request is not None

    def check(_: int) -> None:
        require_not_stopped(context)
        require_lock(context, WRITE_TIMEOUT)

    check(0)
    async with snapshots.open_snapshot(
        context.api(at(step, origin)), origin.stream, consumers=False
    ) as taken:
        await snapshots.restore_stream(
            context.api(at(step, target)),
            step.request["payload"]["config"],
            taken.state,
            taken.chunks,
            on_progress=check,
        )
