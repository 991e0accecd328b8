"""The copy of one hop: by a mirror that becomes a stream of its own, or by a snapshot.

The server keeps sequences, times and headers in a mirror, also after it is promoted (2.12 and
later, measured). A mirror ends with the last stored message of its origin. Where later ones were
deleted, the end of the copy is moved: no client reads the copy yet.

A copy can be repeated: a mirror continues. A restore is repeated from its begin, since what a
killed one left may lack messages.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from jsplan.applying.step_context import WRITE_TIMEOUT, StepContext, StepFailed
from jsplan.applying.transfer.record import (
    ProgressWatch,
    TransferRecord,
    at,
    delete_message,
    hop_of,
    is_drained,
    is_relocation,
    is_second,
    is_staging,
    params,
    read_copy,
    read_origin,
    record_start,
    require_complete,
    require_lock,
    require_not_stopped,
    require_ours,
    require_record,
    update_record,
    wait_until_created,
)
from jsplan.documents.plan import Step
from jsplan.documents.state_parts import is_before
from jsplan.facts.live import LiveObject
from jsplan.facts.messages import list_deleted
from jsplan.jetstream import snapshots
from jsplan.jetstream.snapshots import repeat_restore
from jsplan.planning.transfer.configs import accepts_nothing, belongs_to_replacement
from jsplan.planning.transfer.copies import MAX_EXTRA
from jsplan.units import SECOND, count_text

#: Seconds without a new message after which a copy is abandoned: while publishers write, and
#: while they wait.
STALL_TIMEOUT: Final = 60.0
CUTOVER_STALL_TIMEOUT: Final = 5.0
#: The same where an earlier apply has quiesced the origin: its mirror may connect again meanwhile.
RESUMED_STALL_TIMEOUT: Final = 30.0
#: Seconds after its creation for which a mirror of this apply counts as connected.
CONNECTED_SECONDS: Final = 5.0
#: The most deleted messages behind the last stored one of an origin: the copy stores and purges as
#: many, and how many it stores at once.
MAX_DELETED_END: Final = 200_000
END_BATCH: Final = 1_000
#: Deleted messages that are listed to find the last stored one. With more, messages are read, which
#: takes longer and fails over a link for one that is nearly as large as `max_payload`.
MAX_LISTED: Final = 1_000


async def open_mirror(context: StepContext, step: Step) -> None:
    """Create the copy as a mirror of the origin, and wait until it has nearly all messages."""
    await context.check_precondition(step)
    require_not_stopped(context)
    await record_start(context, step)
    record = require_record(context, step)
    found = await context.read(hop_of(step).copy)
    origin = await read_origin(context, step, record)
    if found is not None:
        if record.get("promotes") and found.raw.get("mirror"):
            found = await _take_over(context, step, record, found)
        require_ours(found, record)
        require_complete(origin, found)
        if not found.raw.get("mirror") and not _has_all(origin, found, record):
            # An earlier attempt was rolled back after it was promoted: it lacks newer messages.
            await context.send_if_exists(step, f"STREAM.DELETE.{found.address.stream}")
            found = None
    if found is None:
        assert step.request is not None
        await update_record(context, step, phase="started", compared=0)
        await context.send(step, step.request["api"], step.request["payload"])
        context.mirrored_at[hop_of(step).copy] = time.monotonic()
        found = await wait_until_created(context, hop_of(step).copy)
    record = await update_record(context, step, phase="mirrored", **_identity(found))
    await _wait_until_caught_up(context, step, record)


async def _take_over(
    context: StepContext, step: Step, record: TransferRecord, mirror: LiveObject
) -> LiveObject:
    """Mark a mirror that exists already as the copy of this transfer. Its fields stay."""
    assert step.request is not None
    if belongs_to_replacement(mirror.raw, record["id"]):
        return mirror
    ours = step.request["payload"]["metadata"]
    metadata = {"metadata": (mirror.raw.get("metadata") or {}) | ours}
    name = mirror.address.stream
    await context.send(at(step, mirror.address), f"STREAM.UPDATE.{name}", mirror.raw | metadata)
    return await wait_until_created(context, mirror.address)


def _has_all(origin: LiveObject, copy: LiveObject, record: TransferRecord) -> bool:
    """Check whether a promoted copy is complete, since its origin is still quiesced."""
    ends = {int(side.state.get("last_seq") or 0) for side in (origin, copy)}
    return len(ends) == 1 and accepts_nothing(origin.address, origin, record["id"])


def _identity(copy: LiveObject) -> dict[str, Any]:
    """Return what the record says of the target. A staging stream is known by its id."""
    if is_staging(copy.address):
        return {}
    return {"target_created": copy.created, "made_seen": copy.answered_at}


async def _wait_until_caught_up(context: StepContext, step: Step, record: TransferRecord) -> None:
    """Wait until the mirror has what the origin had a moment before. It may receive more."""
    watch, pause = ProgressWatch(STALL_TIMEOUT), 0.02
    while True:
        require_not_stopped(context)
        origin = await read_origin(context, step, record)
        copy = await read_copy(context, step, record)
        last = int(copy.state.get("last_seq") or 0)
        if last >= (stored := await last_stored(context, step, origin)):
            require_end_movable(origin, stored)
            return
        if watch.has_stalled(last):
            raise StepFailed(
                f"{copy.address} has messages up to sequence {last:,} of {origin.address}, and "
                f"none arrived for {STALL_TIMEOUT:.0f}s{_hint(copy)}. {_outlook(origin, record)}"
            )
        await asyncio.sleep(pause)
        pause = min(0.5, pause * 1.5)


def _hint(copy: LiveObject) -> str:
    """Return what to check where a mirror reads another account."""
    external = (copy.raw.get("mirror") or {}).get("external") or {}
    return ". Check exports and imports: jsplan access --check" if external.get("deliver") else ""


def _outlook(origin: LiveObject, record: TransferRecord) -> str:
    """Say that nothing happened to the origin, and that the copy of a relocation stays."""
    text = f"{origin.address} was not touched"
    return f"{text}. The next apply continues" if is_relocation(record) else text


async def wait_until_connected(context: StepContext, step: Step, record: TransferRecord) -> None:
    """Wait until the mirror hears from its origin, before publishers have to wait for it.

    A server sends a heartbeat to a mirror every second. A mirror whose connection was lost tries
    again after 10 s or more (measured on 2.15).
    """
    since, pause = time.monotonic(), 0.02
    created = context.mirrored_at.get(hop_of(step).copy)
    if created is not None and since - created < CONNECTED_SECONDS:
        return
    while True:
        require_not_stopped(context)
        copy, waited = await read_copy(context, step, record), time.monotonic() - since
        if not copy.raw.get("mirror"):
            return
        heard = next((int(flow.get("active") or 0) for flow in copy.flows), -1)
        if 0 <= heard < waited * SECOND:
            return
        if waited > STALL_TIMEOUT:
            origin = await read_origin(context, step, record)
            raise StepFailed(
                f"{copy.address} does not hear from {origin.address} for {STALL_TIMEOUT:.0f}s. "
                f"{_outlook(origin, record)}"
            )
        await asyncio.sleep(pause)
        pause = min(0.2, pause * 1.5)


# --- the end of a copy ---------------------------------------------------------------------------


async def last_stored(context: StepContext, step: Step, stream: LiveObject) -> int:
    """Return the sequence of the last message that the stream has; 0 if it has none."""
    last = int(stream.state.get("last_seq") or 0)
    if not stream.state.get("messages") or not stream.state.get("num_deleted"):
        return last if stream.state.get("messages") else 0
    api, name = context.api(at(step, stream.address)), stream.address.stream
    if int(stream.state["num_deleted"]) <= MAX_LISTED:
        deleted = set(await list_deleted(api, name))
        return next(seq for seq in range(last, -1, -1) if seq not in deleted)
    if await api.get_message(name, {"seq": last}) is not None:
        return last
    # `last_by_subj` finds nothing where the last message is deleted (measured on 2.15).
    low, high = int(stream.state.get("first_seq") or 0), last
    while low < high:
        middle = (low + high + 1) // 2
        found = await api.get_message(name, {"seq": middle, "next_by_subj": ">"})
        low, high = (int(found["seq"]), high) if found is not None else (low, middle - 1)
    return low


def require_end_movable(origin: LiveObject, stored: int) -> None:
    """Raise StepFailed where too many messages behind the last stored one were deleted."""
    deleted = int(origin.state.get("last_seq") or 0) - stored
    if stored and deleted > MAX_DELETED_END:
        raise StepFailed(
            f"the newest {count_text(deleted, 'message')} of {origin.address} are deleted, too "
            "many for its copy to continue behind them. Publish one message and apply again"
        )


async def _move_end(context: StepContext, step: Step, copy: LiveObject, end: int) -> None:
    """Let the next message of a promoted copy get the sequence after `end`.

    The copy stores as many messages on its own subject, which no client knows, and purges them. An
    empty one is purged up to there (measured on 2.12 to 2.15).
    """
    step, name = at(step, copy.address), copy.address.stream
    if not copy.state.get("messages"):
        await context.send(step, f"STREAM.PURGE.{name}", {"seq": end + 1})
        return
    subject = copy.raw["subjects"][0]
    api = context.api(step)
    missing = end - int(copy.state.get("last_seq") or 0)
    while missing > 0:
        require_lock(context, WRITE_TIMEOUT)
        for _ in range(min(missing, END_BATCH) - 1):
            await api.connection.publish(subject, b"")
        answer = await context.send_message(step, subject, b"")
        missing = end - int(answer["seq"])
    await context.send(step, f"STREAM.PURGE.{name}", {"filter": subject})
    if missing < 0:
        raise StepFailed(f"{copy.address} received messages of another client")


# --- all of it -----------------------------------------------------------------------------------


async def copy_by_mirror(context: StepContext, step: Step) -> None:
    """Wait for the rest of the quiesced origin, and turn the mirror into a stream of its own.

    Without a mirror yet, create it: the origin accepts nothing any more, so this is all of it.
    """
    assert step.request is not None
    record, hop = require_record(context, step), hop_of(step)
    config = step.request["payload"]
    copy = await _remove_older(context, step, record)
    origin = await _require_quiesced(context, step, record)
    if copy is not None:
        require_complete(origin, copy)
    if "end" not in record:
        stored = await last_stored(context, step, origin)
        require_end_movable(origin, stored)
        if is_drained(step, record):
            record = await update_record(context, step, end=stored)
    if copy is None:
        payload = {name: value for name, value in config.items() if name != "subjects"}
        payload["mirror"] = {"name": hop.origin.stream}
        await context.send(step, f"STREAM.CREATE.{hop.copy.stream}", payload)
        copy = await wait_until_created(context, hop.copy)
        record = await update_record(context, step, durable=False, **_identity(copy))
    if copy.raw.get("mirror"):
        origin = await _wait_for_rest(context, step, record)
        await context.send(step, step.request["api"], config)
    copy = await read_copy(context, step, record)
    if copy.raw.get("mirror"):
        raise StepFailed(f"{copy.address} is still a mirror, although the server said otherwise")
    end = int(origin.state.get("last_seq") or 0)
    if int(copy.state.get("last_seq") or 0) < end:
        await _move_end(context, step, copy, end)
        copy = await read_copy(context, step, record)
    # A mirror of the user's keeps what its origin has deleted, and may be its only copy.
    if not record.get("promotes") and not is_drained(step, record):
        await _delete_extra(context, step, origin, copy)
    await _record_copied(context, step, origin)


async def _remove_older(
    context: StepContext, step: Step, record: TransferRecord
) -> LiveObject | None:
    """Return the copy. A new stream of an earlier attempt, maybe for other files, is deleted."""
    copy = await context.read(hop_of(step).copy)
    if copy is None:
        return None
    if not is_second(step, record):
        return await read_copy(context, step, record)
    if copy.created == record["old"]["created"]:
        raise StepFailed(f"the old {copy.address} is still there; nothing was written")
    require_ours(copy, record)
    await context.send_if_exists(step, f"STREAM.DELETE.{copy.address.stream}")
    return None


async def _require_quiesced(context: StepContext, step: Step, record: TransferRecord) -> LiveObject:
    origin = await read_origin(context, step, record)
    if not is_second(step, record) and not accepts_nothing(origin.address, origin, record["id"]):
        raise StepFailed(f"{origin.address} accepts messages; it was not copied")
    return origin


async def _wait_for_rest(context: StepContext, step: Step, record: TransferRecord) -> LiveObject:
    """Wait until the mirror has the last message of its origin, which may store what was queued.

    Returns the origin.
    """
    timeout = _stall_timeout(context, step, record)
    watch, pause = ProgressWatch(timeout), 0.005
    while True:
        copy, origin = await asyncio.gather(
            read_copy(context, step, record), read_origin(context, step, record)
        )
        last = int(copy.state.get("last_seq") or 0)
        wanted = max(await last_stored(context, step, origin), int(record.get("end") or 0))
        if last >= wanted:
            return origin
        if watch.has_stalled(last):
            raise StepFailed(
                f"{copy.address} has messages up to sequence {last:,} of {wanted:,}, and none "
                f"arrived for {timeout:.0f}s"
            )
        await asyncio.sleep(pause)
        pause = min(0.1, pause * 1.5)


def _stall_timeout(context: StepContext, step: Step, record: TransferRecord) -> float:
    """Return for how long no message may arrive (s): short where a mirror has most already."""
    if is_drained(step, record) or is_second(step, record):
        return STALL_TIMEOUT
    own = (other.op for other in context.plan.steps if other.address == step.address)
    begun_here = "transfer.quiesce" in own
    return CUTOVER_STALL_TIMEOUT if begun_here else RESUMED_STALL_TIMEOUT


async def _delete_extra(
    context: StepContext, step: Step, origin: LiveObject, copy: LiveObject
) -> None:
    """Delete from the copy what was deleted from the origin while it was copied."""
    first, copied_first = (int(s.state.get("first_seq") or 0) for s in (origin, copy))
    name, there = copy.address.stream, at(step, copy.address)
    if first > copied_first and copy.state.get("messages"):
        await context.send(there, f"STREAM.PURGE.{name}", {"seq": first})
        copy = await read_copy(context, step, require_record(context, step))
    extra = int(copy.state.get("messages") or 0) - int(origin.state.get("messages") or 0)
    if extra <= 0:
        return
    if extra > MAX_EXTRA:
        text = f"{origin.address} lost {extra:,} messages while it was copied"
        raise StepFailed(f"{text}, which another client deleted")
    theirs, ours = [
        set(await list_deleted(context.api(at(step, side)), side.stream))
        for side in (origin.address, copy.address)
    ]
    first, last = (int(copy.state.get(name) or 0) for name in ("first_seq", "last_seq"))
    for seq in sorted(seq for seq in theirs - ours if first <= seq <= last):
        await delete_message(context, there, seq)


async def copy_by_snapshot(context: StepContext, step: Step) -> None:
    """Restore a snapshot of the quiesced origin as the copy, while it is taken."""
    record, hop = require_record(context, step), hop_of(step)
    origin = await _require_quiesced(context, step, record)
    is_copied = is_relocation(record) and not is_before(record["phase"], "copied")
    if is_copied and await context.read(hop.copy) is not None:
        await read_copy(context, step, record)
        return
    api = context.api(at(step, hop.copy))
    await repeat_restore(api, lambda: _restore_once(context, step, record), name_is_ours=True)
    await _record_copied(context, step, origin)


async def _restore_once(context: StepContext, step: Step, record: TransferRecord) -> None:
    """Delete what an earlier attempt left, and restore the snapshot."""
    hop, can_stop = hop_of(step), not is_second(step, record)

    def check(_: int = 0) -> None:
        if can_stop:
            require_not_stopped(context)
        require_lock(context, WRITE_TIMEOUT)

    check()
    found = await context.read(hop.copy)
    if found is not None:
        if found.created == record["old"]["created"] and not is_relocation(record):
            raise StepFailed(f"the old {hop.copy} is still there; nothing was written")
        require_ours(found, record)
        if can_stop:
            require_complete(await read_origin(context, step, record), found)
        await context.send_if_exists(at(step, hop.copy), f"STREAM.DELETE.{hop.copy.stream}")
    assert step.request is not None
    origin, copy = (context.api(at(step, side)) for side in hop)
    consumers, config = bool(params(step).get("with_consumers")), step.request["payload"]["config"]
    async with snapshots.open_snapshot(origin, hop.origin.stream, consumers=consumers) as taken:
        await snapshots.restore_stream(copy, config, taken.state, taken.chunks, on_progress=check)


async def _record_copied(context: StepContext, step: Step, origin: LiveObject) -> None:
    """Record that the copy has all messages of the quiesced origin, up to its last sequence."""
    copy = await wait_until_created(context, hop_of(step).copy)
    context.fingerprints[step.id] = copy.fingerprint
    record = require_record(context, step)
    last = int(origin.state.get("last_seq") or 0)
    if is_second(step, record):
        with_consumers = bool(params(step).get("with_consumers"))
        changes = {"phase": "refilled", "compared": 0, "with_consumers": with_consumers}
    else:
        changes = {"phase": "copied", "last_seq": last}
    durable = not is_relocation(record)
    await update_record(context, step, durable=durable, **changes, **_identity(copy))
