"""The placeholder consumer of a relocated interest stream.

It holds every message from before the target gets interest retention until its consumers exist.
State has it with the relocation: its name follows from the id.
"""

from __future__ import annotations

from jsplan.address import STAGING_PREFIX
from jsplan.applying.step_context import StepContext
from jsplan.applying.transfer.record import TransferRecord, at, hop_of, require_record
from jsplan.documents.plan import Step


async def create_placeholder(context: StepContext, step: Step) -> None:
    """Create the placeholder consumer, if the step gives the target interest retention."""
    assert step.request is not None
    payload = step.request["payload"]
    if payload.get("retention") != "interest":
        return
    # The server refuses the limits that the target gets if an existing consumer is beyond them.
    limits = {name: n for name, n in (payload.get("consumer_limits") or {}).items() if n > 0}
    stream, name = hop_of(step).copy.stream, _name(require_record(context, step))
    text = "jsplan: holds the messages of this stream until its consumers have moved here"
    config = {"name": name, "durable_name": name, "ack_policy": "explicit", "description": text}
    request = {"stream_name": stream, "config": config | limits, "action": ""}
    await context.send(step, f"CONSUMER.CREATE.{stream}.{name}", request)


async def delete_placeholder(context: StepContext, step: Step) -> None:
    """Delete the placeholder consumer. The server then deletes what no consumer wants."""
    record, target = require_record(context, step), hop_of(step).copy
    if record["old"]["config"].get("retention") == "interest":
        verb = f"CONSUMER.DELETE.{target.stream}.{_name(record)}"
        await context.send_if_exists(at(step, target), verb)


def _name(record: TransferRecord) -> str:
    return f"{STAGING_PREFIX}{record['id']}"
