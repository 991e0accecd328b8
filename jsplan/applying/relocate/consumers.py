"""Consumers of a relocated stream: created at the position of those of the same name."""

from __future__ import annotations

from jsplan.address import Address
from jsplan.applying.preserve.journal import (
    params,
    require_not_stopped,
    require_record,
    update_record,
    wait_until_ready,
)
from jsplan.applying.preserve.new_stream import RestoredConsumer, restore_each
from jsplan.applying.relocate.finished import delete_finished
from jsplan.applying.relocate.journal import at, origin_address, read_target, require_activated
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.documents.plan import Step
from jsplan.planning.pauses import PAUSE
from jsplan.planning.preserve.pause_marker import PAUSED_UNTIL
from jsplan.resources.server_features import PAUSE_LEVEL


async def create_consumer(context: StepContext, step: Step) -> None:
    """Pause the old consumer, record its position, and create the new one there.

    The old one is not read again once the new one may have delivered something. A work queue loses
    what workers have finished until now.
    """
    require_not_stopped(context)
    record, name = require_record(context, step), step.target_address.consumer
    stream = await read_target(context, step, record)
    await require_activated(context, step, stream)
    if await context.read(step.target_address) is None:
        await _record_position(context, step, name)
    await delete_finished(context, step)
    before = require_record(context, step).get("consumers", {}).get(name)
    if before is None:
        raise StepFailed(f"the position of {name} in {params(step)['relocated']} is not known")
    assert step.request is not None
    wanted = {
        "address": step.address,
        "config": step.request["payload"]["config"],
        "record": step.record,
    }
    restored = RestoredConsumer(
        name, before, wanted, stream, {"method": "mirror"}, is_relocated=True
    )
    await restore_each(context, step, [restored])
    live = await context.read(step.target_address)
    if live is not None:
        context.note_result(step, live)


async def _record_position(context: StepContext, step: Step, name: str) -> None:
    origin = origin_address(step)
    address = Address(origin.domain, "consumer", f"{origin.stream}/{name}")
    old = await wait_until_ready(context, address)
    if old is None:
        return
    config, can_pause = old.raw, int(params(step)["origin_level"]) >= PAUSE_LEVEL
    if can_pause and old.raw.get(PAUSE) != PAUSED_UNTIL:
        await context.send(
            at(step, address), f"CONSUMER.PAUSE.{origin.stream}.{name}", {PAUSE: PAUSED_UNTIL}
        )
        old = await wait_until_ready(context, address) or old
    known = require_record(context, step).get("consumers", {})
    if name in known:
        config = known[name]["config"]
    position = {"config": config, "created": old.created, "state": old.state}
    await update_record(context, step, consumers=known | {name: position})
    if not can_pause:
        # It would deliver messages that the new one delivers too. The target is complete.
        await context.send_if_exists(at(step, address), f"CONSUMER.DELETE.{origin.stream}.{name}")
