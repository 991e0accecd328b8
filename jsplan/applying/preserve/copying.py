"""Fills a stream with the messages of another one in the same domain, in the three ways that servers have.

Made to be done again: what an earlier attempt left is taken up where that loses nothing, and otherwise made anew.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from jsplan.address import Address
from jsplan.applying.preserve.journal import delete_stream, go_on, may_write, note, params, ready, record_of, require_ours
from jsplan.applying.work import WRITE_TIMEOUT, StepFailed, Work
from jsplan.documents.plan import Step
from jsplan.errors import ApiError, ServerRefusedError
from jsplan.facts.live import LiveObject
from jsplan.jetstream import snapshots
from jsplan.jetstream.api import NO_MESSAGE
from jsplan.planning.preserve.standins import MARK
from jsplan.resources.fields import Config

#: Seconds without a single message more after which a copy is given up.
STALLED: Final = 60.0
#: Seconds for a server to finish what a restore that was killed has left of the name.
TURN: Final = 20.0


async def copy(work: Work, step: Step) -> None:
    """Make the step's stream with the messages of another one, and wait until it has them all."""
    go_on(work)
    record, source = record_of(work, step), Address.parse(params(step)["from"])
    assert step.request is not None
    found = await work.read(step.touches)
    if found is not None:
        if found.created == record["old"]["created"]:
            raise StepFailed(f"the old {step.touches} is still there; nothing was written")
        require_ours(found, record)
        if params(step)["into_new"]:  # an earlier attempt, or one for other files; the stand-in has everything
            await delete_stream(work, step, f"STREAM.DELETE.{step.touches.stream}")
            found = None
    origin = await work.read(source)
    if origin is None:
        raise StepFailed(f"{source} is gone: somebody else deleted it; {step.touches} was not filled")
    way = params(step)["method"]
    if way == "snapshot":
        await _by_archive(work, step, source, found)
    else:
        await _by_server(work, step, origin, found)
    live = await ready(work, step.touches)
    if live is None:
        raise StepFailed(f"{step.touches} is gone again: somebody else deleted it at the same moment")
    work.prints[step.id] = live.fingerprint
    done = {"phase": "refilled", "new_created": live.created} if params(step)["into_new"] else {"phase": "copied"}
    await note(work, step, **done)


# --- archives --------------------------------------------------------------------------------------------------


async def _by_archive(work: Work, step: Step, source: Address, found: LiveObject | None) -> None:
    """A snapshot that goes straight into a restore. An earlier attempt may have left half of a stream: it goes first."""
    assert step.request is not None
    config, api, end = step.request["payload"], work.api(step), time.monotonic() + TURN
    while True:
        if found is not None:
            require_ours(found, record_of(work, step))
            await delete_stream(work, step, f"STREAM.DELETE.{step.touches.stream}")
        may_write(work, WRITE_TIMEOUT)
        try:
            async with snapshots.snapshot(api, source.stream, consumers=params(step)["consumers"]) as taken:
                await snapshots.restore(api, config, taken.state, taken.chunks, on_progress=lambda _: may_write(work, WRITE_TIMEOUT))
            return
        except ApiError as error:
            if not _passes(error) or time.monotonic() > end:
                raise
        await asyncio.sleep(0.25)
        go_on(work)
        found = await work.read(step.touches)


def _passes(error: ApiError) -> bool:
    """Whether it is only too early: a restore that was killed still has the name, or a cluster has just made the consumers."""
    if isinstance(error, ServerRefusedError):
        return error.err_code in snapshots.NAME_IN_USE
    return "failed to get consumer state" in str(error)


# --- mirrors and sources ---------------------------------------------------------------------------------------


async def _by_server(work: Work, step: Step, origin: LiveObject, found: LiveObject | None) -> None:
    """A mirror or a source of the other stream, cut off once it has everything.

    A stand-in that is there already is not deleted: copying a work queue consumes it, so it may be the only copy.
    """
    assert step.request is not None
    config, mirrors = step.request["payload"], params(step)["method"] == "mirror"
    if mirrors:
        await _mark_end(work, step, origin)
        origin = await work.read(origin.address) or origin
    copying = {"mirror": {"name": origin.address.stream}} if mirrors else {"sources": [{"name": origin.address.stream}]}
    if found is None:
        payload = {name: value for name, value in config.items() if name != "subjects"} | copying
        await work.send(step, f"STREAM.CREATE.{step.touches.stream}", payload)
    if found is None or found.raw.get("mirror") or found.raw.get("sources"):
        await _filled(work, step, origin, mirrors=mirrors)
        await work.send(step, f"STREAM.UPDATE.{step.touches.stream}", config)
    if params(step)["into_new"] and (mark := record_of(work, step).get("end_marker")):
        await _unmark(work, step, mark)


async def _mark_end(work: Work, step: Step, origin: LiveObject) -> None:
    """A mirror ends with its origin's last message, so where that was deleted a message of ours makes the sequences equal."""
    last, record = int(origin.state.get("last_seq") or 0), record_of(work, step)
    if params(step)["into_new"] or last >= record.get("end_marker", last + 1) or not origin.state.get("messages"):
        return
    try:
        await work.api(step).request(f"STREAM.MSG.GET.{origin.address.stream}", {"seq": last})
        return
    except ServerRefusedError as error:
        if error.err_code != NO_MESSAGE:
            raise
    await note(work, step, end_marker=last + 1)
    may_write(work, WRITE_TIMEOUT)
    headers = {"Nats-Incr": "+0"} if origin.raw.get("allow_msg_counter") else None
    subject = origin.raw["subjects"][0]
    try:
        work.api(step).parse(subject, await work.api(step).link.request(subject, MARK, WRITE_TIMEOUT, headers=headers))
    except ServerRefusedError as error:
        raise StepFailed(f"{origin.address} does not take the message that marks its end: {error.description}") from None


async def _unmark(work: Work, step: Step, mark: int) -> None:
    try:
        await work.send(step, f"STREAM.MSG.DELETE.{step.touches.stream}", {"seq": mark})
    except ServerRefusedError:
        live = await work.read(step.touches)
        if live is None or int(live.state.get("last_seq") or 0) < mark:
            raise


async def _filled(work: Work, step: Step, origin: LiveObject, *, mirrors: bool) -> None:
    """Wait until the stream has everything; raises StepFailed when nothing comes any more."""
    wanted, before, since, pause = _expected(record_of(work, step), origin, step), None, time.monotonic(), 0.02
    while True:
        go_on(work)
        live = await work.read(step.touches)
        state: Config = live.state if live is not None else {}
        last, count = int(state.get("last_seq") or 0), int(state.get("messages") or 0)
        if (last >= wanted["last_seq"]) if mirrors else (count >= wanted["messages"]):
            return
        if (last, count) != before:
            before, since = (last, count), time.monotonic()
        elif time.monotonic() - since > STALLED:
            text = f"{step.touches} has got {count:,} messages up to sequence {last:,} and nothing more for {STALLED:.0f}s"
            raise StepFailed(
                f"{text}; the old one was not deleted" if not params(step)["into_new"] else f"{text}; they are in {origin.address}"
            )
        await asyncio.sleep(pause)
        pause = min(0.5, pause * 1.5)


def _expected(record: dict[str, Any], origin: LiveObject, step: Step) -> dict[str, int]:
    """What the origin had: of a work queue that is being consumed by the copy, what was written down before."""
    state = record.get("quiesced_state", {}) if not params(step)["into_new"] and params(step)["may_shrink"] else origin.state
    return {"messages": int(state.get("messages") or 0), "last_seq": int(origin.state.get("last_seq") or 0)}
