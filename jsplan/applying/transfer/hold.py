"""Consumers that are held: paused until one far instant, with their positions in state.

State gets the configuration of each before the pause, and its position after it. So a later process
knows where it was, and which pause it had of its own.

A pause that ends at its time wakes its consumer. One that is lifted does not: push subscribers, and
clients that wait, would get what is pending only with the next message or request (measured on 2.11
to 2.15). So each consumer is paused for a moment more, and that pause ends by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Address
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.transfer.record import TransferRecord, at, require_record, update_record
from jsplan.documents.plan import Step
from jsplan.facts.live import LiveObject
from jsplan.facts.reader import parse_consumer
from jsplan.planning.pauses import PAUSE, PAUSED_UNTIL, is_expired, is_held
from jsplan.resources.fields import Config
from jsplan.units import format_instant, parse_instant

#: A consumer in a record in state, `RecordedConsumer` in `documents/state_parts.py`.
Recorded = Mapping[str, Any]


async def hold(
    context: StepContext,
    step: Step,
    consumers: Sequence[LiveObject],
    known: Mapping[str, Recorded],
    save: Callable[[dict[str, Recorded]], Awaitable[object]],
    read: Callable[[], Awaitable[Sequence[LiveObject]]],
) -> None:
    """Pause consumers, after their configurations are recorded, and record their positions.

    `known` are their records so far, by name. `save` puts new ones into state, `read` returns the
    consumers once they are paused. Raises what those raise, and what `StepContext.send` raises.
    """
    before = _describe(consumers, known)
    await save(before)
    for consumer in consumers:
        verb = f"CONSUMER.PAUSE.{consumer.address.stream}.{consumer.address.consumer}"
        await context.send(at(step, consumer.address), verb, {PAUSE: PAUSED_UNTIL})
    await save(_describe(await read(), before))


async def release(context: StepContext, step: Step, held: Mapping[Address, Recorded]) -> None:
    """End the pauses that hold these consumers: each gets the pause of its own, as recorded.

    Raises what `resume_consumers` raises.
    """
    pauses = {address: own_pause(before["config"]) for address, before in held.items()}
    await resume_consumers(context, step, pauses)


def own_pause(config: Config) -> str | None:
    """Return the pause of a configuration (RFC 3339), unless that has passed."""
    until: str | None = config.get(PAUSE)
    return None if is_expired(until, datetime.now(UTC)) else until


def with_pause(live: LiveObject, until: str | None) -> LiveObject:
    """Return a consumer with another pause (RFC 3339), or none, in place of the one it has."""
    config = {name: value for name, value in live.raw.items() if name != PAUSE}
    return live.with_raw(config | ({PAUSE: until} if until else {}))


def _describe(
    consumers: Sequence[LiveObject], known: Mapping[str, Recorded]
) -> dict[str, Recorded]:
    """Return by name what state keeps of consumers: configuration, identity and position.

    The pause that holds one is none of its own; what that is, its record has.
    """
    found = dict[str, Recorded]()
    for live in consumers:
        name = live.address.consumer
        before = known.get(name, {}).get("config", {})
        own = with_pause(live, before.get(PAUSE)) if is_held(live.raw) else live
        found[name] = {"config": own.raw, "created": live.created, "state": live.state}
    return found


# --- all consumers of a stream --------------------------------------------------------------------


async def pause_consumers(context: StepContext, step: Step) -> None:
    """Hold every consumer of a quiesced stream. Raises as `hold` does."""
    record = require_record(context, step)
    known = record.get("consumers", {})

    async def save(found: dict[str, Recorded]) -> None:
        await update_record(context, step, consumers=found)

    read = partial(_read_consumers, context, step)
    await hold(context, step, await read(), known, save, read)
    old = await context.require(step.target_address)
    # What a drained queue had when it was quiesced first, whatever an earlier apply copied since.
    state = record.get("quiesced_state") or old.state
    await update_record(context, step, quiesced_state=state, phase="consumers_paused")


async def read_positions(
    context: StepContext, step: Step, record: TransferRecord
) -> dict[str, Recorded]:
    """Read what the record of a stream has of its consumers once more. Raises ApiError."""
    return _describe(await _read_consumers(context, step), record.get("consumers", {}))


async def _read_consumers(context: StepContext, step: Step) -> list[LiveObject]:
    """Read the consumers of the stream, without the server's own."""
    stream, found = step.target_address, list[LiveObject]()
    for info in await context.api(step).all_consumers(stream.stream):
        address = Address(stream.domain, "consumer", f"{stream.stream}/{info['name']}")
        if not address.consumer.startswith(INTERNAL_CONSUMER_PREFIXES):
            found.append(parse_consumer(address, info))
    seen = [line for live in found for line in context.seen_lines(step, live)]
    await context.record(*seen, durable=False)
    return found


# --- the end of a pause ---------------------------------------------------------------------------

#: Nanoseconds of the pause that wakes a consumer by its end, and after it.
WAKE_DELAY, WAKE_MARGIN = 100_000_000, 50_000_000
#: Seconds between two reads of a consumer whose pause ends.
POLL_INTERVAL: Final = 0.05
#: Reads until all servers of a cluster know that a pause has ended.
MAX_POLLS: Final = 200


async def resume_consumers(
    context: StepContext, step: Step, pauses: Mapping[Address, str | None]
) -> None:
    """End the pauses that hold these consumers, and give each the pause of its own.

    None, or an instant (RFC 3339) that has passed, is no pause. Consumers that are gone are passed
    over. Raises what `StepContext.send` raises, and StepFailed for one that stays paused.
    """
    await wake_consumers(context, step, pauses)
    for address, own in pauses.items():
        await context.send_if_exists(step, _verb(address), {PAUSE: own} if own else None)
    for address, own in pauses.items():
        await _wait_until_known(context, address, own)


async def wake_consumers(
    context: StepContext, step: Step, pauses: Mapping[Address, str | None]
) -> None:
    """Wait until the pauses of these consumers have ended by themselves, all at the same time.

    One with a later pause of its own stays asleep. Only the server's clock counts.
    """
    last: tuple[Address, int] | None = None
    for address, own in pauses.items():
        live = await context.read(address)
        if live is None or not live.answered_at:
            continue
        now = parse_instant(live.answered_at)
        if own is None or parse_instant(own) <= now:
            last = address, now + WAKE_DELAY
            await context.send_if_exists(step, _verb(address), {PAUSE: format_instant(last[1])})
    if last is not None:
        await _wait_until(context, *last)


async def _wait_until(context: StepContext, address: Address, end: int) -> None:
    """Wait until the domain of a consumer is past `end` (ns), or the consumer is gone."""
    while True:
        live = await context.read(address)
        if live is None or not live.answered_at:
            return
        if parse_instant(live.answered_at) >= end + WAKE_MARGIN:
            return
        await asyncio.sleep(POLL_INTERVAL)


async def _wait_until_known(context: StepContext, address: Address, own: str | None) -> None:
    """Wait until the consumer shows its own pause: a cluster answers before all servers know it."""
    wanted = parse_instant(own) if own else None
    for _ in range(MAX_POLLS):
        live = await context.read(address)
        shown = live.raw.get(PAUSE) if live is not None else own
        if (parse_instant(shown) if shown else None) == wanted:
            return
        await asyncio.sleep(POLL_INTERVAL)
    raise StepFailed(f"{address} is still paused; the next plan continues from there")


def _verb(address: Address) -> str:
    return f"CONSUMER.PAUSE.{address.stream}.{address.consumer}"
