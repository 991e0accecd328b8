"""The old stream: quiesce it, pause its consumers, and delete it after the copy."""

from __future__ import annotations

from typing import Any

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Address
from jsplan.applying.preconditions import consumer_difference
from jsplan.applying.preserve.journal import (
    ReplacementRecord,
    require_not_stopped,
    require_record,
    update_record,
)
from jsplan.applying.replicated_streams import reported_positions
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.verify_write import describe_unkept, unkept_fields
from jsplan.documents.plan import Step
from jsplan.facts.reader import parse_consumer
from jsplan.planning.pauses import PAUSE
from jsplan.planning.preserve.pause_marker import PAUSED_UNTIL


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


async def pause_consumers(context: StepContext, step: Step) -> None:
    """Pause every consumer of the stream, after its configuration is recorded; record positions."""
    require_not_stopped(context)
    record = require_record(context, step)
    consumers = await read_positions(context, step, record)
    await update_record(context, step, consumers=consumers)
    for name in consumers:
        await context.send(
            step, f"CONSUMER.PAUSE.{step.target_address.stream}.{name}", {PAUSE: PAUSED_UNTIL}
        )
    old = await context.read(step.target_address)
    if old is None:
        raise StepFailed(
            f"{step.target_address} is gone: another client deleted it during the apply"
        )
    await update_record(
        context,
        step,
        consumers=await read_positions(context, step, require_record(context, step)),
        quiesced_state=old.state,
        phase="consumers_paused",
    )


async def read_positions(
    context: StepContext, step: Step, record: ReplacementRecord
) -> dict[str, Any]:
    """Read configuration (before the pause) and position of every consumer of the stream."""
    stream, known = step.target_address, record.get("consumers", {})
    consumers, seen = dict[str, Any](), list[dict[str, Any]]()
    for info in await context.api(step).all_consumers(stream.stream):
        name = str(info["name"])
        if name.startswith(INTERNAL_CONSUMER_PREFIXES):
            continue
        live = parse_consumer(Address(stream.domain, "consumer", f"{stream.stream}/{name}"), info)
        config = (
            known[name]["config"]
            if name in known and live.raw.get(PAUSE) == PAUSED_UNTIL
            else live.raw
        )
        consumers[name] = {"config": config, "created": live.created, "state": live.state}
        seen += context.seen_lines(step, live)
    await context.record(*seen, durable=False)
    return consumers


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
