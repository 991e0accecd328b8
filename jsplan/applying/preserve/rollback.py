"""Rollback of a replacement that fails while the old stream has all messages.

Without it, publishers would wait until a user reads the error. What cannot be rolled back now stays
recorded for the next plan.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from jsplan.address import Address
from jsplan.applying.preserve.journal import ReplacementRecord, delete_end_marker, params
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.transfer.wake import resume_consumers
from jsplan.documents.plan import Step
from jsplan.errors import OFFLINE_ERRORS, ApiError, JsplanError
from jsplan.facts.live import LiveObject
from jsplan.planning.pauses import PAUSE, is_expired
from jsplan.planning.preserve.staging import belongs_to_replacement, is_quiesced, probe_address

Operation = Callable[[StepContext, Step], Awaitable[None]]
ROLLED_BACK: Final = "the old stream has its subjects back, and nothing of it is lost"
UNTOUCHED: Final = "the stream was not touched"


def with_rollback(operation: Operation) -> Operation:
    """Wrap the operation: roll the replacement back if it fails and the old stream is complete."""

    async def run_or_roll_back(context: StepContext, step: Step) -> None:
        try:
            await operation(context, step)
        except OFFLINE_ERRORS:
            raise
        except (StepFailed, ApiError) as error:
            outcome = None
            if getattr(error, "status", "failed") != "unknown" and not params(step).get("into_new"):
                outcome = await _roll_back(context, step)
            if outcome is None:
                raise
            raise StepFailed(f"{error}; {outcome}") from None

    return run_or_roll_back


async def _roll_back(context: StepContext, step: Step) -> str | None:
    """Restore the old stream and delete what was added. Returns None where that is impossible.

    A stream that was not quiesced is not written.
    """
    record = context.state.replacements.get(params(step)["state_address"])
    address = Address.parse(step.address)
    if record is None or "staging" not in record:
        return None
    try:
        old = await _read_complete_old_stream(context, address, record)
        was_quiesced = old is not None and is_quiesced(address, old, record["id"])
        if old is None or (was_quiesced and record["old"]["config"].get("mirror")):
            return None
        if was_quiesced:
            await _restore_old_stream(context, step, address, record)
        for extra in (
            Address.parse(record["staging"]),
            probe_address(Address.parse(record["staging"])),
        ):
            found = await context.read(extra)
            if found is not None and belongs_to_replacement(found.raw, record["id"]):
                await context.send(step, f"STREAM.DELETE.{extra.stream}")
        await context.record({"replaced": params(step)["state_address"]})
    except JsplanError:
        return None
    return ROLLED_BACK if was_quiesced else UNTOUCHED


async def _restore_old_stream(
    context: StepContext, step: Step, address: Address, record: ReplacementRecord
) -> None:
    await delete_end_marker(context, step, record, address)
    await context.send(step, f"STREAM.UPDATE.{address.stream}", record["old"]["config"])
    pauses = dict[Address, str | None]()
    for name, consumer in record.get("consumers", {}).items():
        own = consumer["config"].get(PAUSE)
        held = Address(address.domain, "consumer", f"{address.stream}/{name}")
        pauses[held] = None if is_expired(own, datetime.now(UTC)) else own
    await resume_consumers(context, step, pauses)


async def _read_complete_old_stream(
    context: StepContext, address: Address, record: ReplacementRecord
) -> LiveObject | None:
    """Read the old stream; None if it is gone, or a copy of a work queue consumed messages."""
    now = await context.read(address)
    if now is None or now.created != record["old"]["created"]:
        return None
    staged = await context.read(Address.parse(record["staging"]))
    consumed = now.raw.get("retention") == "workqueue" and record["method"] != "snapshot"
    return None if consumed and staged is not None and staged.state.get("messages") else now
