"""End of the pauses that hold consumers.

A pause that ends at its time wakes its consumer. One that is lifted does not: push subscribers, and
clients that wait, would get what is pending only with the next message or request (measured on 2.11
to 2.15). So each consumer is paused for a moment more, and that pause ends by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from jsplan.address import Address
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.documents.plan import Step
from jsplan.planning.pauses import PAUSE
from jsplan.units import format_instant, parse_instant

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
