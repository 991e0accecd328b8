"""Consumers of a relocated stream: created at the position of those that they continue."""

from __future__ import annotations

from jsplan.address import Address
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.transfer.consumers import RestoredConsumer, restore_each
from jsplan.applying.transfer.cutover import require_activated
from jsplan.applying.transfer.finished import delete_finished
from jsplan.applying.transfer.record import (
    at,
    hop_of,
    params,
    read_copy,
    read_origin,
    require_not_stopped,
    require_record,
    update_record,
    wait_until_ready,
)
from jsplan.documents.plan import Step
from jsplan.facts.live import LiveObject
from jsplan.planning.pauses import PAUSE
from jsplan.planning.transfer.pause_marker import PAUSED_UNTIL


async def create_consumer(context: StepContext, step: Step) -> None:
    """Pause the old consumer, record its position, and create the new one there.

    The old one is not read again once the new one may have delivered something. A work queue loses
    what workers have finished until now. Without an origin only a recorded position counts.
    """
    require_not_stopped(context)
    record, old = require_record(context, step), Address.parse(params(step)["continues"])
    stream = await read_copy(context, step, record)
    await require_activated(context, step, stream)
    found = await context.read(step.target_address)
    _require_unfinished(context, step, found)
    if "origin_lost" not in params(step):
        if found is None or old.consumer not in record.get("consumers", {}):
            await _record_position(context, step, old)
        await delete_finished(context, step)
    before = require_record(context, step).get("consumers", {}).get(old.consumer)
    if before is None:
        raise StepFailed(
            f"{old} was deleted by another client before its position was read; "
            f"{step.target_address} was not created. The next plan says where it starts"
        )
    assert step.request is not None
    wanted = {
        "address": step.address,
        "config": step.request["payload"]["config"],
        "record": step.record,
    }
    restored = RestoredConsumer(
        step.target_address.consumer,
        before,
        wanted,
        stream,
        {},
        is_relocated=True,
    )
    await restore_each(context, step, [restored])
    live = await context.read(step.target_address)
    if live is not None:
        context.note_result(step, live)


def _require_unfinished(context: StepContext, step: Step, found: LiveObject | None) -> None:
    """Raise StepFailed for a consumer at the new address that is neither ours nor half created."""
    entry = context.state.resources.get(step.target_address)
    ours = found is None or (entry is not None and entry.created == found.created)
    if found is not None and not ours and found.raw.get(PAUSE) != PAUSED_UNTIL:
        raise StepFailed(
            f"{found.address} was created by another client during the apply; nothing was written"
        )


async def _record_position(context: StepContext, step: Step, address: Address) -> None:
    """Pause a consumer of the origin, and record its position."""
    origin, name = hop_of(step).origin, address.consumer
    await read_origin(context, step, require_record(context, step))
    old = await wait_until_ready(context, address)
    if old is None:
        return
    config = old.raw
    if old.raw.get(PAUSE) != PAUSED_UNTIL:
        await context.send(
            at(step, address), f"CONSUMER.PAUSE.{origin.stream}.{name}", {PAUSE: PAUSED_UNTIL}
        )
        old = await wait_until_ready(context, address) or old
    known = require_record(context, step).get("consumers", {})
    if name in known:
        config = known[name]["config"]
    position = {
        "config": config,
        "created": old.created,
        "state": old.state,
        "target": str(step.target_address),
    }
    await update_record(context, step, consumers=known | {name: position})
