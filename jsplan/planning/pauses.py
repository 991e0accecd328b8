"""`pause_until` of consumers: changed by CONSUMER.PAUSE alone, and over at its time.

The server ignores it in an update, accepts it in a create, and still shows a time that has passed
(server_semantics 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from jsplan.resources.fields import Config
from jsplan.units import instant_of, parse_instant

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import PlanInputs

PAUSE: Final = "pause_until"
#: The end of each pause by which jsplan holds a consumer that is replaced, reset or moved. No other
#: client uses this instant. So such a pause is known as ours, and is never taken for a consumer's
#: own, even where the record of it in state is lost.
PAUSED_UNTIL: Final = "2249-12-31T23:59:59.987654321Z"


def is_expired(until: str | None, now: datetime) -> bool:
    """Check whether a pause until this instant (RFC 3339) is over: no instant, or a past one."""
    if not until:
        return True
    # A server keeps the time zone of the client that set the pause.
    return parse_instant(until) <= instant_of(now)


def is_held(config: Mapping[str, Any]) -> bool:
    """Check for the pause by which jsplan holds a consumer."""
    return bool(config.get(PAUSE) == PAUSED_UNTIL)


def is_left_held(inputs: PlanInputs, live: LiveObject) -> bool:
    """Check whether an apply of which state has no record still holds a consumer."""
    return is_held(live.compact) and not {live.address, live.address.parent} & inputs.under_way


def with_effective_pause(
    target: Config,
    body: Mapping[str, Any],
    live: Config,
    last: tuple[Config, Config] | None,
    now: datetime,
    *,
    is_left: bool = False,
) -> Config:
    """Return the compact target with the wanted pause, or the live one where both mean the same.

    `is_left`: jsplan holds the consumer, and has no record why.

    `last` is the configuration that was last applied and the fields that the files named then. A
    pause that the files no longer name is lifted. A pause that they never named was set outside
    jsplan and stays.
    """
    if PAUSE not in body and not is_left and (last is None or last[1].get(PAUSE) is None):
        return target
    wanted = body.get(PAUSE)
    wanted = None if is_expired(wanted, now) else wanted
    current = live.get(PAUSE)
    effective = current if wanted == (None if is_expired(current, now) else current) else wanted
    return {name: value for name, value in target.items() if name != PAUSE} | (
        {PAUSE: effective} if effective else {}
    )


def changes_pause(before: Config, after: Config) -> bool:
    """Check whether the pause differs between two compact configurations."""
    return before.get(PAUSE) != after.get(PAUSE)


def without_expired_pause(config: Config, now: datetime) -> Config:
    """Return the configuration without a pause that has passed."""
    return {
        name: value for name, value in config.items() if name != PAUSE or not is_expired(value, now)
    }
