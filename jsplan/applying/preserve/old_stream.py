"""The old stream: stopping it, holding its consumers, and deleting it once its messages are elsewhere."""

from __future__ import annotations

from typing import Any, Final

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Address
from jsplan.applying.preconditions import consumer_difference
from jsplan.applying.preserve.journal import (
    ReplacementRecord,
    delete_stream,
    params,
    require_not_stopped,
    require_record,
    update_record,
)
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.verify_write import describe_unkept, unkept_fields
from jsplan.documents.plan import Step
from jsplan.facts.reader import parse_consumer
from jsplan.planning.pauses import PAUSE
from jsplan.planning.preserve.consumer_position import PAUSE_LEVEL

#: Until when consumers are paused that wait for their stream: nobody means that instant.
PAUSED_UNTIL: Final = "2249-12-31T23:59:59.987654321Z"


async def quiesce(work: StepContext, step: Step) -> None:
    """Take its subjects, its origins and its age from the stream; the probe has put the replacement on record."""
    live = await work.check_precondition(step)
    if (why := await consumer_difference(step, work.api(step))) is not None:
        raise StepFailed(f"{step.target_address} {why}, since it was planned; nothing was written")
    require_not_stopped(work)
    require_record(work, step)
    await update_record(work, step, phase="started")
    if step.request is not None:
        await work.send(step, step.request["api"], step.request["payload"])
        live = await work.read(step.target_address)
        if live is None:
            raise StepFailed(
                f"{step.target_address} is gone: somebody else deleted it at the same moment"
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
                f"{step.target_address}: the server did not keep {describe_unkept(expected, live, lost)}"
            )
    if live is not None:
        work.fingerprints[step.id] = live.fingerprint
    await update_record(work, step, phase="quiesced")


async def pause_consumers(work: StepContext, step: Step) -> None:
    """Pause every consumer of the stream, after its configuration is on record, and write down where each stands."""
    require_not_stopped(work)
    record = require_record(work, step)
    consumers = await read_positions(work, step, record)
    await update_record(work, step, consumers=consumers)
    if int(params(step)["api_level"]) >= PAUSE_LEVEL:
        for name in consumers:
            await work.send(
                step, f"CONSUMER.PAUSE.{step.target_address.stream}.{name}", {PAUSE: PAUSED_UNTIL}
            )
    old = await work.read(step.target_address)
    if old is None:
        raise StepFailed(
            f"{step.target_address} is gone: somebody else deleted it at the same moment"
        )
    await update_record(
        work,
        step,
        consumers=await read_positions(work, step, require_record(work, step)),
        quiesced_state=old.state,
        phase="consumers_paused",
    )


async def read_positions(
    work: StepContext, step: Step, record: ReplacementRecord
) -> dict[str, Any]:
    """Every consumer that the stream has now, by name: its configuration as it was before it was held, and where it stands."""
    stream, known, found, seen = (
        step.target_address,
        record.get("consumers", {}),
        dict[str, Any](),
        list[dict[str, Any]](),
    )
    for info in await work.api(step).consumers(stream.stream):
        name = str(info["name"])
        if name.startswith(INTERNAL_CONSUMER_PREFIXES):
            continue
        live = parse_consumer(Address(stream.domain, "consumer", f"{stream.stream}/{name}"), info)
        config = (
            known[name]["config"]
            if name in known and live.raw.get(PAUSE) == PAUSED_UNTIL
            else live.raw
        )
        found[name] = {"config": config, "created": live.created, "state": live.state}
        seen += work.seen_lines(step, live)
    await work.record(*seen, durable=False)
    return found


async def delete_old(work: StepContext, step: Step) -> None:
    """Delete the old stream. From here on what the stand-in and the record have is all there is."""
    live = await work.check_precondition(step)
    require_not_stopped(work)
    record = require_record(work, step)
    if live is None or live.created != record["old"]["created"]:
        raise StepFailed(
            f"{step.target_address} was made anew by somebody else; nothing was written"
        )
    if record.get("phase") != "compared":
        raise StepFailed(f"the copy of {step.target_address} was not compared; nothing was deleted")
    await update_record(work, step, consumers=await read_positions(work, step, record))
    assert step.request is not None
    await delete_stream(work, step, step.request["api"])
    await update_record(work, step, phase="old_deleted")
