"""`pause_until` of consumers: moved by CONSUMER.PAUSE alone, and over once its time has passed. Steps are made in `steps`.

The server ignores it in an update, takes it in a create, and goes on showing a time that has passed (server_semantics 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from jsplan.resources.fields import Config
from jsplan.units import parse_time

PAUSE: Final = "pause_until"


def is_expired(until: str | None, now: datetime) -> bool:
    """Whether a pause until this instant (RFC 3339) is none: there is no instant, or it has passed."""
    if not until:
        return True
    whole, _, fraction = (
        parse_time(until).removesuffix("Z").partition(".")
    )  # a server keeps the time zone of whoever paused it
    instant = datetime.fromisoformat(whole).replace(
        tzinfo=UTC, microsecond=int(fraction.ljust(6, "0")[:6])
    )
    return instant <= now


def with_effective_pause(
    target: Config,
    body: Mapping[str, Any],
    live: Config,
    last: tuple[Config, Config] | None,
    now: datetime,
) -> Config:
    """The compact target with the pause that is wanted; one that means the same as the live one is no difference.

    `last` is what was last applied and what the files named then: a pause that they no longer name is lifted, one
    that they never named is somebody else's and stays.
    """
    if PAUSE not in body and (last is None or last[1].get(PAUSE) is None):
        return target
    wanted = body.get(PAUSE)
    wanted = None if is_expired(wanted, now) else wanted
    there = live.get(PAUSE)
    kept = there if wanted == (None if is_expired(there, now) else there) else wanted
    return {name: value for name, value in target.items() if name != PAUSE} | (
        {PAUSE: kept} if kept else {}
    )


def changes_pause(before: Config, after: Config) -> bool:
    """Whether the pause changes between two compact configurations."""
    return before.get(PAUSE) != after.get(PAUSE)


def without_expired_pause(config: Config, now: datetime) -> Config:
    """The configuration without a pause that has passed."""
    return {
        name: value for name, value in config.items() if name != PAUSE or not is_expired(value, now)
    }
