"""The cut-over of a relocation: quiesce the origin, activate the target; and the way back.

Between the two publishers get no acknowledgement. Whatever fails there gives the origin its
subjects back at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from jsplan.applying.preserve.journal import (
    params,
    require_not_stopped,
    require_ours,
    require_record,
    update_record,
)
from jsplan.applying.relocate.copy_messages import delete_end_marker, wait_until_connected
from jsplan.applying.relocate.finished import delete_finished
from jsplan.applying.relocate.journal import (
    MessagesLost,
    at,
    delete_copy,
    origin_address,
    read_origin,
    read_target,
    record_start,
    require_activated,
    require_complete,
    target_address,
)
from jsplan.applying.relocate.placeholder import create_placeholder, delete_placeholder
from jsplan.applying.step_context import StepContext, StepFailed, StepNotStarted
from jsplan.applying.verify_write import describe_unkept, unkept_fields
from jsplan.documents.plan import Step
from jsplan.errors import ApiError, JsplanError
from jsplan.facts.live import LiveObject
from jsplan.planning.preserve.staging import (
    accepts_nothing,
    belongs_to_replacement,
)

Operation = Callable[[StepContext, Step], Awaitable[None]]
RESTORED: Final = "the origin has its subjects back"
UNCHANGED: Final = "the origin is unchanged"


async def quiesce(context: StepContext, step: Step) -> None:
    """Remove subjects and limits from the origin: no message is added or removed any more."""
    await context.check_precondition(step)
    require_not_stopped(context)
    if "relocation" in params(step):
        await _begin_with_snapshot(context, step)
    record = require_record(context, step)
    if record.get("strategy") != "snapshot":
        await wait_until_connected(context, step, record)
        target = await read_target(context, step, record)
        require_complete(await read_origin(context, step, record), target)
    await update_record(context, step, phase="quiesced")
    if step.request is not None:  # not of a sealed stream
        await context.send(step, step.request["api"], step.request["payload"])
    live = await read_origin(context, step, record)
    if not accepts_nothing(origin_address(step), live, record["id"]):
        raise StepFailed(f"{live.address}: the server did not remove its subjects")
    context.fingerprints[step.id] = live.fingerprint


async def _begin_with_snapshot(context: StepContext, step: Step) -> None:
    """Record a relocation that begins with its cut-over, if the name of the target is free."""
    found = await context.read(target_address(step))
    if found is not None:
        require_ours(found, params(step)["relocation"])
    await record_start(context, step)


async def activate(context: StepContext, step: Step) -> None:
    """Give the target its subjects and limits. From then on it is the stream, and in state."""
    record = require_record(context, step)
    if not record.get("compared_from"):
        raise StepFailed(f"{step.target_address} was not compared; it was not activated")
    target, origin = await asyncio.gather(
        read_target(context, step, record), read_origin(context, step, record)
    )
    require_ours(target, record)
    if int(origin.state.get("last_seq") or 0) != record["last_seq"]:
        raise StepFailed(f"{origin.address} received a message although it has no subjects")
    await create_placeholder(context, step)
    await update_record(context, step, phase="activating", record=step.record, expect=step.expect)
    assert step.request is not None
    await context.send(step, step.request["api"], step.request["payload"])
    live = await read_target(context, step, record)
    context.note_result(step, live)
    lost = unkept_fields(step, live)
    await context.save_entry(step, live, lost)
    await update_record(context, step, phase="activated")
    if lost:
        raise StepFailed(
            f"{step.target_address}: the server did not keep {describe_unkept(step, live, lost)}"
        )


async def delete_origin(context: StepContext, step: Step) -> None:
    """Delete the origin, which has been compared and did not change since."""
    live = await context.check_precondition(step)
    require_not_stopped(context)
    record = require_record(context, step)
    target = await read_target(context, step, record)
    if live is not None:
        quiesced = accepts_nothing(origin_address(step), live, record["id"])
        unchanged = int(live.state.get("last_seq") or 0) == record.get("last_seq")
        if live.created != record["old"]["created"] or not (quiesced and unchanged):
            raise StepFailed(f"{live.address} was changed by another client; it was not deleted")
    await require_activated(context, step, target)
    last = int(target.state.get("last_seq") or 0)
    if last < int(record["last_seq"]):
        raise StepFailed(
            f"{target.address} ends at sequence {last:,}, and had messages up to "
            f"{record['last_seq']:,}: its server lost messages. {step.address} was not deleted. "
            f"Delete {target.address}, and the next apply copies it again"
        )
    if int(record.get("compared") or 0) < int(record["last_seq"]):
        raise StepFailed(f"{target.address} was not compared; {step.address} was not deleted")
    if live is not None:
        await delete_finished(context, step)
    await delete_placeholder(context, step)
    await context.begin(step)
    await context.call(step)
    await context.verify_write(step)
    await context.record({"replaced": params(step)["state_address"]})


async def end_without_origin(context: StepContext, step: Step) -> None:
    """End a relocation whose origin another client deleted after the activation."""
    require_not_stopped(context)
    record = require_record(context, step)
    await require_activated(context, step, await read_target(context, step, record))
    origin = await context.read(origin_address(step))
    if origin is not None and origin.created == record["old"]["created"]:
        raise StepFailed(f"{origin.address} is there again; it was not deleted")
    await delete_placeholder(context, step)
    await context.record({"replaced": params(step)["state_address"]})


# --- the way back --------------------------------------------------------------------------------


def with_origin_restored(operation: Operation) -> Operation:
    """Wrap a step of the cut-over: give the origin its subjects back if the step fails."""

    async def run_or_restore(context: StepContext, step: Step) -> None:
        try:
            await operation(context, step)
        except (StepFailed, ApiError, StepNotStarted) as error:
            outcome = await _restore(context, step)
            text = str(error) or _lost_domain(context, step)
            record = context.state.replacements.get(params(step)["state_address"], {})
            if outcome is None and record.get("phase") == "activating":
                may = f"{target_address(step)} may have its subjects already"
                raise StepFailed(f"{text}; {may}. The next apply continues", "unknown") from None
            if outcome is None:
                raise
            kept = "" if isinstance(error, MessagesLost) else ", and nothing of it is lost"
            raise StepFailed(f"{text}; {outcome}{kept}") from None

    return run_or_restore


def _lost_domain(context: StepContext, step: Step) -> str:
    lost = [key for key in step.required_domains if key in context.lost_domains]
    if not lost:
        return f"{step.title}: interrupted"
    return f"domain {lost[0]} went offline: {context.lost_domains[lost[0]]}"


async def _restore(context: StepContext, step: Step) -> str | None:
    """Give the origin its configuration back. Returns None where there is nothing to restore.

    Not after the call that activates the target was sent: it may have been executed.
    """
    record = context.state.replacements.get(params(step)["state_address"])
    if record is None or record["phase"] == "activated":
        return None
    try:
        if record["phase"] == "activating" and not await _is_inactive(context, step, record):
            return None
        live = await read_origin(context, step, record)
        if not accepts_nothing(origin_address(step), live, record["id"]):
            return None
        await _restore_origin(context, step, live, record["old"]["config"])
        await update_record(context, step, phase="mirrored", compared_from=0, end_marker=0)
        with suppress(JsplanError, StepNotStarted):  # else the next apply deletes it
            await delete_copy(context, step, record, keep_mirror=True)
    except (JsplanError, StepNotStarted):
        return None
    return UNCHANGED if live.raw.get("sealed") else RESTORED


async def _is_inactive(context: StepContext, step: Step, record: dict[str, Any]) -> bool:
    """Check that the target has no subjects, although the call that sets them was sent."""
    live = await read_target(context, step, record)
    return belongs_to_replacement(live.raw, record["id"])


async def _restore_origin(
    context: StepContext, step: Step, origin: LiveObject, config: dict[str, Any]
) -> None:
    """Give the origin its configuration back. A sealed one was not quiesced, and still has it."""
    if origin.raw.get("sealed"):
        return
    address = origin.address
    await context.send(at(step, address), f"STREAM.UPDATE.{address.stream}", config)
    await delete_end_marker(context, step, address)


async def release(context: StepContext, step: Step) -> None:
    """Give the origin its subjects back while the domain of the copy is offline.

    The record stays: the relocation continues later. Raises StepFailed where the copy may have been
    activated.
    """
    await context.check_precondition(step)
    require_not_stopped(context)
    if require_record(context, step)["phase"] in ("activating", "activated"):
        raise StepFailed(f"the copy of {step.target_address} may be activated; nothing was written")
    assert step.request is not None
    await context.send(step, step.request["api"], step.request["payload"])
    await delete_end_marker(context, step, step.target_address)
    await update_record(context, step, phase="mirrored", compared_from=0, end_marker=0)
    live = await context.read(step.target_address)
    wanted = step.request["payload"].get("subjects")
    if live is None or live.raw.get("subjects") != wanted:
        raise StepFailed(f"{step.target_address} does not have its subjects")
    context.note_result(step, live)


async def restore(context: StepContext, step: Step) -> None:
    """Go back: update the origin to the files, delete the copy, and forget the relocation."""
    await context.check_precondition(step)
    require_not_stopped(context)
    record = require_record(context, step)
    assert step.request is not None
    before = await read_origin(context, step, record)
    await _restore_origin(context, step, before, step.request["payload"])
    await delete_copy(context, step, record, keep_mirror=False)
    live = await read_origin(context, step, record)
    lost = unkept_fields(step, live)
    context.note_result(step, live)
    await context.save_entry(step, live, lost)
    await context.record({"replaced": params(step)["state_address"]})
    if lost:
        raise StepFailed(
            f"{step.target_address}: the server did not keep {describe_unkept(step, live, lost)}"
        )
