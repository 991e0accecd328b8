"""Consumers of a stream that is replaced or relocated: created at their positions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.transfer.record import (
    TransferRecord,
    params,
    require_record,
    update_record,
    wait_until_ready,
)
from jsplan.applying.transfer.wake import resume_consumers
from jsplan.documents.plan import Step
from jsplan.errors import ServerRefusedError
from jsplan.facts.consumer_position import position_of
from jsplan.facts.consumer_start import find_first_delivered
from jsplan.facts.live import LiveObject
from jsplan.planning.decide import table_of
from jsplan.planning.pauses import PAUSE, is_expired
from jsplan.planning.transfer.consumer_position import (
    choose_position_method,
    with_start_sequence,
)
from jsplan.planning.transfer.pause_marker import PAUSED_UNTIL
from jsplan.resources.consumer import filters_of
from jsplan.resources.error_codes import RESET_REFUSED
from jsplan.resources.fields import Config


async def restore_consumers(context: StepContext, step: Step) -> None:
    """Recreate every consumer that was not copied with its stream, and resume all of them."""
    record, wanted = require_record(context, step), params(step)["consumers"]
    stream = await context.read(step.target_address)
    if stream is None:
        raise StepFailed(
            f"{step.target_address} is gone: another client deleted it during the apply"
        )
    consumers = [
        RestoredConsumer(name, before, target, stream, record)
        for name, before in sorted(record.get("consumers", {}).items())
        if (target := wanted.get(name, {"config": before["config"]})) is not None
    ]
    await _purge_finished(context, step, stream, consumers)
    await restore_each(context, step, consumers)
    await update_record(context, step, phase="consumers_resumed")


class RestoredConsumer:
    """A consumer to restore: its state before, its target, and its stream.

    `is_relocated`: state records it before it is resumed, since its old one still exists.
    """

    def __init__(
        self,
        name: str,
        before: Config,
        wanted: Config,
        stream: LiveObject,
        record: TransferRecord,
        *,
        is_relocated: bool = False,
    ) -> None:
        self.is_relocated = is_relocated
        self.name = name
        self.before = before
        self.wanted = wanted
        self.stream = stream
        self.record = record
        self.address = Address(stream.address.domain, "consumer", f"{stream.address.stream}/{name}")
        self.old = LiveObject(self.address, before["config"], before["created"], before["state"])
        self.starts: dict[str, int] = {}

    def is_half_made(self, live: LiveObject) -> bool:
        """Return True if an interrupted apply created it: it is paused, maybe not reset."""
        return (
            not self.record.get("with_consumers")
            and live.created != self.before["created"]
            and live.raw.get(PAUSE) == PAUSED_UNTIL
        )

    @property
    def start_fields(self) -> dict[str, Any]:
        """The recorded start, if it is not that of the files."""
        return {"starts": self.starts} if self.starts else {}

    @property
    def pause(self) -> str | None:
        """The pause of its own (RFC 3339), unless that has passed."""
        until: str | None = self.wanted["config"].get(PAUSE)
        return None if is_expired(until, datetime.now(UTC)) else until

    @property
    def api_suffix(self) -> str:
        """The last part of API subjects about it."""
        return f"{self.address.stream}.{self.name}"


async def restore_each(
    context: StepContext, step: Step, consumers: Sequence[RestoredConsumer]
) -> None:
    """Create missing consumers at their positions, resume all, and record them in state.

    `step` may be another one than that of the consumers. Raises StepFailed and ApiError.
    """
    for consumer in consumers:
        await _create_missing(context, step, consumer)
    pauses = {consumer.address: consumer.pause for consumer in consumers}
    await resume_consumers(context, step, pauses)
    for consumer in consumers:
        live = await context.read(consumer.address)
        if live is None:
            raise StepFailed(
                f"{consumer.address} is gone again: another client deleted it during the apply"
            )
        context.new_fingerprints[consumer.old.fingerprint] = live.fingerprint
        await _save_consumer(context, step, consumer, live)


async def _create_missing(context: StepContext, step: Step, consumer: RestoredConsumer) -> None:
    live = await wait_until_ready(context, consumer.address)
    if live is not None and consumer.is_half_made(live):
        await context.send(step, f"CONSUMER.DELETE.{consumer.api_suffix}")
        live = None
    if live is not None:
        return
    await _recreate_consumer(context, step, consumer)
    if consumer.is_relocated and (live := await context.read(consumer.address)) is not None:
        # It may deliver messages from here on, and must not be created again.
        await _save_consumer(context, step, consumer, live)


async def _save_consumer(
    context: StepContext, step: Step, consumer: RestoredConsumer, live: LiveObject
) -> None:
    if consumer.wanted.get("record") is None:
        return
    own = replace(
        step,
        address=consumer.wanted["address"],
        record=consumer.wanted["record"] | consumer.start_fields,
        object=None,
    )
    await context.save_entry(own, live)


async def _recreate_consumer(context: StepContext, step: Step, consumer: RestoredConsumer) -> None:
    """Create a consumer at its position: with a reset where servers can, else as its start."""
    level, first = int(params(step)["api_level"]), int(consumer.stream.state.get("first_seq") or 0)
    position = await find_position(context, step, consumer)
    config = {name: value for name, value in consumer.wanted["config"].items() if name != PAUSE}
    retention = consumer.stream.compact.get("retention", "limits")
    compact = table_of(consumer.address).compact(config)
    method = choose_position_method(position, compact, level, retention=retention, first_seq=first)
    if method == "start":
        config, consumer.starts = with_start_sequence(position, config), {consumer.name: position}
    pause = {PAUSE: PAUSED_UNTIL}
    await create_consumer(context, step, consumer, config | pause)
    if method != "reset":
        return
    try:
        await context.send(step, f"CONSUMER.RESET.{consumer.api_suffix}", {"seq": position})
    except ServerRefusedError as error:
        if error.err_code != RESET_REFUSED:
            raise
        await context.send(step, f"CONSUMER.DELETE.{consumer.api_suffix}")
        consumer.starts = {consumer.name: position}
        await create_consumer(
            context, step, consumer, with_start_sequence(position, config) | pause
        )


async def create_consumer(
    context: StepContext, step: Step, consumer: RestoredConsumer, config: Config
) -> None:
    """Create a consumer with this configuration. Raises what `StepContext.send` raises."""
    config = {name: value for name, value in config.items() if name != "metadata"} | _own_metadata(
        config
    )
    payload = {"stream_name": consumer.address.stream, "config": config, "action": "create"}
    await context.send(step, f"CONSUMER.CREATE.{consumer.api_suffix}", payload)


def _own_metadata(config: Config) -> Config:
    ours = {
        key: value
        for key, value in (config.get("metadata") or {}).items()
        if not key.startswith("_nats.")
    }
    return {"metadata": ours} if ours else {}


async def _purge_finished(
    context: StepContext, step: Step, stream: LiveObject, consumers: list[RestoredConsumer]
) -> None:
    """Purge what consumers have finished: a work queue only holds unfinished messages.

    That is before the first of them is created. Up to nats-server 2.14 a consumer with several
    filters skips messages when one of its filters is purged (measured).
    """
    old = require_record(context, step)["old"]["config"].get("retention") or "limits"
    if stream.compact.get("retention") != "workqueue" or old == "workqueue":
        return
    names = {consumer.name for consumer in consumers}
    present = await context.api(step).all_consumers(stream.address.stream)
    if any(info["name"] in names for info in present):  # an interrupted apply has purged
        return
    positions = [(c, await find_position(context, step, c)) for c in consumers]
    for consumer, position in positions:
        for subject in filters_of(consumer.old.raw) or ("",) if position > 1 else ():
            payload = {"seq": position} | ({"filter": subject} if subject else {})
            await context.send(step, f"STREAM.PURGE.{stream.address.stream}", payload)


async def find_position(context: StepContext, step: Step, consumer: RestoredConsumer) -> int:
    """Return the first unfinished sequence in the new stream; count back where it is unknown."""
    level = int(params(step)["api_level"])
    position = position_of(consumer.old.compact, consumer.before["state"], level)
    if position is not None:
        return position
    delivered = consumer.before["state"]["delivered"]
    return await find_first_delivered(
        context.api(step),
        consumer.stream,
        filters_of(consumer.old.compact),
        upto=int(delivered["stream_seq"]),
        count=int(delivered["consumer_seq"]),
    )
