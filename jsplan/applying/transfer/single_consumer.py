"""One consumer at its position: replaced, reset in place, or relocated with its stream.

State records the first two under `replacements`:

1. before the first request: the old consumer, and the word of `position` in the files, if any;
2. while it is held, so that nothing more is delivered: its position, or the one that is wanted;
3. a replacement: the old one is deleted, and a new one placed (`place_consumers`);
   a reset: CONSUMER.RESET of nats-server 2.14, the word in the entry, and the old one's own pause.
   Nothing is delivered in between, so that a reset that is repeated after a kill changes nothing;
4. the record is removed.

An interest stream has a placeholder consumer meanwhile, through its own steps (`placeholders`).

A later process finds the old consumer (starts over), none or a held new one (continues at the
recorded position), or the finished one (removes the record).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.transfer.consumers import (
    Placement,
    find_position,
    is_half_made,
    place_consumers,
)
from jsplan.applying.transfer.cutover import delete_finished, require_activated
from jsplan.applying.transfer.hold import Recorded, hold, own_pause, release, with_pause
from jsplan.applying.transfer.record import (
    find_record,
    params,
    read_copy,
    read_origin,
    require_not_stopped,
    require_record,
    update_record,
    wait_until_ready,
)
from jsplan.documents.base import plain
from jsplan.documents.plan import Step
from jsplan.errors import ApiError, JsplanError
from jsplan.facts.live import LiveObject
from jsplan.planning.pauses import PAUSE, is_held
from jsplan.resources.fields import Config

#: Polls, and seconds between them, while clients have not acknowledged their messages yet.
MAX_POLLS, POLL_INTERVAL = 20, 0.05


async def replace_consumer(context: StepContext, step: Step) -> None:
    """Run `consumer.replace`. Raises StepFailed, StepNotStarted, ApiError and StateError."""
    live = await context.check_precondition(step)
    await context.begin(step, live)
    begun, address = find_record(context, step), step.target_address
    if live is not None and not (begun is not None and is_half_made(live, begun)):
        await _hold_alone(context, step, live)
        verb = f"CONSUMER.DELETE.{address.stream}.{address.consumer}"
        await context.send_if_exists(step, verb)
    old = require_record(context, step)
    stream = await context.read(_stream_of(step))
    if stream is None:
        raise StepFailed(f"the stream of {address} is gone; nothing was written")
    assert step.request is not None
    keeps = stream.created == old.get("stream_created")
    config = step.request["payload"]["config"]
    placement = Placement(address, old, config, stream, step, keeps)
    try:
        await place_consumers(context, step, [placement])
    except ApiError as error:
        position = old.get("position")
        raise StepFailed(
            f"{error}; the old consumer is deleted, and its position (sequence {position}) "
            "is kept for the next apply"
        ) from None
    await context.record({"replaced": params(step)["state_address"]})


async def reset_consumer(context: StepContext, step: Step) -> None:
    """Run `consumer.reset`. Raises StepFailed, StepNotStarted, ApiError and StateError."""
    live = await context.check_precondition(step)
    if live is None:
        raise StepFailed(f"{step.target_address} is gone; nothing was written")
    await context.begin(step, live)
    address, held = step.target_address, await _hold_alone(context, step, live)
    try:
        verb = f"CONSUMER.RESET.{address.stream}.{address.consumer}"
        answer = await context.send(step, verb, {"seq": held["position"]})
        now = await context.read(address)
        if now is None or now.created != live.created:
            raise StepFailed(f"{address} was deleted by another client during the apply")
    except JsplanError:
        await _undo(context, step)
        raise
    await context.save_entry(step, with_pause(now, own_pause(held["config"])))
    await release(context, step, {address: held})
    await context.record({"replaced": params(step)["state_address"]})
    resumed = await context.read(address)
    if resumed is not None:
        context.note_result(step, resumed)
    position = held["position"]
    if int(answer.get("reset_seq") or position) != position:
        raise StepFailed(f"{address} was set to sequence {answer['reset_seq']}, and not {position}")


async def clean_up_consumer(context: StepContext, step: Step) -> None:
    """Run `consumer.cleanup`: release an old consumer that is still held.

    Raises as `reset_consumer` does.
    """
    recorded, begun = params(step)["state_address"], find_record(context, step)
    if begun is None:
        return
    address = Address.parse(step.address)
    live = await context.read(address)
    if live is not None and is_held(live.raw):
        await release(context, step, {address: begun})
        await _record_released(context, address)
    await context.record({"replaced": recorded})


async def _undo(context: StepContext, step: Step) -> None:
    """Release the old consumer. If that fails, the next plan does it."""
    with suppress(JsplanError):
        await clean_up_consumer(context, step)


async def _record_released(context: StepContext, address: Address) -> None:
    """Record the configuration: an entry that was recorded before has the pause that held it."""
    entry, live = context.state.resources.get(address), await context.read(address)
    if entry is not None and live is not None and live.created == entry.created:
        now = replace(entry, config=live.config, seen=live.answered_at)
        await context.record({"put": {"address": str(address), "entry": plain(now)}})


async def _hold_alone(context: StepContext, step: Step, live: LiveObject) -> dict[str, Any]:
    """Hold one consumer; return its record, with the position that is wanted.

    Release it where that fails.
    """
    name, state_address = step.target_address.consumer, params(step)["state_address"]
    known, reset = find_record(context, step), params(step).get("reset")
    record = {"address": state_address} | ({"position_once": reset["once"]} if reset else {})

    async def save(found: dict[str, Recorded]) -> None:
        record.update(found[name])
        await context.record({"replacing": dict(record)})

    async def read() -> list[LiveObject]:
        return [await _wait_until_idle(context, live)]

    try:
        await hold(context, step, [live], {name: known} if known else {}, save, read)
        stream = await context.require(_stream_of(step))
        position = await find_position(context, step, stream, record)
    except JsplanError:
        await _undo(context, step)
        raise
    record |= {"position": _wanted_position(reset, position), "stream_created": stream.created}
    await context.record({"replacing": record})
    return record


def _wanted_position(reset: Config | None, position: int) -> int:
    """Return the position to set, where the consumer is at `position` now.

    What the plan did not announce does not happen: a reset forward repeats nothing if the consumer
    has passed the sequence by now, and one back skips nothing.
    """
    if reset is None:
        return position
    wanted, direction = int(reset["seq"]), reset["direction"]
    if direction == "back":
        return min(wanted, position)
    return max(wanted, position) if direction == "forward" else wanted


async def _wait_until_idle(context: StepContext, live: LiveObject) -> LiveObject:
    """Wait a moment for acknowledgements; return the consumer. Raises StepFailed if it changed."""
    for _ in range(MAX_POLLS):
        now = await _read_unchanged(context, live)
        if not now.state.get("num_ack_pending"):
            return now
        await asyncio.sleep(POLL_INTERVAL)
    return await _read_unchanged(context, live)


async def _read_unchanged(context: StepContext, live: LiveObject) -> LiveObject:
    now = await context.read(live.address)
    if now is None or now.created != live.created or _without_pause(now) != _without_pause(live):
        raise StepFailed(
            f"{live.address} was changed by another client during the apply; it was not replaced"
        )
    return now


def _without_pause(live: LiveObject) -> Config:
    return {name: value for name, value in live.compact.items() if name != PAUSE}


def _stream_of(step: Step) -> Address:
    parent = step.target_address.parent
    assert parent is not None
    return parent


# --- a consumer of a relocated stream -------------------------------------------------------------


async def relocate_consumer(context: StepContext, step: Step) -> None:
    """Run `transfer.consumer`: hold the old consumer, and place the new one.

    The old one is not read again once the new one may have delivered something. A work queue loses
    what workers have finished until now. Without an origin only a recorded position counts. Raises
    as `place_consumers` does.
    """
    require_not_stopped(context)
    record, old = require_record(context, step), Address.parse(params(step)["continues"])
    stream = await read_copy(context, step, record)
    await require_activated(context, step, stream)
    found = await context.read(step.target_address)
    _require_unfinished(context, step, found)
    if "origin_lost" not in params(step):
        if found is None or old.consumer not in record.get("consumers", {}):
            await _hold_old(context, step, old)
        await delete_finished(context, step)
    before = require_record(context, step).get("consumers", {}).get(old.consumer)
    if before is None:
        raise StepFailed(
            f"{old} was deleted by another client before its position was read; "
            f"{step.target_address} was not created. The next plan says where it starts"
        )
    assert step.request is not None
    config = step.request["payload"]["config"]
    placement = Placement(step.target_address, before, config, stream, step)
    await place_consumers(context, step, [placement])


def _require_unfinished(context: StepContext, step: Step, found: LiveObject | None) -> None:
    """Raise StepFailed for a consumer at the new address that is neither ours nor half created."""
    entry = context.state.resources.get(step.target_address)
    if found is None or (entry is not None and entry.created == found.created):
        return
    if not is_held(found.raw):
        raise StepFailed(
            f"{found.address} was created by another client during the apply; nothing was written"
        )


async def _hold_old(context: StepContext, step: Step, address: Address) -> None:
    """Hold a consumer of the origin, if it exists."""
    await read_origin(context, step, require_record(context, step))
    old = await wait_until_ready(context, address)
    if old is None:
        return

    def known() -> dict[str, Recorded]:
        """Return the recorded consumers; other steps add theirs meanwhile."""
        found: dict[str, Recorded] = require_record(context, step).get("consumers", {})
        return found

    async def save(found: dict[str, Recorded]) -> None:
        new = {name: {**one, "target": str(step.target_address)} for name, one in found.items()}
        await update_record(context, step, consumers=known() | new)

    async def read() -> list[LiveObject]:
        return [await wait_until_ready(context, address) or old]

    await hold(context, step, [old], known(), save, read)
