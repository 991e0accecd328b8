"""The old stream: quiesce it, and delete it after the copy."""

from __future__ import annotations

from jsplan.applying.preconditions import consumer_difference
from jsplan.applying.preserve.journal import (
    require_not_stopped,
    require_record,
    update_record,
)
from jsplan.applying.replicated_streams import reported_positions
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.transfer.hold import read_positions
from jsplan.applying.verify_write import describe_unkept, unkept_fields
from jsplan.documents.plan import Step


async def quiesce(context: StepContext, step: Step) -> None:
    """Remove subjects, origins and max_age from the stream. The probe recorded the replacement."""
    live = await context.check_precondition(step)
    if (why := await consumer_difference(step, context.api(step))) is not None:
        raise StepFailed(f"{step.target_address} {why}, since it was planned; nothing was written")
    require_not_stopped(context)
    known = require_record(context, step).get("copied") or await reported_positions(context, step)
    await update_record(context, step, phase="started", copied=known)
    if step.request is not None:
        await context.send(step, step.request["api"], step.request["payload"])
        live = await context.read(step.target_address)
        if live is None:
            raise StepFailed(
                f"{step.target_address} is gone: another client deleted it during the apply"
            )
        expected = Step(
            step.id,
            step.address,
            step.op,
            step.title,
            None,
            {},
            expect={"subjects": step.request["payload"]["subjects"]},
        )
        if lost := unkept_fields(expected, live):
            raise StepFailed(
                f"{step.target_address}: the server did not keep "
                f"{describe_unkept(expected, live, lost)}"
            )
    if live is not None:
        context.fingerprints[step.id] = live.fingerprint
    await update_record(context, step, phase="quiesced")


async def delete_old(context: StepContext, step: Step) -> None:
    """Delete the old stream. From here on the staging stream and the record have everything."""
    live = await context.check_precondition(step)
    require_not_stopped(context)
    record = require_record(context, step)
    if live is None or live.created != record["old"]["created"]:
        raise StepFailed(
            f"{step.target_address} was recreated by another client; nothing was written"
        )
    if record.get("phase") != "compared":
        raise StepFailed(f"the copy of {step.target_address} was not compared; nothing was deleted")
    await update_record(context, step, consumers=await read_positions(context, step, record))
    assert step.request is not None
    await context.send_if_exists(step, step.request["api"])
    await update_record(context, step, phase="old_deleted")
