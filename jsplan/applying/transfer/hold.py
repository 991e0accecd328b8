"""Consumers that are held while their stream moves: paused, with their positions in state."""

from __future__ import annotations

from typing import Any

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Address
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.transfer.record import TransferRecord, require_record, update_record
from jsplan.documents.plan import Step
from jsplan.facts.reader import parse_consumer
from jsplan.planning.pauses import PAUSE
from jsplan.planning.transfer.pause_marker import PAUSED_UNTIL


async def pause_consumers(context: StepContext, step: Step) -> None:
    """Pause every consumer of the stream, after its configuration is recorded; record positions."""
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
    context: StepContext, step: Step, record: TransferRecord
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
