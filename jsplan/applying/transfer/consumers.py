"""Consumers that continue others: each is created at the recorded position of its old one.

The process may die after each request. A new consumer is created held, reset where the server can
do that (2.14), recorded in state, and then resumed. So one that is still held has delivered
nothing, and is created again; one that may have delivered something is in state, and stays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.applying.step_context import StepContext
from jsplan.applying.step_journal import gone_error, require_kept, unkept_fields
from jsplan.applying.transfer.hold import Recorded, own_pause, resume_consumers
from jsplan.applying.transfer.record import (
    TransferRecord,
    params,
    require_record,
    update_record,
    wait_until_ready,
)
from jsplan.documents.plan import Step
from jsplan.errors import ServerRefusedError
from jsplan.facts.consumer_position import position_of
from jsplan.facts.live import LiveObject, get_retention
from jsplan.facts.messages import MessageReader, ReadBudget
from jsplan.jetstream import DomainApi
from jsplan.planning.pauses import PAUSE, PAUSED_UNTIL, is_held
from jsplan.planning.transfer.consumer_position import (
    START_FIELDS,
    choose_position_method,
    with_start_sequence,
    without_start,
)
from jsplan.resources import CONSUMER
from jsplan.resources.consumer import filters_of
from jsplan.resources.error_codes import RESET_REFUSED
from jsplan.resources.fields import Config
from jsplan.subjects import is_subset


class Placement(Struct):
    """A consumer of `stream` that is to continue `old`, with the configuration `config`.

    `own` is a step with its address in state, its record and what it is expected to be; None for
    one that state does not get. Without `keeps_position` it starts as configured. `is_copied`: it
    came with its stream, where it exists.
    """

    address: Address
    old: Recorded
    config: Config
    stream: LiveObject
    own: Step | None = None
    keeps_position: bool = True
    is_copied: bool = False

    @property
    def api_name(self) -> str:
        """The last part of API subjects about it."""
        return f"{self.address.stream}.{self.address.consumer}"

    @property
    def old_fingerprint(self) -> str:
        """The fingerprint that a plan has of the old consumer."""
        old = self.old
        return LiveObject(self.address, old["config"], old["created"], old["state"]).fingerprint


def is_half_made(live: LiveObject, old: Recorded) -> bool:
    """Check for a new consumer of an interrupted apply: held since its creation."""
    return is_held(live.raw) and live.created != old["created"]


async def place_consumers(context: StepContext, step: Step, consumers: Sequence[Placement]) -> None:
    """Create missing consumers at their positions, resume all, and record them in state.

    `step` may be another one than that of the consumers. Raises StepFailed, also where the server
    did not keep what is expected of one, and ApiError.
    """
    made = [each for each in consumers if await _create_missing(context, step, each)]
    lines = list[dict[str, object]]()
    for consumer in made:
        if consumer.own is not None and (live := await context.read(consumer.address)) is not None:
            lines += context.entry_lines(consumer.own, live)
    await context.record(*lines)
    pauses = {consumer.address: own_pause(consumer.config) for consumer in consumers}
    await resume_consumers(context, step, pauses)
    for consumer in consumers:
        await _verify(context, step, consumer)


async def _create_missing(context: StepContext, step: Step, consumer: Placement) -> bool:
    """Create a consumer unless it is there already. Return True if it was created now."""
    live, old = await wait_until_ready(context, consumer.address), consumer.old
    if live is not None:
        if consumer.is_copied or not is_half_made(live, old):
            _keep_start(context, consumer, live)
            return False
        await context.send(step, f"CONSUMER.DELETE.{consumer.api_name}")
    await _create_at_position(context, step, consumer)
    return True


async def _create_at_position(context: StepContext, step: Step, consumer: Placement) -> None:
    """Create a consumer at its position: with a reset where servers can, else as its start."""
    config = {name: value for name, value in consumer.config.items() if name != PAUSE}
    held, method, position = {PAUSE: PAUSED_UNTIL}, "plain", 0
    if consumer.keeps_position:
        stream, level = consumer.stream, int(params(step)["api_level"])
        position = await find_position(context, step, stream, consumer.old)
        retention, first = get_retention(stream.compact), int(stream.state.get("first_seq") or 0)
        compact = CONSUMER.compact(config)
        method = choose_position_method(
            position, compact, level, retention=retention, first_seq=first
        )
        if retention == "workqueue":  # it takes only `all`, also where an earlier apply set a start
            config = without_start(config)
            _record_start(consumer, {}, config)
    if method == "reset":
        await create_consumer(context, step, consumer.address, config | held)
        if await _reset(context, step, consumer, position):
            return
        await context.send(step, f"CONSUMER.DELETE.{consumer.api_name}")
    if method != "plain":
        config = with_start_sequence(position, config)
        _record_start(consumer, {consumer.address.consumer: position}, config)
    await create_consumer(context, step, consumer.address, config | held)


async def _reset(context: StepContext, step: Step, consumer: Placement, position: int) -> bool:
    """Reset a new consumer to a position; return False where its deliver_policy forbids it."""
    try:
        await context.send(step, f"CONSUMER.RESET.{consumer.api_name}", {"seq": position})
    except ServerRefusedError as error:
        if error.err_code != RESET_REFUSED:
            raise
        return False
    return True


def _record_start(consumer: Placement, starts: dict[str, int], config: Config) -> None:
    """Let state and the verification have the start that the consumer gets in place of its own."""
    if consumer.own is None:
        return
    record = (consumer.own.record or {}) | {"starts": starts}
    expect = consumer.own.expect
    if expect is not None:
        expect = expect | {name: config.get(name) for name in START_FIELDS}
    consumer.own = replace(consumer.own, record=record, expect=expect)


def _keep_start(context: StepContext, consumer: Placement, live: LiveObject) -> None:
    """Keep the start that an interrupted apply gave a consumer, and recorded."""
    own = consumer.own
    known = context.state.resources.get(Address.parse(own.address)) if own is not None else None
    if known is not None and known.starts and known.created == live.created:
        _record_start(consumer, known.starts, live.compact)


async def create_consumer(
    context: StepContext, step: Step, address: Address, config: Config
) -> None:
    """Create a consumer with this configuration. Raises what `StepContext.send` raises."""
    metadata = (config.get("metadata") or {}).items()
    ours = {key: value for key, value in metadata if not key.startswith("_nats.")}
    config = {name: value for name, value in config.items() if name != "metadata"}
    config |= {"metadata": ours} if ours else {}
    payload = {"stream_name": address.stream, "config": config, "action": "create"}
    await context.send(step, f"CONSUMER.CREATE.{address.stream}.{address.consumer}", payload)


async def find_position(context: StepContext, step: Step, stream: LiveObject, old: Recorded) -> int:
    """Return the first sequence that a consumer has not finished; count back if it is unknown.

    `stream` has its messages now. A position that is recorded already stays. Raises ApiError.
    """
    if old.get("position") is not None:
        return int(old["position"])
    config, state = CONSUMER.compact(old["config"]), old["state"]
    position = position_of(config, state, int(params(step)["api_level"]))
    if position is not None:
        return position
    # That of a consumer that acknowledged nothing. Redeliveries move it further back.
    api, filters = context.api(step), filters_of(config)
    last, count = (int(state["delivered"][name]) for name in ("stream_seq", "consumer_seq"))
    return await find_first_delivered(api, stream, filters, upto=last, count=count)


async def _verify(context: StepContext, step: Step, consumer: Placement) -> None:
    """Record a resumed consumer. Raises StepFailed where it is gone, or not as expected."""
    live = await context.read(consumer.address)
    if live is None:
        raise gone_error(consumer.address, again=True)
    context.new_fingerprints[consumer.old_fingerprint] = live.fingerprint
    if step.target_address == consumer.address:
        context.note_result(step, live)
    own = consumer.own
    if own is None:
        return
    if own.expect is not None:
        own = replace(own, expect=own.expect | {PAUSE: own_pause(consumer.config)})
    lost = unkept_fields(own, live)
    await context.save_entry(own, live, lost)
    require_kept(own, live, lost)


# --- the consumers of a stream that is replaced ---------------------------------------------------


async def restore_consumers(context: StepContext, step: Step) -> None:
    """Run `transfer.consumers`: place those that were not copied with their stream.

    The others are resumed too. Raises as `place_consumers` does.
    """
    record, stream = require_record(context, step), await context.require(step.target_address)
    consumers = list(_list_placements(step, stream, record))
    if record["old"]["config"].get("retention") != "workqueue":
        await _purge_finished(context, step, stream, consumers)
    await place_consumers(context, step, consumers)
    await update_record(context, step, phase="consumers_resumed")


def _list_placements(step: Step, stream: LiveObject, record: TransferRecord) -> Iterable[Placement]:
    """Yield the consumers that come back: as the files want them, else as they were."""
    domain, name = stream.address.domain, stream.address.stream
    copied = bool(record.get("with_consumers"))
    for consumer, old in sorted(record.get("consumers", {}).items()):
        wanted = params(step)["consumers"].get(consumer, {"config": old["config"]})
        if wanted is None:
            continue
        own = None
        if wanted.get("record") is not None:
            own = replace(step, address=wanted["address"], record=wanted["record"], object=None)
        address = Address(domain, "consumer", f"{name}/{consumer}")
        yield Placement(address, old, wanted["config"], stream, own, is_copied=copied)


async def _purge_finished(
    context: StepContext, step: Step, stream: LiveObject, consumers: Sequence[Placement]
) -> None:
    """Purge what consumers have finished, if the stream becomes a work queue.

    That is before the first of them is created. Up to nats-server 2.14 a consumer with several
    filters skips messages when one of its filters is purged (measured).
    """
    if get_retention(stream.compact) != "workqueue":
        return
    names = {consumer.address.consumer for consumer in consumers}
    present = await context.api(step).all_consumers(stream.address.stream)
    if any(info["name"] in names for info in present):  # an interrupted apply has purged
        return
    positions = [(c.old, await find_position(context, step, stream, c.old)) for c in consumers]
    for old, position in positions:
        for subject in filters_of(old["config"]) or ("",) if position > 1 else ():
            payload = {"seq": position} | ({"filter": subject} if subject else {})
            await context.send(step, f"STREAM.PURGE.{stream.address.stream}", payload)


async def find_first_delivered(
    api: DomainApi, stream: LiveObject, filters: Sequence[str], *, upto: int, count: int
) -> int:
    """Find the `count`th message back from `upto` that passes the filters, or the first one.

    Reads the messages between the two, and none where the stream has no more than `count`. Raises
    ApiError.
    """
    name = stream.address.stream
    answer = await api.request(f"STREAM.INFO.{name}", {"deleted_details": True})
    state, gaps = answer["state"], sorted(answer["state"].get("deleted") or ())
    if count >= state["messages"]:
        return int(state["first_seq"])
    last = min(upto, state["last_seq"])
    reader = MessageReader(
        api,
        name,
        stream.raw["storage"],
        state["first_seq"],
        last,
        batches=False,
        budget=ReadBudget(sys.maxsize),
        gaps=gaps,
    )
    first = upto + 1
    async for message in reader.read_backward():
        if not filters or any(is_subset(message.subject, subject) for subject in filters):
            first, count = message.seq, count - 1
        if count <= 0:
            break
    return first
