"""Copy of a stream within one domain, by snapshot, mirror or source.

A copy can be repeated: it resumes an earlier attempt where that loses nothing, and starts over
otherwise.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from jsplan.address import Address
from jsplan.applying.preserve.journal import (
    ProgressWatch,
    params,
    require_lock,
    require_not_stopped,
    require_ours,
    require_record,
    update_record,
    wait_until_ready,
)
from jsplan.applying.step_context import WRITE_TIMEOUT, StepContext, StepFailed
from jsplan.documents.plan import Step
from jsplan.errors import ServerRefusedError
from jsplan.facts.live import LiveObject
from jsplan.jetstream import snapshots
from jsplan.jetstream.repeated_restore import repeat_restore
from jsplan.planning.preserve.staging import END_MARKER
from jsplan.resources.fields import Config

#: Seconds without a new message after which a copy is abandoned.
STALL_TIMEOUT: Final = 60.0


async def fill_stream(context: StepContext, step: Step) -> None:
    """Create the step's stream with the messages of another one, and wait until it is complete."""
    require_not_stopped(context)
    record, source = require_record(context, step), Address.parse(params(step)["from"])
    assert step.request is not None
    found = await context.read(step.target_address)
    if found is not None:
        if found.created == record["old"]["created"]:
            raise StepFailed(f"the old {step.target_address} is still there; nothing was written")
        require_ours(found, record)
        # An earlier attempt, or one for other files: the staging stream has all messages.
        if params(step)["into_new"]:
            await context.send_if_exists(step, f"STREAM.DELETE.{step.target_address.stream}")
            found = None
    origin = await context.read(source)
    if origin is None:
        raise StepFailed(
            f"{source} is gone: another client deleted it; {step.target_address} was not filled"
        )
    method = params(step)["method"]
    if method == "snapshot":
        await _fill_by_snapshot(context, step, source)
    else:
        await _fill_by_server(context, step, origin, found)
    live = await wait_until_ready(context, step.target_address)
    if live is None:
        raise StepFailed(
            f"{step.target_address} is gone again: another client deleted it during the apply"
        )
    context.fingerprints[step.id] = live.fingerprint
    done: dict[str, Any] = (
        {"phase": "refilled", "new_created": live.created, "made_seen": live.answered_at}
        if params(step)["into_new"]
        else {"phase": "copied"}
    )
    await update_record(context, step, **done)


# --- snapshots -----------------------------------------------------------------------------------


async def _fill_by_snapshot(context: StepContext, step: Step, source: Address) -> None:
    """Restore a snapshot while it is taken. Delete what an earlier attempt left first."""
    assert step.request is not None
    config, api = step.request["payload"], context.api(step)

    def check(_: int = 0) -> None:
        require_not_stopped(context)
        require_lock(context, WRITE_TIMEOUT)

    async def restore() -> None:
        check()
        found = await context.read(step.target_address)
        if found is not None:
            require_ours(found, require_record(context, step))
            await context.send_if_exists(step, f"STREAM.DELETE.{step.target_address.stream}")
        async with snapshots.open_snapshot(
            api, source.stream, consumers=params(step)["consumers"]
        ) as taken:
            await snapshots.restore_stream(
                api, config, taken.state, taken.chunks, on_progress=check
            )

    await repeat_restore(api, restore, name_is_ours=True)


# --- mirrors -------------------------------------------------------------------------------------


async def _fill_by_server(
    context: StepContext, step: Step, origin: LiveObject, found: LiveObject | None
) -> None:
    """Copy with a mirror, which is promoted when the copy is complete.

    An existing staging stream is not deleted: copying a work queue consumes it, so the staging
    stream may be the only copy.
    """
    assert step.request is not None
    config = step.request["payload"]
    await _write_end_marker(context, step, origin)
    origin = await context.read(origin.address) or origin
    if found is None:
        payload = {name: value for name, value in config.items() if name != "subjects"}
        payload["mirror"] = {"name": origin.address.stream}
        await context.send(step, f"STREAM.CREATE.{step.target_address.stream}", payload)
    if found is None or found.raw.get("mirror"):
        await _wait_until_filled(context, step, origin)
        await context.send(step, f"STREAM.UPDATE.{step.target_address.stream}", config)
    if params(step)["into_new"] and (mark := require_record(context, step).get("end_marker")):
        await _delete_end_marker(context, step, mark)


async def _write_end_marker(context: StepContext, step: Step, origin: LiveObject) -> None:
    """Write an end marker where the last message is deleted: a mirror needs an end."""
    last, record = int(origin.state.get("last_seq") or 0), require_record(context, step)
    if (
        params(step)["into_new"]
        or last >= record.get("end_marker", last + 1)
        or not origin.state.get("messages")
    ):
        return
    if await context.api(step).get_message(origin.address.stream, {"seq": last}) is not None:
        return
    await update_record(context, step, end_marker=last + 1)
    require_lock(context, WRITE_TIMEOUT)
    headers = {"Nats-Incr": "+0"} if origin.raw.get("allow_msg_counter") else None
    subject = origin.raw["subjects"][0]
    try:
        context.api(step).parse(
            subject,
            await context.api(step).connection.request(
                subject, END_MARKER, WRITE_TIMEOUT, headers=headers
            ),
        )
    except ServerRefusedError as error:
        raise StepFailed(
            f"{origin.address} refuses the message that marks its end: {error.description}"
        ) from None


async def _delete_end_marker(context: StepContext, step: Step, mark: int) -> None:
    try:
        await context.send(step, f"STREAM.MSG.DELETE.{step.target_address.stream}", {"seq": mark})
    except ServerRefusedError:
        live = await context.read(step.target_address)
        if live is None or int(live.state.get("last_seq") or 0) < mark:
            raise


async def _wait_until_filled(context: StepContext, step: Step, origin: LiveObject) -> None:
    """Wait until the stream is complete. Raises StepFailed when no message arrives any more."""
    end = int(origin.state.get("last_seq") or 0)
    watch, pause = ProgressWatch(STALL_TIMEOUT), 0.02
    while True:
        require_not_stopped(context)
        live = await context.read(step.target_address)
        state: Config = live.state if live is not None else {}
        last, count = int(state.get("last_seq") or 0), int(state.get("messages") or 0)
        if last >= end:
            return
        if watch.has_stalled((last, count)):
            text = (
                f"{step.target_address} has {count:,} messages up to sequence {last:,}, "
                f"and none arrived for {STALL_TIMEOUT:.0f}s"
            )
            raise StepFailed(
                f"{text}; the old stream was not deleted"
                if not params(step)["into_new"]
                else f"{text}; all messages are in {origin.address}"
            )
        await asyncio.sleep(pause)
        pause = min(0.5, pause * 1.5)
