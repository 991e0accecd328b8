"""The new stream: its consumers where they stood, its subjects and limits, and the end of what stood in for it."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from jsplan.address import Address
from jsplan.applying.downstream import long_ago, told_where
from jsplan.applying.preserve.journal import Record, delete_stream, go_on, note, params, ready, record_of, require_ours, take_mark_out
from jsplan.applying.preserve.probing import remove
from jsplan.applying.preserve.stopping import HELD
from jsplan.applying.readback import describe, not_kept
from jsplan.applying.work import StepFailed, Work
from jsplan.documents.plan import Step
from jsplan.errors import ServerRefusedError
from jsplan.facts.begun import first_given
from jsplan.facts.interest import filters_of
from jsplan.facts.live import LiveObject
from jsplan.planning.downstream import KNOWS_ORIGINS
from jsplan.planning.pauses import PAUSE, is_over
from jsplan.planning.preserve.positions import PAUSES, position_of, starting_at, way_to
from jsplan.planning.preserve.standins import probe_of
from jsplan.planning.verdict import table_of
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key

#: What CONSUMER.RESET answers where it cannot: another deliver_policy, or a sequence before the start.
NOT_TO_BE_RESET = 10204
#: How often, 50 ms apart, a consumer is looked at that was let go.
LOOKS: Final = 200


async def resume(work: Work, step: Step) -> None:
    """Bring back every consumer that did not come with its stream, and let all of them go on."""
    go_on(work)
    record, wanted = record_of(work, step), params(step)["consumers"]
    stream = await work.read(step.touches)
    if stream is None:
        raise StepFailed(f"{step.touches} is gone: somebody else deleted it at the same moment")
    for name, before in sorted(record.get("consumers", {}).items()):
        said = wanted.get(name, {"config": before["config"]})
        if said is None:
            continue
        await _bring_back(work, step, _Coming(name, before, said, stream, record))
    await note(work, step, phase="consumers_resumed")


class _Coming:
    """One consumer that comes back: what it was, what it shall be, and to which stream."""

    def __init__(self, name: str, before: Config, said: Config, stream: LiveObject, record: Record) -> None:
        self.name = name
        self.before = before
        self.said = said
        self.stream = stream
        self.record = record
        self.address = Address(stream.address.domain, "consumer", f"{stream.address.stream}/{name}")
        self.old = LiveObject(self.address, before["config"], before["created"], before["state"])
        self.starts: dict[str, int] = {}

    def half_made(self, live: LiveObject) -> bool:
        """Whether an apply made it, died, and may not have taken it to its place: it is paused until it stands there."""
        return self.record["method"] == "mirror" and live.created != self.before["created"] and live.raw.get(PAUSE) == HELD

    @property
    def where(self) -> dict[str, Any]:
        """Where it was made to go on, if not where the files say; of a consumer that came with its stream as it was recorded."""
        return {"starts": self.starts} if self.starts else {}

    @property
    def verb(self) -> str:
        """The rest of an API subject about it."""
        return f"{self.address.stream}.{self.name}"


async def _bring_back(work: Work, step: Step, coming: _Coming) -> None:
    live = await ready(work, coming.address)
    if live is not None and coming.half_made(live):
        await work.send(step, f"CONSUMER.DELETE.{coming.verb}")
        live = None
    if live is None:
        await _make(work, step, coming)
    until = coming.said["config"].get(PAUSE)
    until = None if is_over(until, datetime.now(UTC)) else until
    if int(params(step)["api_level"]) >= PAUSES:
        await work.send(step, f"CONSUMER.PAUSE.{coming.verb}", {PAUSE: until} if until else None)
    live = await _let_go(work, coming.address)
    if live is None:
        raise StepFailed(f"{coming.address} is gone again: somebody else deleted it at the same moment")
    work.successors[coming.old.fingerprint] = live.fingerprint
    if coming.said.get("record") is not None:
        own = replace(step, address=coming.said["address"], record=coming.said["record"] | coming.where, object=None)
        await work.remember(own, live)


async def _let_go(work: Work, address: Address) -> LiveObject | None:
    """The consumer once it is not held any more: a cluster answers before all of it knows."""
    for _ in range(LOOKS):
        live = await work.read(address)
        if live is None or live.raw.get(PAUSE) != HELD:
            return live
        await asyncio.sleep(0.05)
    raise StepFailed(f"{address} is still paused; the next plan goes on from there")


async def _make(work: Work, step: Step, coming: _Coming) -> None:
    """Make it where it stood: reset to there where servers can, else beginning there."""
    level, first = int(params(step)["api_level"]), int(coming.stream.state.get("first_seq") or 0)
    position = await _position(work, step, coming)
    config = {name: value for name, value in coming.said["config"].items() if name != PAUSE}
    retention = coming.stream.compact.get("retention", "limits")
    compact = table_of(coming.address).compact(config)
    way = way_to(position, compact, level, retention=retention, first_seq=first)
    if retention == "workqueue":
        await _drop_finished(work, step, coming, position)
    if way == "start":
        config, coming.starts = starting_at(position, config), {coming.name: position}
    held = {PAUSE: HELD} if level >= PAUSES else {}
    await _create(work, step, coming, config | held)
    if way != "reset":
        return
    try:
        await work.send(step, f"CONSUMER.RESET.{coming.verb}", {"seq": position})
    except ServerRefusedError as error:
        if error.err_code != NOT_TO_BE_RESET:
            raise
        await work.send(step, f"CONSUMER.DELETE.{coming.verb}")
        coming.starts = {coming.name: position}
        await _create(work, step, coming, starting_at(position, config) | held)


async def _create(work: Work, step: Step, coming: _Coming, config: Config) -> None:
    config = {name: value for name, value in config.items() if name != "metadata"} | _own_metadata(config)
    payload = {"stream_name": coming.address.stream, "config": config, "action": "create"}
    await work.send(step, f"CONSUMER.CREATE.{coming.verb}", payload)


def _own_metadata(config: Config) -> Config:
    ours = {key: value for key, value in (config.get("metadata") or {}).items() if not key.startswith("_nats.")}
    return {"metadata": ours} if ours else {}


async def _drop_finished(work: Work, step: Step, coming: _Coming, position: int) -> None:
    """In a work queue what is there is unfinished, so what the consumer has finished cannot stay."""
    if (coming.record["old"]["config"].get("retention") or "limits") == "workqueue" or position <= 1:
        return
    filters = coming.old.raw.get("filter_subjects") or [coming.old.raw.get("filter_subject") or ""]
    for subject in filters:
        payload = {"seq": position} | ({"filter": subject} if subject else {})
        await work.send(step, f"STREAM.PURGE.{coming.address.stream}", payload)


async def _position(work: Work, step: Step, coming: _Coming) -> int:
    """The first sequence of the new stream that it has not finished; counted back where nobody knows where it began."""
    position = position_of(coming.old.compact, coming.before["state"])
    if position is not None:
        return await _in_new_numbers(work, step, coming, position)
    given = coming.before["state"]["delivered"]
    upto = await _in_new_numbers(work, step, coming, int(given["stream_seq"]) + 1) - 1
    filters = filters_of(coming.old.compact)
    return await first_given(work.api(step), coming.stream, filters, upto=upto, count=int(given["consumer_seq"]))


async def _in_new_numbers(work: Work, step: Step, coming: _Coming, position: int) -> int:
    if coming.record["method"] != "source":
        return position
    return await _renumbered(work, step, coming.stream, Address.parse(coming.record["staging"]), position)


async def _renumbered(work: Work, step: Step, stream: LiveObject, stand_in: Address, position: int) -> int:
    """The new sequence of the first message whose old one is not before `position`.

    Each message of the stand-in says in `Nats-Stream-Source` which sequence it had, and both streams are numbered alike.
    """
    held = await work.read(stand_in)
    low, high = 1, int((held.state if held is not None else stream.state).get("last_seq") or 0) + 1
    while low < high:
        middle = (low + high) // 2
        if await _old_sequence(work, step, stand_in, middle) < position:
            low = middle + 1
        else:
            high = middle
    return low


async def _old_sequence(work: Work, step: Step, stand_in: Address, seq: int) -> int:
    message = (await work.api(step).request(f"STREAM.MSG.GET.{stand_in.stream}", {"seq": seq}))["message"]
    for line in base64.b64decode(message.get("hdrs", "")).decode("utf-8", "replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name == "Nats-Stream-Source":
            return int(value.split()[1])
    raise StepFailed(f"{stand_in} has a message that does not say where it comes from; nothing was written")


async def give_back(work: Work, step: Step) -> None:
    """The stream's own configuration: its subjects, its limits, its retention. Then it is recorded as it is."""
    before, record = await work.check(step), record_of(work, step)
    go_on(work)
    assert step.request is not None
    if starts := await _where_sources_go_on(work, step):
        step = told_where(step, starts)
    assert step.request is not None
    if before is not None and before.created == record["old"]["created"]:
        await take_mark_out(work, step, record, step.touches)
    await work.send(step, step.request["api"], step.request["payload"])
    live = await work.read(step.touches)
    if live is None:
        raise StepFailed(f"{step.touches} is gone: somebody else deleted it at the same moment")
    work.left(step, live)
    lost = not_kept(step, live)
    await work.remember(step, live, lost)
    if lost:
        raise StepFailed(f"{step.touches}: the server did not keep {describe(step, live, lost)}")
    await note(work, step, phase="activated")


async def _where_sources_go_on(work: Work, step: Step) -> dict[str, int]:
    """The starts of sources whose origin was made anew once: what was copied of it before has the mark of another one.

    Without them nats-server 2.15 would copy all of those again (measured).
    """
    assert step.request is not None
    entry = work.state.resources.get(Address.parse(params(step)["state_address"]))
    known = entry.starts if entry is not None and int(params(step)["api_level"]) >= KNOWS_ORIGINS else {}
    sources = [s for s in step.request["payload"].get("sources") or () if origin_key(s) in known]
    found = await long_ago(work, step, sources)
    return {key: max(found.get(key, 0), known[key]) for key in map(origin_key, sources)}


async def clear(work: Work, step: Step) -> None:
    """Delete the stand-in, a probe that an earlier apply left, and the record with them."""
    go_on(work)
    record = work.state.replacements.get(params(step)["state_address"])
    if record is None:
        return
    found = await work.read(step.touches)
    if found is not None:
        require_ours(found, record)
        assert step.request is not None
        await delete_stream(work, step, step.request["api"])
    await remove(work, step, probe_of(step.touches), record)
    await work.record({"replaced": params(step)["state_address"], "end": step.address})
