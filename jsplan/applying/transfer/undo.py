"""The ways back of a transfer, while the origin has all messages.

Without them publishers would wait until a user reads the error. What cannot be undone now stays
recorded for the next plan.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.applying.replicated_streams import with_resume_positions
from jsplan.applying.step_context import StepContext, StepFailed, StepNotStarted
from jsplan.applying.step_journal import require_kept, unkept_fields
from jsplan.applying.transfer.hold import release
from jsplan.applying.transfer.record import (
    MessagesLost,
    TransferRecord,
    at,
    delete_copy,
    find_record,
    hop_of,
    is_drained,
    is_relocation,
    params,
    read_copy,
    read_origin,
    require_not_stopped,
    require_record,
    update_record,
)
from jsplan.documents.base import plain
from jsplan.documents.plan import Step
from jsplan.documents.state_parts import is_before
from jsplan.errors import ApiError, JsplanError
from jsplan.facts.live import LiveObject
from jsplan.planning.replication.source_starts import with_start
from jsplan.planning.transfer.configs import accepts_nothing, belongs_to_replacement, probe_address

Operation = Callable[[StepContext, Step], Awaitable[None]]
RESTORED: Final = "the origin has its subjects back"
UNCHANGED: Final = "the origin is unchanged"
UNTOUCHED: Final = "the stream was not touched"


def with_undo(operation: Operation) -> Operation:
    """Wrap a step before the activation: give the origin its subjects back if the step fails."""

    async def run_or_undo(context: StepContext, step: Step) -> None:
        try:
            await operation(context, step)
        except (StepFailed, ApiError, StepNotStarted) as error:
            record = find_record(context, step) or {}
            stopped = isinstance(error, StepNotStarted)
            outcome = await _undo(context, step, record, stopped=stopped) if record else None
            text = str(error) or _lost_domain(context, step)
            now = find_record(context, step) or {}
            if outcome is None and now.get("phase") == "activating" and is_relocation(now):
                may = f"{hop_of(step).copy} may have its subjects already"
                raise StepFailed(f"{text}; {may}. The next apply continues", "unknown") from None
            if outcome is None or (outcome == UNTOUCHED and stopped):
                raise
            is_kept = outcome != UNTOUCHED and not isinstance(error, MessagesLost)
            kept = ", and nothing of it is lost" if is_kept else ""
            raise StepFailed(f"{text}; {outcome}{kept}") from None

    return run_or_undo


def _lost_domain(context: StepContext, step: Step) -> str:
    lost = [key for key in step.required_domains if key in context.lost_domains]
    if not lost:
        return f"{step.title}: interrupted"
    return f"domain {lost[0]} went offline: {context.lost_domains[lost[0]]}"


async def _undo(
    context: StepContext, step: Step, record: TransferRecord, *, stopped: bool
) -> str | None:
    """Give the origin its configuration back. Returns None where there is nothing to restore.

    Not after the call that activates the target was sent: it may have been executed.
    """
    try:
        if not await _can_undo(context, step, record):
            return None
        origin = await read_origin(context, step, record)
        if not accepts_nothing(origin.address, origin, record["id"]):
            return await _end_untouched(context, step, record, stopped=stopped)
        await _restore_origin(context, step, origin, record, record["old"]["config"])
        await _record_sources(context, record, await read_origin(context, step, record))
        if is_relocation(record):
            await update_record(context, step, phase="mirrored", compared_from=0)
            with suppress(JsplanError, StepNotStarted):  # else the next apply deletes it
                await delete_copy(context, step, record, keep_mirror=True)
        else:
            await _end_replacement(context, step, record)
    except (JsplanError, StepNotStarted):
        return None
    return UNCHANGED if origin.raw.get("sealed") else RESTORED


async def _can_undo(context: StepContext, step: Step, record: TransferRecord) -> bool:
    """Check that the origin has everything, and that no client writes to the target."""
    if not is_before(record["phase"], "old_deleted"):
        return record["phase"] == "activating" and await _is_inactive(context, step, record)
    if is_drained(step, record):
        copy = await context.read(hop_of(step).copy)
        return copy is None or not copy.state.get("messages")
    return not (record["old"]["config"].get("mirror") and record["phase"] != "started")


async def _is_inactive(context: StepContext, step: Step, record: TransferRecord) -> bool:
    """Check that the target has no subjects, although the call that sets them was sent."""
    if not is_relocation(record):
        return False
    return belongs_to_replacement((await read_copy(context, step, record)).raw, record["id"])


async def _end_untouched(
    context: StepContext, step: Step, record: TransferRecord, *, stopped: bool
) -> str | None:
    """Forget a transfer that failed before its origin was quiesced, and delete its copy.

    The copy of a relocation stays, which may follow its origin for days, and so does any after
    Ctrl-C (`stopped`): the next apply continues.
    """
    copy = await context.read(hop_of(step).copy)
    ours = copy is not None and belongs_to_replacement(copy.raw, record["id"])
    if ours and (stopped or is_relocation(record)):
        return None
    if is_relocation(record) and not is_before(record["phase"], "consumers_paused"):
        return None
    await _end_replacement(context, step, record)
    return UNTOUCHED


async def _restore_origin(
    context: StepContext,
    step: Step,
    origin: LiveObject,
    record: TransferRecord,
    config: dict[str, Any],
) -> None:
    """Give the origin its configuration back, and its consumers their own pauses.

    Its sources continue behind what they had copied, also where that is deleted. A sealed one was
    not quiesced, and still has its configuration.
    """
    address = origin.address
    if not origin.raw.get("sealed"):
        config = _with_copied(config, record)
        await context.send(at(step, address), f"STREAM.UPDATE.{address.stream}", config)
    if is_relocation(record):  # its consumers are paused one by one, after the activation
        return
    held = {
        Address(address.domain, "consumer", f"{address.stream}/{name}"): consumer
        for name, consumer in record.get("consumers", {}).items()
    }
    await release(context, step, held)


def _with_copied(config: dict[str, Any], record: TransferRecord) -> dict[str, Any]:
    """Return a configuration whose sources continue behind what they had copied."""
    copied = record.get("copied")
    if not copied or not config.get("sources"):
        return config
    return config | {"sources": [with_start(source, copied) for source in config["sources"]]}


async def _record_sources(context: StepContext, record: TransferRecord, live: LiveObject) -> None:
    """Record where the sources of an origin continue that has its configuration back."""
    address, copied = Address.parse(record["origin"]), record.get("copied")
    entry = context.state.resources.get(address)
    if copied and entry is not None and entry.created == live.created:
        entry = replace(entry, config=live.config, starts=entry.starts | copied)
        await context.record({"put": {"address": str(address), "entry": plain(entry)}})


async def _end_replacement(context: StepContext, step: Step, record: TransferRecord) -> None:
    """Delete the staging stream and the probe of a replacement, and the record of the transfer."""
    if not is_relocation(record):
        staging = hop_of(step).copy
        for extra in (staging, probe_address(staging)):
            found = await context.read(extra)
            if found is not None and belongs_to_replacement(found.raw, record["id"]):
                await context.send_if_exists(at(step, extra), f"STREAM.DELETE.{extra.stream}")
    await context.record({"replaced": params(step)["state_address"]})


async def release_origin(context: StepContext, step: Step) -> None:
    """Give the origin its subjects back while the domain of the copy is offline.

    The record stays: the relocation continues later. Raises StepFailed where the copy may have been
    activated.
    """
    await context.check_precondition(step)
    require_not_stopped(context)
    record = require_record(context, step)
    if record["phase"] in ("activating", "activated"):
        raise StepFailed(f"the copy of {step.target_address} may be activated; nothing was written")
    assert step.request is not None
    config = _with_copied(step.request["payload"], record)
    await context.send(step, step.request["api"], config)
    await update_record(context, step, phase="mirrored", compared_from=0)
    live = await context.read(step.target_address)
    wanted = step.request["payload"].get("subjects")
    if live is None or live.raw.get("subjects") != wanted:
        raise StepFailed(f"{step.target_address} does not have its subjects")
    await _record_sources(context, record, live)
    context.note_result(step, live)


async def undo(context: StepContext, step: Step) -> None:
    """Go back: update the origin to the files, delete the copy, and forget the transfer."""
    await context.check_precondition(step)
    require_not_stopped(context)
    record = require_record(context, step)
    if copied := record.get("copied"):
        step = with_resume_positions(step, copied)
    assert step.request is not None
    before = await read_origin(context, step, record)
    await _restore_origin(context, step, before, record, step.request["payload"])
    await delete_copy(context, step, record, keep_mirror=False)
    live = await read_origin(context, step, record)
    lost = unkept_fields(step, live)
    context.note_result(step, live)
    await context.save_entry(step, live, lost)
    await _end_replacement(context, step, record)
    require_kept(step, live, lost)
