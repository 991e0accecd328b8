"""What cannot be copied gets back what it had: a replacement that fails while the old stream has everything is undone at once.

Otherwise publishers would wait for whoever looks at the error. What cannot be undone now stays on record for the next plan.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from jsplan.address import Address
from jsplan.applying.preserve.journal import ReplacementRecord, delete_end_marker, params
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.documents.plan import Step
from jsplan.errors import OFFLINE_ERRORS, ApiError, JsplanError, ServerRefusedError
from jsplan.facts.live import LiveObject
from jsplan.jetstream.api import CONSUMER_NOT_FOUND
from jsplan.planning.pauses import PAUSE, is_expired
from jsplan.planning.preserve.consumer_position import PAUSE_LEVEL
from jsplan.planning.preserve.staging import belongs_to_replacement, is_quiesced, probe_address

Operation = Callable[[StepContext, Step], Awaitable[None]]
ROLLED_BACK: Final = "the old stream has its subjects back, and nothing of it is lost"
UNTOUCHED: Final = "the stream was not touched"


def with_rollback(operation: Operation) -> Operation:
    """The operation, undone with all that came before it where it fails and nothing of the old stream is gone."""

    async def tried(work: StepContext, step: Step) -> None:
        try:
            await operation(work, step)
        except OFFLINE_ERRORS:
            raise
        except (StepFailed, ApiError) as error:
            undone = None
            if getattr(error, "status", "failed") != "unknown" and not params(step).get("into_new"):
                undone = await _roll_back(work, step)
            if undone is None:
                raise
            raise StepFailed(f"{error}; {undone}") from None

    return tried


async def _roll_back(work: StepContext, step: Step) -> str | None:
    """Let the old stream be as it was, with nothing beside it; None where that cannot be. A stream that was not stopped is not written."""
    record, address = (
        work.state.replacements.get(params(step)["state_address"]),
        Address.parse(step.address),
    )
    if record is None or "staging" not in record:
        return None
    try:
        old = await _read_complete_old_stream(work, address, record)
        was_stopped = old is not None and is_quiesced(address, old, record["id"])
        if old is None or (was_stopped and record["old"]["config"].get("mirror")):
            return None
        if was_stopped:
            await _restore_old_stream(work, step, address, record)
        for extra in (
            Address.parse(record["staging"]),
            probe_address(Address.parse(record["staging"])),
        ):
            found = await work.read(extra)
            if found is not None and belongs_to_replacement(found.raw, record["id"]):
                await work.send(step, f"STREAM.DELETE.{extra.stream}")
        await work.record({"replaced": params(step)["state_address"]})
    except JsplanError:
        return None
    return ROLLED_BACK if was_stopped else UNTOUCHED


async def _restore_old_stream(
    work: StepContext, step: Step, address: Address, record: ReplacementRecord
) -> None:
    await delete_end_marker(work, step, record, address)
    await work.send(step, f"STREAM.UPDATE.{address.stream}", record["old"]["config"])
    for name, consumer in record.get("consumers", {}).items():
        until = consumer["config"].get(PAUSE)
        payload = None if is_expired(until, datetime.now(UTC)) else {PAUSE: until}
        if int(params(step)["api_level"]) >= PAUSE_LEVEL:
            await _resume_consumer(work, step, f"{address.stream}.{name}", payload)


async def _resume_consumer(
    work: StepContext, step: Step, consumer: str, payload: dict[str, str] | None
) -> None:
    try:
        await work.send(step, f"CONSUMER.PAUSE.{consumer}", payload)
    except ServerRefusedError as error:
        if error.err_code != CONSUMER_NOT_FOUND:
            raise


async def _read_complete_old_stream(
    work: StepContext, address: Address, record: ReplacementRecord
) -> LiveObject | None:
    """The old stream, if it is there and has everything: a copy of a work queue may have taken messages out of it."""
    now = await work.read(address)
    if now is None or now.created != record["old"]["created"]:
        return None
    stand_in = await work.read(Address.parse(record["staging"]))
    consumed = now.raw.get("retention") == "workqueue" and record["method"] != "snapshot"
    return None if consumed and stand_in is not None and stand_in.state.get("messages") else now
