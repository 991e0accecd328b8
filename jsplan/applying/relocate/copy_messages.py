"""The copy of a relocation: a mirror of the origin, which becomes a stream of its own.

The server keeps sequences, times and headers in a mirror, also after it is promoted (2.12 and
later, measured). A mirror ends with the last message of its origin. Where that was deleted, a
message of ours marks the end, and is deleted again on both sides.
"""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any, Final

from jsplan.address import Address
from jsplan.applying.preserve.journal import (
    ProgressWatch,
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
    record_start,
    require_complete,
    target_address,
)
from jsplan.applying.step_context import WRITE_TIMEOUT, StepContext, StepFailed
from jsplan.documents.plan import Step
from jsplan.errors import ServerRefusedError
from jsplan.facts.live import LiveObject
from jsplan.planning.preserve.staging import END_MARKER
from jsplan.planning.relocation.steps import MAX_EXTRA
from jsplan.units import SECOND

#: Seconds without a new message after which a copy is abandoned: before the origin is quiesced, and
#: after it, when publishers wait.
STALL_TIMEOUT: Final = 60.0
CUTOVER_STALL_TIMEOUT: Final = 5.0
#: The same where an earlier apply has quiesced it: its mirror may connect again meanwhile.
RESUMED_STALL_TIMEOUT: Final = 30.0
#: Seconds after its creation for which a mirror of this apply counts as connected.
CONNECTED_SECONDS: Final = 5.0
#: Messages that the copy may lack when the origin is quiesced. A server copies them at once.
SMALL_LAG: Final = 1_000


async def create_mirror(context: StepContext, step: Step) -> None:
    """Create the target as a mirror of the origin, and wait until it has nearly all messages."""
    found = await context.check_precondition(step)
    require_not_stopped(context)
    await record_start(context, step)
    record = require_record(context, step)
    origin = await read_origin(context, step, record)
    if found is not None:
        require_ours(found, record)
        require_complete(origin, found)
        if not found.raw.get("mirror"):
            # An earlier attempt was rolled back after it was promoted: it lacks newer messages.
            await context.send_if_exists(step, f"STREAM.DELETE.{target_address(step).stream}")
            found = None
    if found is None:
        assert step.request is not None
        await update_record(context, step, phase="started", compared=0)
        await context.send(step, step.request["api"], step.request["payload"])
        context.mirrored_at[target_address(step)] = time.monotonic()
        found = await wait_until_ready(context, target_address(step))
    if found is None:
        raise StepFailed(
            f"{target_address(step)} is gone again: another client deleted it during the apply"
        )
    record = await update_record(
        context,
        step,
        target_created=found.created,
        made_seen=found.answered_at,
        phase="mirrored",
    )
    await _wait_until_caught_up(context, step, record)


async def _wait_until_caught_up(context: StepContext, step: Step, record: dict[str, Any]) -> None:
    """Wait until few messages are missing. The origin may receive more all the time."""
    watch, pause = ProgressWatch(STALL_TIMEOUT), 0.02
    while True:
        require_not_stopped(context)
        origin = await read_origin(context, step, record)
        target = await read_target(context, step, record)
        last = int(target.state.get("last_seq") or 0)
        is_near = last + SMALL_LAG >= int(origin.state.get("last_seq") or 0)
        if is_near and last >= await last_stored(context, step, origin):
            return
        if watch.has_stalled(last):
            raise StepFailed(
                f"{target.address} has messages up to sequence {last:,} of {origin.address}, and "
                f"none arrived for {STALL_TIMEOUT:.0f}s. {origin.address} was not touched. "
                f"{_hint(target)}The next apply continues"
            )
        await asyncio.sleep(pause)
        pause = min(0.5, pause * 1.5)


def _hint(target: LiveObject) -> str:
    """Return what to check where a mirror reads another account."""
    external = (target.raw.get("mirror") or {}).get("external") or {}
    return "Check exports and imports: jsplan access --check. " if external.get("deliver") else ""


async def wait_until_connected(context: StepContext, step: Step, record: dict[str, Any]) -> None:
    """Wait until the mirror hears from its origin, before publishers have to wait for it.

    A server sends a heartbeat to a mirror every second. A mirror whose connection was lost tries
    again after 10 s or more (measured on 2.15).
    """
    since, pause = time.monotonic(), 0.02
    if since - context.mirrored_at.get(target_address(step), since - CONNECTED_SECONDS) < (
        CONNECTED_SECONDS
    ):
        return
    while True:
        require_not_stopped(context)
        target, waited = await read_target(context, step, record), time.monotonic() - since
        if not target.raw.get("mirror"):
            return
        heard = next((int(flow.get("active") or 0) for flow in target.flows), -1)
        if 0 <= heard < waited * SECOND:
            return
        if waited > STALL_TIMEOUT:
            origin = origin_address(step)
            raise StepFailed(
                f"{target.address} does not hear from {origin} for {STALL_TIMEOUT:.0f}s. {origin} "
                "was not touched. The next apply continues"
            )
        await asyncio.sleep(pause)
        pause = min(0.2, pause * 1.5)


async def last_stored(context: StepContext, step: Step, stream: LiveObject) -> int:
    """Return the sequence of the last message that the stream has; 0 if it has none."""
    last = int(stream.state.get("last_seq") or 0)
    if not stream.state.get("messages") or not stream.state.get("num_deleted"):
        return last if stream.state.get("messages") else 0
    api, name = context.api(at(step, stream.address)), stream.address.stream
    if await api.get_message(name, {"seq": last}) is not None:
        return last
    # `last_by_subj` finds nothing where the last message is deleted (measured on 2.15).
    low, high = int(stream.state.get("first_seq") or 0), last
    while low < high:
        middle = (low + high + 1) // 2
        found = await api.get_message(name, {"seq": middle, "next_by_subj": ">"})
        low, high = (int(found["seq"]), high) if found is not None else (low, middle - 1)
    return low


# --- the cut-over --------------------------------------------------------------------------------


async def promote(context: StepContext, step: Step) -> None:
    """Wait for the rest of the quiesced origin, and turn the mirror into a stream of its own."""
    record = require_record(context, step)
    target = await read_target(context, step, record)
    origin = await read_origin(context, step, record)
    require_complete(origin, target)
    if target.raw.get("mirror"):
        await _write_end_marker(context, step, origin)
        await _wait_for_rest(context, step, record)
        assert step.request is not None
        await context.send(step, step.request["api"], step.request["payload"])
    await _delete_end_marker(context, step)
    origin, target = await asyncio.gather(
        read_origin(context, step, record), read_target(context, step, record)
    )
    if target.raw.get("mirror"):
        raise StepFailed(f"{target.address} is still a mirror, although the server said otherwise")
    await _delete_extra(context, step, origin, target)
    last = int(origin.state.get("last_seq") or 0)
    await update_record(context, step, durable=False, phase="promoted", last_seq=last)


async def _wait_for_rest(context: StepContext, step: Step, record: dict[str, Any]) -> None:
    """Wait until the mirror ends as its quiesced origin does, which may store what was queued."""
    begun_here = any(
        other.op == "relocate.quiesce" and other.address == step.address
        for other in context.plan.steps
    )
    timeout = CUTOVER_STALL_TIMEOUT if begun_here else RESUMED_STALL_TIMEOUT
    watch, pause = ProgressWatch(timeout), 0.005
    while True:
        sides = await asyncio.gather(
            read_target(context, step, record), read_origin(context, step, record)
        )
        last, wanted = (int(side.state.get("last_seq") or 0) for side in sides)
        if last >= wanted:
            return
        if watch.has_stalled(last):
            raise StepFailed(
                f"{target_address(step)} has messages up to sequence {last:,} of {wanted:,}, and "
                f"none arrived for {timeout:.0f}s"
            )
        await asyncio.sleep(pause)
        pause = min(0.1, pause * 1.5)


async def _write_end_marker(context: StepContext, step: Step, origin: LiveObject) -> None:
    """Write an end marker where the last message is deleted: a mirror needs an end."""
    last = int(origin.state.get("last_seq") or 0)
    if last == 0 or await last_stored(context, step, origin) == last:
        return
    if origin.raw.get("deny_delete"):
        raise StepFailed(
            f"the last message of {origin.address} is deleted, so a message of ours must mark its "
            "end, and deny_delete does not let it be removed. Publish one message and apply again"
        )
    await update_record(context, step, end_marker=last + 1)
    require_lock(context, WRITE_TIMEOUT)
    api, subject = context.api(at(step, origin.address)), origin.raw["subjects"][0]
    try:
        api.parse(
            subject, await api.connection.request(subject, END_MARKER, WRITE_TIMEOUT, headers=None)
        )
    except ServerRefusedError as error:
        raise StepFailed(
            f"{origin.address} refuses the message that marks its end: {error.description}"
        ) from None


async def delete_end_marker(context: StepContext, step: Step, address: Address) -> None:
    """Delete the end marker from one side, if it is there.

    It is known by its payload: one that was recorded and never written may be the next message.
    """
    mark = require_record(context, step).get("end_marker")
    if not mark:
        return
    found = await context.api(at(step, address)).get_message(address.stream, {"seq": mark})
    if found is not None and base64.b64decode(found.get("data") or "") == END_MARKER:
        await context.send(at(step, address), f"STREAM.MSG.DELETE.{address.stream}", {"seq": mark})


async def _delete_end_marker(context: StepContext, step: Step) -> None:
    """Delete the end marker from both sides, if there is one."""
    for address in (target_address(step), origin_address(step)):
        await delete_end_marker(context, step, address)


async def _delete_extra(
    context: StepContext, step: Step, origin: LiveObject, target: LiveObject
) -> None:
    """Delete from the copy what was deleted from the origin while it was copied."""
    first, copied_first = (int(s.state.get("first_seq") or 0) for s in (origin, target))
    name = target.address.stream
    if first > copied_first and target.state.get("messages"):
        await context.send(step, f"STREAM.PURGE.{name}", {"seq": first})
        target = await read_target(context, step, require_record(context, step))
    extra = int(target.state.get("messages") or 0) - int(origin.state.get("messages") or 0)
    if extra <= 0:
        return
    if extra > MAX_EXTRA:
        raise StepFailed(
            f"{origin.address} lost {extra:,} messages while it was copied, which another client "
            "deleted"
        )
    theirs, ours = [
        await context.api(at(step, s.address)).request(
            f"STREAM.INFO.{s.address.stream}", {"deleted_details": True}
        )
        for s in (origin, target)
    ]
    gone = set(theirs["state"].get("deleted") or ()) - set(ours["state"].get("deleted") or ())
    last = int(target.state.get("last_seq") or 0)
    for seq in sorted(seq for seq in gone if int(ours["state"]["first_seq"]) <= seq <= last):
        await context.send(step, f"STREAM.MSG.DELETE.{name}", {"seq": seq})
