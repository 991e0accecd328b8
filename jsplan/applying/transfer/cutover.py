"""The cut-over of a transfer: probe, quiesce the origin, activate the target, delete.

From quiesce to activate publishers get no acknowledgement. Whatever fails there gives the origin
its subjects back at once, as long as that has all messages (`undo`).
"""

from __future__ import annotations

import asyncio

from jsplan.address import STAGING_PREFIX, Address
from jsplan.applying.preconditions import consumer_difference
from jsplan.applying.replicated_streams import (
    moved_positions,
    reported_positions,
    resume_positions_by_scan,
    with_resume_positions,
)
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.step_journal import require_kept, unkept_fields
from jsplan.applying.transfer.compare import compare_range
from jsplan.applying.transfer.copy import last_stored, require_end_movable, wait_until_connected
from jsplan.applying.transfer.hold import pause_consumers, read_positions
from jsplan.applying.transfer.record import (
    TransferRecord,
    at,
    delete_message,
    find_record,
    hop_of,
    is_relocation,
    is_workqueue,
    params,
    read_copy,
    read_origin,
    record_start,
    require_complete,
    require_not_stopped,
    require_ours,
    require_record,
    update_record,
    wait_until_created,
)
from jsplan.documents.plan import Step
from jsplan.errors import ServerRefusedError
from jsplan.facts.consumer_position import max_redelivered, position_of
from jsplan.facts.live import LiveObject
from jsplan.planning.transfer.configs import (
    accepts_nothing,
    belongs_to_replacement,
    is_quiesced,
    probe_address,
)
from jsplan.resources import CONSUMER
from jsplan.resources.nested import origin_key
from jsplan.resources.server_features import ORIGIN_IDENTITY_LEVEL
from jsplan.units import count_text


async def probe(context: StepContext, step: Step) -> None:
    """Create the probe like the new stream, give it the final configuration, and delete it.

    A server refuses for reasons that no plan knows: free memory and disk, placement in the cluster,
    rules of a later version. Here a refusal costs nothing. Raises StepFailed.
    """
    address, begun = Address.parse(step.address), params(step)["transfer"]
    old = await context.read(address)
    require_not_stopped(context)
    if old is None or old.created != begun["old"]["created"]:
        raise StepFailed(
            f"{address} was changed by another client since it was planned; nothing was written"
        )
    if (find_record(context, step) or {}).get("id") != begun["id"]:
        await context.record(*context.seen_lines(step, old), durable=False)
    await record_start(context, step)
    assert step.request is not None
    await delete_probe(context, step, step.target_address, begun)
    try:
        await context.send(
            step, f"STREAM.CREATE.{step.target_address.stream}", params(step)["initial_config"]
        )
        await wait_until_created(context, step.target_address)
        await context.send(step, step.request["api"], step.request["payload"])
    except ServerRefusedError as error:
        raise StepFailed(
            f"the server refuses the new configuration of {address}: "
            f"{error.description} ({error.code}/{error.err_code})"
        ) from None
    await delete_probe(context, step, step.target_address, begun)


async def delete_probe(
    context: StepContext, step: Step, address: Address, record: TransferRecord
) -> None:
    """Delete the probe, if there is one."""
    found = await context.read(address)
    if found is not None:
        require_ours(found, record)
        await context.send_if_exists(at(step, address), f"STREAM.DELETE.{address.stream}")


async def quiesce(context: StepContext, step: Step) -> None:
    """Remove subjects, sources and limits from the origin: no message is added or removed.

    The consumers of a stream that is replaced are paused, and their positions recorded. Those of a
    relocated one continue until they move.
    """
    origin = hop_of(step).origin
    await context.check_precondition(step)
    if (why := await consumer_difference(step, context.api(step))) is not None:
        raise StepFailed(f"{origin} {why}, since it was planned; nothing was written")
    require_not_stopped(context)
    await _begin_with_snapshot(context, step)
    record = require_record(context, step)
    live = await read_origin(context, step, record)
    if record["method"] == "mirror":
        await wait_until_connected(context, step, record)
        copy = await read_copy(context, step, record)
        live = await read_origin(context, step, record)
        require_complete(live, copy)
        require_end_movable(live, await last_stored(context, step, live))
    copied = record.get("copied") or await reported_positions(context, step)
    await update_record(context, step, phase="quiesced", copied=copied)
    if step.request is not None:  # not of a sealed stream
        await context.send(step, step.request["api"], step.request["payload"])
        live = await read_origin(context, step, record)
    if not accepts_nothing(origin, live, record["id"]):
        raise StepFailed(f"{origin}: the server did not remove its subjects")
    context.fingerprints[step.id] = live.fingerprint
    if not is_relocation(record):
        await pause_consumers(context, step)
        _require_announced(step, live, require_record(context, step))


def _require_announced(step: Step, stream: LiveObject, record: TransferRecord) -> None:
    """Raise StepFailed where consumers would be given messages again, and the plan said none.

    `leaving` are those that do not come back. The others were quiet when it was made. Where they
    are not, the next plan says how many, or copies by a snapshot, which keeps what they have.
    """
    announced = "DUPLICATES_MESSAGES" in record.get("allowed", {})
    leaving = params(step).get("leaving")
    if announced or leaving is None or is_workqueue(record):
        return
    level = int(params(step)["origin_level"])
    for name, known in record["consumers"].items():
        config, state = CONSUMER.compact(known["config"]), known["state"]
        position = position_of(config, state, level)
        again = max_redelivered(config, state, stream.state, position)
        out = int(state.get("num_ack_pending") or 0)
        if name not in leaving and again + out:
            raise StepFailed(
                f"workers of {name} took messages since it was planned, and "
                f"{count_text(again + out, 'message')} would be delivered again. Plan again"
            )


async def _begin_with_snapshot(context: StepContext, step: Step) -> None:
    """Record a transfer that begins with its cut-over, if the name of the copy is free."""
    begun = params(step).get("transfer")
    if begun is not None and (found := await context.read(hop_of(step).copy)) is not None:
        require_ours(found, begun)
    await record_start(context, step)


async def activate(context: StepContext, step: Step) -> None:
    """Give the target its subjects and limits. From then on it is the stream, and in state."""
    await context.check_precondition(step)
    record = require_record(context, step)
    if is_relocation(record):
        await _require_unchanged(context, step, record)
        await create_placeholder(context, step)
    if starts := await _read_source_starts(context, step):
        step = with_resume_positions(step, starts)
    await update_record(context, step, phase="activating", record=step.record, expect=step.expect)
    assert step.request is not None
    await context.send(step, step.request["api"], step.request["payload"])
    live = await read_copy(context, step, record)
    context.note_result(step, live)
    lost = unkept_fields(step, live)
    await context.save_entry(step, live, lost)
    await update_record(context, step, phase="activated")
    require_kept(step, live, lost)


async def _require_unchanged(context: StepContext, step: Step, record: TransferRecord) -> None:
    """Raise StepFailed unless the copy was compared, and the origin did not change since."""
    if not record.get("compared_from"):
        raise StepFailed(f"{step.target_address} was not compared; it was not activated")
    copy, origin = await asyncio.gather(
        read_copy(context, step, record), read_origin(context, step, record)
    )
    require_ours(copy, record)
    if int(origin.state.get("last_seq") or 0) != record["last_seq"]:
        raise StepFailed(f"{origin.address} received a message although it has no subjects")


async def _read_source_starts(context: StepContext, step: Step) -> dict[str, int]:
    """Return the starts of sources that the messages of the stream do not show.

    Their origin was recreated, so that old messages name another one, or the stream has deleted
    their newest message. Without a start nats-server 2.15 would copy those again (measured).
    """
    assert step.request is not None
    record = require_record(context, step)
    if int(params(step)["api_level"]) < ORIGIN_IDENTITY_LEVEL:
        return {}
    entry = context.state.resources.get(Address.parse(record["origin"]))
    before = entry.starts if entry is not None else {}
    copied: dict[str, int] = record.get("copied", {})
    if is_relocation(record):
        return await moved_positions(context, step, {**before, **copied})
    known = {key: max(before.get(key, 0), copied.get(key, 0)) for key in (*before, *copied)}
    sources = [s for s in step.request["payload"].get("sources") or () if origin_key(s) in known]
    found = await resume_positions_by_scan(context, step, sources)
    return {
        key: max(found.get(key, 0), known[key])
        for key in map(origin_key, sources)
        if key in before or found.get(key, 0) < known[key]
    }


# --- what is deleted -----------------------------------------------------------------------------


async def delete_old(context: StepContext, step: Step) -> None:
    """Delete the old stream. From here on the staging stream and the record have everything."""
    live = await context.check_precondition(step)
    require_not_stopped(context)
    record = require_record(context, step)
    if live is None or live.created != record["old"]["created"]:
        raise StepFailed(
            f"{step.target_address} was recreated by another client; nothing was written"
        )
    if record["phase"] != "compared":
        raise StepFailed(f"the copy of {step.target_address} was not compared; nothing was deleted")
    await update_record(context, step, consumers=await read_positions(context, step, record))
    assert step.request is not None
    await context.send_if_exists(step, step.request["api"])
    await update_record(context, step, phase="old_deleted")


async def delete_staging(context: StepContext, step: Step) -> None:
    """Delete the staging stream, a probe that an earlier apply left, and the record."""
    record = find_record(context, step)
    if record is None:
        return
    if int(record.get("compared") or 0) < int(record.get("last_seq") or 0):
        raise StepFailed(f"{step.address} was not compared; {step.target_address} was not deleted")
    found = await context.read(step.target_address)
    if found is not None:
        require_ours(found, record)
        assert step.request is not None
        await context.send_if_exists(step, step.request["api"])
    await delete_probe(context, step, probe_address(step.target_address), record)
    await context.record({"replaced": params(step)["state_address"], "end": step.address})


async def delete_origin(context: StepContext, step: Step) -> None:
    """Delete the origin, which has been compared and did not change since."""
    live = await context.check_precondition(step)
    require_not_stopped(context)
    record = require_record(context, step)
    target = await read_copy(context, step, record)
    if live is not None:
        quiesced = accepts_nothing(live.address, live, record["id"])
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


async def require_activated(context: StepContext, step: Step, target: LiveObject) -> None:
    """Raise StepFailed unless the target is activated; record it where that is not recorded."""
    record = require_record(context, step)
    ours = belongs_to_replacement(target.raw, record["id"])
    if record["phase"] not in ("activating", "activated") or ours or target.raw.get("mirror"):
        raise StepFailed(f"{target.address} is not activated; nothing was written")
    if record["phase"] == "activating":
        await update_record(context, step, phase="activated")


async def end_without_origin(context: StepContext, step: Step) -> None:
    """End a relocation whose origin another client deleted after the activation."""
    require_not_stopped(context)
    record = require_record(context, step)
    await require_activated(context, step, await read_copy(context, step, record))
    origin = await context.read(hop_of(step).origin)
    if origin is not None and origin.created == record["old"]["created"]:
        raise StepFailed(f"{origin.address} is there again; it was not deleted")
    await delete_placeholder(context, step)
    await context.record({"replaced": params(step)["state_address"]})


# --- the placeholder of an interest stream --------------------------------------------------------


async def create_placeholder(context: StepContext, step: Step) -> None:
    """Create the placeholder consumer, if the step gives the target interest retention.

    It holds every message until the consumers of the target exist. Its name follows from the id.
    """
    assert step.request is not None
    payload = step.request["payload"]
    if payload.get("retention") != "interest":
        return
    # The server refuses the limits that the target gets if an existing consumer is beyond them.
    limits = {name: n for name, n in (payload.get("consumer_limits") or {}).items() if n > 0}
    stream, name = hop_of(step).copy.stream, _placeholder_name(require_record(context, step))
    text = "jsplan: holds the messages of this stream until its consumers have moved here"
    config = {"name": name, "durable_name": name, "ack_policy": "explicit", "description": text}
    request = {"stream_name": stream, "config": config | limits, "action": ""}
    await context.send(step, f"CONSUMER.CREATE.{stream}.{name}", request)


async def delete_placeholder(context: StepContext, step: Step) -> None:
    """Delete the placeholder consumer. The server then deletes what no consumer wants."""
    record, target = require_record(context, step), hop_of(step).copy
    if record["old"]["config"].get("retention") == "interest":
        verb = f"CONSUMER.DELETE.{target.stream}.{_placeholder_name(record)}"
        await context.send_if_exists(at(step, target), verb)


def _placeholder_name(record: TransferRecord) -> str:
    return f"{STAGING_PREFIX}{record['id']}"


# --- what workers finish at the origin ------------------------------------------------------------


async def delete_finished(context: StepContext, step: Step) -> None:
    """Delete from the target what workers have finished at the origin, if that is a work queue.

    A copy of a work queue cannot follow it. So workers continue at the origin until their consumer
    moves. An acknowledgement that the origin has taken thus counts, and only what workers still
    have is delivered again.

    What no consumer had received is not deleted: its absence is a loss of the origin's server, as
    is a lower last sequence. Raises StepFailed where another client changed the origin.
    """
    record = require_record(context, step)
    if not is_workqueue(record):
        return
    origin = await read_origin(context, step, record)
    last, now = int(record["last_seq"]), int(origin.state.get("last_seq") or 0)
    if now > last or not is_quiesced(hop_of(step).origin, origin, record["id"]):
        raise StepFailed(f"{origin.address} was changed by another client; nothing was deleted")
    if now < last:
        return
    last = min(last, await _last_delivered(context, step, record))
    first = int(origin.state.get("first_seq") or 0)
    if origin.state.get("messages") and first > 1:
        await _purge_before(context, step, min(first, last + 1))
    elif not origin.state.get("messages"):
        await _purge_before(context, step, last + 1)
        return
    while first <= last:
        found = await compare_range(context, step, first, last)
        for seq in found.extra:
            await delete_message(context, at(step, hop_of(step).copy), seq)
        if not found.extra.omitted:
            return


async def _last_delivered(context: StepContext, step: Step, record: TransferRecord) -> int:
    """Return the last sequence that consumers of the origin delivered, also deleted ones."""
    origin = hop_of(step).origin
    now = await context.api(at(step, origin)).all_consumers(origin.stream)
    known = [consumer["state"] for consumer in record.get("consumers", {}).values()]
    return max(
        (int((state.get("delivered") or {}).get("stream_seq") or 0) for state in [*known, *now]),
        default=0,
    )


async def _purge_before(context: StepContext, step: Step, seq: int) -> None:
    """Delete what the target has before the first message of the origin."""
    target = hop_of(step).copy
    live = await context.read(target)
    if live is not None and live.state.get("messages") and int(live.state["first_seq"]) < seq:
        await context.send(at(step, target), f"STREAM.PURGE.{target.stream}", {"seq": seq})
