"""Fills a stream with the messages of another one in the same domain, in the three ways that servers have.

Made to be done again: what an earlier attempt left is taken up where that loses nothing, and otherwise made anew.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from jsplan.address import Address
from jsplan.applying.preserve.journal import (
    delete_stream,
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
from jsplan.errors import ApiError, ServerRefusedError
from jsplan.facts.live import LiveObject
from jsplan.jetstream import snapshots
from jsplan.jetstream.api import NO_MESSAGE
from jsplan.planning.preserve.staging import END_MARKER
from jsplan.resources.fields import Config

#: Seconds without a single message more after which a copy is given up.
STALL_TIMEOUT: Final = 60.0
#: Seconds for a server to finish what a restore that was killed has left of the name.
NAME_TIMEOUT: Final = 20.0


async def fill_stream(work: StepContext, step: Step) -> None:
    """Make the step's stream with the messages of another one, and wait until it has them all."""
    require_not_stopped(work)
    record, source = require_record(work, step), Address.parse(params(step)["from"])
    assert step.request is not None
    found = await work.read(step.target_address)
    if found is not None:
        if found.created == record["old"]["created"]:
            raise StepFailed(f"the old {step.target_address} is still there; nothing was written")
        require_ours(found, record)
        if params(step)[
            "into_new"
        ]:  # an earlier attempt, or one for other files; the stand-in has everything
            await delete_stream(work, step, f"STREAM.DELETE.{step.target_address.stream}")
            found = None
    origin = await work.read(source)
    if origin is None:
        raise StepFailed(
            f"{source} is gone: somebody else deleted it; {step.target_address} was not filled"
        )
    way = params(step)["method"]
    if way == "snapshot":
        await _fill_by_snapshot(work, step, source, found)
    else:
        await _fill_by_server(work, step, origin, found)
    live = await wait_until_ready(work, step.target_address)
    if live is None:
        raise StepFailed(
            f"{step.target_address} is gone again: somebody else deleted it at the same moment"
        )
    work.fingerprints[step.id] = live.fingerprint
    done = (
        {"phase": "refilled", "new_created": live.created}
        if params(step)["into_new"]
        else {"phase": "copied"}
    )
    await update_record(work, step, **done)


# --- archives --------------------------------------------------------------------------------------------------


async def _fill_by_snapshot(
    work: StepContext, step: Step, source: Address, found: LiveObject | None
) -> None:
    """A snapshot that goes straight into a restore. An earlier attempt may have left half of a stream: it goes first."""
    assert step.request is not None
    config, api, end = step.request["payload"], work.api(step), time.monotonic() + NAME_TIMEOUT
    while True:
        if found is not None:
            require_ours(found, require_record(work, step))
            await delete_stream(work, step, f"STREAM.DELETE.{step.target_address.stream}")
        require_lock(work, WRITE_TIMEOUT)
        try:
            async with snapshots.open_snapshot(
                api, source.stream, consumers=params(step)["consumers"]
            ) as taken:
                await snapshots.restore_stream(
                    api,
                    config,
                    taken.state,
                    taken.chunks,
                    on_progress=lambda _: require_lock(work, WRITE_TIMEOUT),
                )
            return
        except ApiError as error:
            if not _is_transient(error) or time.monotonic() > end:
                raise
        await asyncio.sleep(0.25)
        require_not_stopped(work)
        found = await work.read(step.target_address)


def _is_transient(error: ApiError) -> bool:
    """Whether it is only too early: a restore that was killed still has the name, or a cluster has just made the consumers."""
    if isinstance(error, ServerRefusedError):
        return error.err_code in snapshots.NAME_IN_USE
    return "failed to get consumer state" in str(error)


# --- mirrors and sources ---------------------------------------------------------------------------------------


async def _fill_by_server(
    work: StepContext, step: Step, origin: LiveObject, found: LiveObject | None
) -> None:
    """A mirror or a source of the other stream, cut off once it has everything.

    A stand-in that is there already is not deleted: copying a work queue consumes it, so it may be the only copy.
    """
    assert step.request is not None
    config, mirrors = step.request["payload"], params(step)["method"] == "mirror"
    if mirrors:
        await _write_end_marker(work, step, origin)
        origin = await work.read(origin.address) or origin
    copying = (
        {"mirror": {"name": origin.address.stream}}
        if mirrors
        else {"sources": [{"name": origin.address.stream}]}
    )
    if found is None:
        payload = {name: value for name, value in config.items() if name != "subjects"} | copying
        await work.send(step, f"STREAM.CREATE.{step.target_address.stream}", payload)
    if found is None or found.raw.get("mirror") or found.raw.get("sources"):
        await _wait_until_filled(work, step, origin, mirrors=mirrors)
        await work.send(step, f"STREAM.UPDATE.{step.target_address.stream}", config)
    if params(step)["into_new"] and (mark := require_record(work, step).get("end_marker")):
        await _delete_end_marker(work, step, mark)


async def _write_end_marker(work: StepContext, step: Step, origin: LiveObject) -> None:
    """A mirror ends with its origin's last message, so where that was deleted a message of ours makes the sequences equal."""
    last, record = int(origin.state.get("last_seq") or 0), require_record(work, step)
    if (
        params(step)["into_new"]
        or last >= record.get("end_marker", last + 1)
        or not origin.state.get("messages")
    ):
        return
    try:
        await work.api(step).request(f"STREAM.MSG.GET.{origin.address.stream}", {"seq": last})
        return
    except ServerRefusedError as error:
        if error.err_code != NO_MESSAGE:
            raise
    await update_record(work, step, end_marker=last + 1)
    require_lock(work, WRITE_TIMEOUT)
    headers = {"Nats-Incr": "+0"} if origin.raw.get("allow_msg_counter") else None
    subject = origin.raw["subjects"][0]
    try:
        work.api(step).parse(
            subject,
            await work.api(step).connection.request(
                subject, END_MARKER, WRITE_TIMEOUT, headers=headers
            ),
        )
    except ServerRefusedError as error:
        raise StepFailed(
            f"{origin.address} does not take the message that marks its end: {error.description}"
        ) from None


async def _delete_end_marker(work: StepContext, step: Step, mark: int) -> None:
    try:
        await work.send(step, f"STREAM.MSG.DELETE.{step.target_address.stream}", {"seq": mark})
    except ServerRefusedError:
        live = await work.read(step.target_address)
        if live is None or int(live.state.get("last_seq") or 0) < mark:
            raise


async def _wait_until_filled(
    work: StepContext, step: Step, origin: LiveObject, *, mirrors: bool
) -> None:
    """Wait until the stream has everything; raises StepFailed when nothing comes any more."""
    wanted, before, since, pause = (
        _expected_counts(require_record(work, step), origin, step),
        None,
        time.monotonic(),
        0.02,
    )
    while True:
        require_not_stopped(work)
        live = await work.read(step.target_address)
        state: Config = live.state if live is not None else {}
        last, count = int(state.get("last_seq") or 0), int(state.get("messages") or 0)
        if (last >= wanted["last_seq"]) if mirrors else (count >= wanted["messages"]):
            return
        if (last, count) != before:
            before, since = (last, count), time.monotonic()
        elif time.monotonic() - since > STALL_TIMEOUT:
            text = f"{step.target_address} has got {count:,} messages up to sequence {last:,} and nothing more for {STALL_TIMEOUT:.0f}s"
            raise StepFailed(
                f"{text}; the old one was not deleted"
                if not params(step)["into_new"]
                else f"{text}; they are in {origin.address}"
            )
        await asyncio.sleep(pause)
        pause = min(0.5, pause * 1.5)


def _expected_counts(record: dict[str, Any], origin: LiveObject, step: Step) -> dict[str, int]:
    """What the origin had: of a work queue that is being consumed by the copy, what was written down before."""
    state = (
        record.get("quiesced_state", {})
        if not params(step)["into_new"] and params(step)["may_shrink"]
        else origin.state
    )
    return {
        "messages": int(state.get("messages") or 0),
        "last_seq": int(origin.state.get("last_seq") or 0),
    }
