"""The new stream: its consumers where they stood, its subjects and limits, and the end of what stood in for it."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from jsplan.address import Address
from jsplan.applying.preserve.journal import (
    ReplacementRecord,
    delete_end_marker,
    delete_stream,
    params,
    require_not_stopped,
    require_ours,
    require_record,
    update_record,
    wait_until_ready,
)
from jsplan.applying.preserve.old_stream import PAUSED_UNTIL
from jsplan.applying.preserve.probe import delete_probe
from jsplan.applying.replicated_streams import resume_positions_by_scan, with_resume_positions
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.verify_write import describe_unkept, unkept_fields
from jsplan.documents.plan import Step
from jsplan.errors import ServerRefusedError
from jsplan.facts.consumer_start import find_first_delivered
from jsplan.facts.interest import filters_of
from jsplan.facts.live import LiveObject
from jsplan.planning.decide import table_of
from jsplan.planning.pauses import PAUSE, is_expired
from jsplan.planning.preserve.consumer_position import (
    PAUSE_LEVEL,
    choose_position_method,
    position_of,
    with_start_sequence,
)
from jsplan.planning.preserve.staging import probe_address
from jsplan.planning.replication.impact import ORIGIN_IDENTITY_LEVEL
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key

#: What CONSUMER.RESET answers where it cannot: another deliver_policy, or a sequence before the start.
RESET_REFUSED = 10204
#: How often, 50 ms apart, a consumer is looked at that was let go.
MAX_POLLS: Final = 200


async def restore_consumers(work: StepContext, step: Step) -> None:
    """Bring back every consumer that did not come with its stream, and let all of them go on."""
    require_not_stopped(work)
    record, wanted = require_record(work, step), params(step)["consumers"]
    stream = await work.read(step.target_address)
    if stream is None:
        raise StepFailed(
            f"{step.target_address} is gone: somebody else deleted it at the same moment"
        )
    for name, before in sorted(record.get("consumers", {}).items()):
        said = wanted.get(name, {"config": before["config"]})
        if said is None:
            continue
        await _restore_consumer(work, step, _RestoredConsumer(name, before, said, stream, record))
    await update_record(work, step, phase="consumers_resumed")


class _RestoredConsumer:
    """One consumer that comes back: what it was, what it shall be, and to which stream."""

    def __init__(
        self, name: str, before: Config, said: Config, stream: LiveObject, record: ReplacementRecord
    ) -> None:
        self.name = name
        self.before = before
        self.wanted = said
        self.stream = stream
        self.record = record
        self.address = Address(stream.address.domain, "consumer", f"{stream.address.stream}/{name}")
        self.old = LiveObject(self.address, before["config"], before["created"], before["state"])
        self.starts: dict[str, int] = {}

    def is_half_made(self, live: LiveObject) -> bool:
        """Whether an apply made it, died, and may not have taken it to its place: it is paused until it stands there."""
        return (
            self.record["method"] == "mirror"
            and live.created != self.before["created"]
            and live.raw.get(PAUSE) == PAUSED_UNTIL
        )

    @property
    def start_fields(self) -> dict[str, Any]:
        """Where it was made to go on, if not where the files say; of a consumer that came with its stream as it was recorded."""
        return {"starts": self.starts} if self.starts else {}

    @property
    def api_suffix(self) -> str:
        """The rest of an API subject about it."""
        return f"{self.address.stream}.{self.name}"


async def _restore_consumer(work: StepContext, step: Step, consumer: _RestoredConsumer) -> None:
    live = await wait_until_ready(work, consumer.address)
    if live is not None and consumer.is_half_made(live):
        await work.send(step, f"CONSUMER.DELETE.{consumer.api_suffix}")
        live = None
    if live is None:
        await _recreate_consumer(work, step, consumer)
    until = consumer.wanted["config"].get(PAUSE)
    until = None if is_expired(until, datetime.now(UTC)) else until
    if int(params(step)["api_level"]) >= PAUSE_LEVEL:
        await work.send(
            step, f"CONSUMER.PAUSE.{consumer.api_suffix}", {PAUSE: until} if until else None
        )
    live = await _wait_until_resumed(work, consumer.address)
    if live is None:
        raise StepFailed(
            f"{consumer.address} is gone again: somebody else deleted it at the same moment"
        )
    work.new_fingerprints[consumer.old.fingerprint] = live.fingerprint
    if consumer.wanted.get("record") is not None:
        own = replace(
            step,
            address=consumer.wanted["address"],
            record=consumer.wanted["record"] | consumer.start_fields,
            object=None,
        )
        await work.save_entry(own, live)


async def _wait_until_resumed(work: StepContext, address: Address) -> LiveObject | None:
    """The consumer once it is not held any more: a cluster answers before all of it knows."""
    for _ in range(MAX_POLLS):
        live = await work.read(address)
        if live is None or live.raw.get(PAUSE) != PAUSED_UNTIL:
            return live
        await asyncio.sleep(0.05)
    raise StepFailed(f"{address} is still paused; the next plan goes on from there")


async def _recreate_consumer(work: StepContext, step: Step, consumer: _RestoredConsumer) -> None:
    """Make it where it stood: reset to there where servers can, else beginning there."""
    level, first = int(params(step)["api_level"]), int(consumer.stream.state.get("first_seq") or 0)
    position = await _find_position(work, step, consumer)
    config = {name: value for name, value in consumer.wanted["config"].items() if name != PAUSE}
    retention = consumer.stream.compact.get("retention", "limits")
    compact = table_of(consumer.address).compact(config)
    way = choose_position_method(position, compact, level, retention=retention, first_seq=first)
    if retention == "workqueue":
        await _purge_finished(work, step, consumer, position)
    if way == "start":
        config, consumer.starts = with_start_sequence(position, config), {consumer.name: position}
    held = {PAUSE: PAUSED_UNTIL} if level >= PAUSE_LEVEL else {}
    await _create_consumer(work, step, consumer, config | held)
    if way != "reset":
        return
    try:
        await work.send(step, f"CONSUMER.RESET.{consumer.api_suffix}", {"seq": position})
    except ServerRefusedError as error:
        if error.err_code != RESET_REFUSED:
            raise
        await work.send(step, f"CONSUMER.DELETE.{consumer.api_suffix}")
        consumer.starts = {consumer.name: position}
        await _create_consumer(work, step, consumer, with_start_sequence(position, config) | held)


async def _create_consumer(
    work: StepContext, step: Step, consumer: _RestoredConsumer, config: Config
) -> None:
    config = {name: value for name, value in config.items() if name != "metadata"} | _own_metadata(
        config
    )
    payload = {"stream_name": consumer.address.stream, "config": config, "action": "create"}
    await work.send(step, f"CONSUMER.CREATE.{consumer.api_suffix}", payload)


def _own_metadata(config: Config) -> Config:
    ours = {
        key: value
        for key, value in (config.get("metadata") or {}).items()
        if not key.startswith("_nats.")
    }
    return {"metadata": ours} if ours else {}


async def _purge_finished(
    work: StepContext, step: Step, consumer: _RestoredConsumer, position: int
) -> None:
    """In a work queue what is there is unfinished, so what the consumer has finished cannot stay."""
    if (
        consumer.record["old"]["config"].get("retention") or "limits"
    ) == "workqueue" or position <= 1:
        return
    filters = consumer.old.raw.get("filter_subjects") or [
        consumer.old.raw.get("filter_subject") or ""
    ]
    for subject in filters:
        payload = {"seq": position} | ({"filter": subject} if subject else {})
        await work.send(step, f"STREAM.PURGE.{consumer.address.stream}", payload)


async def _find_position(work: StepContext, step: Step, consumer: _RestoredConsumer) -> int:
    """The first sequence of the new stream that it has not finished; counted back where nobody knows where it began."""
    position = position_of(consumer.old.compact, consumer.before["state"])
    if position is not None:
        return await _to_new_sequence(work, step, consumer, position)
    given = consumer.before["state"]["delivered"]
    upto = await _to_new_sequence(work, step, consumer, int(given["stream_seq"]) + 1) - 1
    filters = filters_of(consumer.old.compact)
    return await find_first_delivered(
        work.api(step), consumer.stream, filters, upto=upto, count=int(given["consumer_seq"])
    )


async def _to_new_sequence(
    work: StepContext, step: Step, consumer: _RestoredConsumer, position: int
) -> int:
    if consumer.record["method"] != "source":
        return position
    return await _search_new_sequence(
        work, step, consumer.stream, Address.parse(consumer.record["staging"]), position
    )


async def _search_new_sequence(
    work: StepContext, step: Step, stream: LiveObject, staging: Address, position: int
) -> int:
    """The new sequence of the first message whose old one is not before `position`.

    Each message of the stand-in says in `Nats-Stream-Source` which sequence it had, and both streams are numbered alike.
    """
    held = await work.read(staging)
    low, high = 1, int((held.state if held is not None else stream.state).get("last_seq") or 0) + 1
    while low < high:
        middle = (low + high) // 2
        if await _old_sequence(work, step, staging, middle) < position:
            low = middle + 1
        else:
            high = middle
    return low


async def _old_sequence(work: StepContext, step: Step, staging: Address, seq: int) -> int:
    message = (await work.api(step).request(f"STREAM.MSG.GET.{staging.stream}", {"seq": seq}))[
        "message"
    ]
    for line in base64.b64decode(message.get("hdrs", "")).decode("utf-8", "replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name == "Nats-Stream-Source":
            return int(value.split()[1])
    raise StepFailed(
        f"{staging} has a message that does not say where it comes from; nothing was written"
    )


async def activate(work: StepContext, step: Step) -> None:
    """The stream's own configuration: its subjects, its limits, its retention. Then it is recorded as it is."""
    before, record = await work.check_precondition(step), require_record(work, step)
    require_not_stopped(work)
    assert step.request is not None
    if starts := await _read_source_starts(work, step):
        step = with_resume_positions(step, starts)
    assert step.request is not None
    if before is not None and before.created == record["old"]["created"]:
        await delete_end_marker(work, step, record, step.target_address)
    await work.send(step, step.request["api"], step.request["payload"])
    live = await work.read(step.target_address)
    if live is None:
        raise StepFailed(
            f"{step.target_address} is gone: somebody else deleted it at the same moment"
        )
    work.note_result(step, live)
    lost = unkept_fields(step, live)
    await work.save_entry(step, live, lost)
    if lost:
        raise StepFailed(
            f"{step.target_address}: the server did not keep {describe_unkept(step, live, lost)}"
        )
    await update_record(work, step, phase="activated")


async def _read_source_starts(work: StepContext, step: Step) -> dict[str, int]:
    """The starts of sources whose origin was made anew once: what was copied of it before has the mark of another one.

    Without them nats-server 2.15 would copy all of those again (measured).
    """
    assert step.request is not None
    entry = work.state.resources.get(Address.parse(params(step)["state_address"]))
    known = (
        entry.starts
        if entry is not None and int(params(step)["api_level"]) >= ORIGIN_IDENTITY_LEVEL
        else {}
    )
    sources = [s for s in step.request["payload"].get("sources") or () if origin_key(s) in known]
    found = await resume_positions_by_scan(work, step, sources)
    return {key: max(found.get(key, 0), known[key]) for key in map(origin_key, sources)}


async def delete_staging(work: StepContext, step: Step) -> None:
    """Delete the stand-in, a probe that an earlier apply left, and the record with them."""
    require_not_stopped(work)
    record = work.state.replacements.get(params(step)["state_address"])
    if record is None:
        return
    found = await work.read(step.target_address)
    if found is not None:
        require_ours(found, record)
        assert step.request is not None
        await delete_stream(work, step, step.request["api"])
    await delete_probe(work, step, probe_address(step.target_address), record)
    await work.record({"replaced": params(step)["state_address"], "end": step.address})
