"""The old stream: stopping it, holding its consumers, and deleting it once its messages are elsewhere."""

from __future__ import annotations

from typing import Any, Final

from jsplan.address import OWN_CONSUMERS, Address
from jsplan.applying.preconditions import other_consumers
from jsplan.applying.preserve.journal import Record, delete_stream, go_on, note, params, record_of
from jsplan.applying.readback import describe, not_kept
from jsplan.applying.work import StepFailed, Work
from jsplan.documents.plan import Step
from jsplan.facts.survey import consumer_of
from jsplan.planning.pauses import PAUSE
from jsplan.planning.preserve.positions import PAUSES

#: Until when consumers are paused that wait for their stream: nobody means that instant.
HELD: Final = "2249-12-31T23:59:59.987654321Z"


async def stop(work: Work, step: Step) -> None:
    """Take its subjects, its origins and its age from the stream; the probe has put the replacement on record."""
    live = await work.check(step)
    if (why := await other_consumers(step, work.api(step))) is not None:
        raise StepFailed(f"{step.touches} {why}, since it was planned; nothing was written")
    go_on(work)
    record_of(work, step)
    await note(work, step, phase="started")
    if step.request is not None:
        await work.send(step, step.request["api"], step.request["payload"])
        live = await work.read(step.touches)
        if live is None:
            raise StepFailed(f"{step.touches} is gone: somebody else deleted it at the same moment")
        expected = Step(step.id, step.address, step.op, step.title, None, {}, expect={"subjects": step.request["payload"]["subjects"]})
        if lost := not_kept(expected, live):
            raise StepFailed(f"{step.touches}: the server did not keep {describe(expected, live, lost)}")
    if live is not None:
        work.prints[step.id] = live.fingerprint
    await note(work, step, phase="quiesced")


async def hold(work: Work, step: Step) -> None:
    """Pause every consumer of the stream, after its configuration is on record, and write down where each stands."""
    go_on(work)
    record = record_of(work, step)
    consumers = await positions(work, step, record)
    await note(work, step, consumers=consumers)
    if int(params(step)["api_level"]) >= PAUSES:
        for name in consumers:
            await work.send(step, f"CONSUMER.PAUSE.{step.touches.stream}.{name}", {PAUSE: HELD})
    old = await work.read(step.touches)
    if old is None:
        raise StepFailed(f"{step.touches} is gone: somebody else deleted it at the same moment")
    await note(work, step, consumers=await positions(work, step, record_of(work, step)), quiesced_state=old.state, phase="consumers_paused")


async def positions(work: Work, step: Step, record: Record) -> dict[str, Any]:
    """Every consumer that the stream has now, by name: its configuration as it was before it was held, and where it stands."""
    stream, known, found, seen = step.touches, record.get("consumers", {}), dict[str, Any](), list[dict[str, Any]]()
    for info in await work.api(step).consumers(stream.stream):
        name = str(info["name"])
        if name.startswith(OWN_CONSUMERS):
            continue
        live = consumer_of(Address(stream.domain, "consumer", f"{stream.stream}/{name}"), info)
        config = known[name]["config"] if name in known and live.raw.get(PAUSE) == HELD else live.raw
        found[name] = {"config": config, "created": live.created, "state": live.state}
        seen += work.seen(step, live)
    await work.record(*seen, durable=False)
    return found


async def retire(work: Work, step: Step) -> None:
    """Delete the old stream. From here on what the stand-in and the record have is all there is."""
    live = await work.check(step)
    go_on(work)
    record = record_of(work, step)
    if live is None or live.created != record["old"]["created"]:
        raise StepFailed(f"{step.touches} was made anew by somebody else; nothing was written")
    if record.get("phase") != "compared":
        raise StepFailed(f"the copy of {step.touches} was not compared; nothing was deleted")
    await note(work, step, consumers=await positions(work, step, record))
    assert step.request is not None
    await delete_stream(work, step, step.request["api"])
    await note(work, step, phase="old_deleted")
