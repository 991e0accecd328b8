"""The time that a stream keeps its messages, compared with `may_be_offline`.

The server reports nothing: when a link is back after the origin has deleted messages, the
downstream stream continues behind the gap.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from jsplan.facts.live import LiveObject
from jsplan.planning.model import Decisions, Findings, PlanInputs
from jsplan.resources.fields import Config
from jsplan.units import SECOND, format_duration, format_size, instant_of, parse_instant

RETENTION_TOO_SHORT = "JS481"
#: A limit is assessed by the measured rate once this part of it is used. Before that is a guess.
MIN_USED_PART = 100
#: Nanoseconds. A rate that was measured for less than this is a burst, and says nothing of a week.
MIN_RATE_SPAN = 3600 * SECOND


class RetentionTime(Struct, frozen=True):
    """The time for which a stream keeps what it stores (ns), its limit, and the reason in words."""

    duration: int
    limit: str
    reason: str


def check_offline_retention(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Warn about each origin whose limits are reached before its domain must be back."""
    edges = inputs.topology.edges
    for address in sorted({e.origin for e in edges if e.origin.domain != e.downstream.domain}):
        domain, decision = inputs.workspace.domains.get(address.domain), decisions.get(address)
        limit = domain.may_be_offline if domain is not None else None
        if limit is None or decision is None or decision.after is None:
            continue
        found = shortest_retention(decision.after, decision.live, inputs.now)
        if found is None or found.duration >= limit:
            continue
        text = (
            f"keeps its messages for {_format_rough_duration(found.duration)} ({found.reason}), "
            f"and {address.domain} may be offline for {format_duration(limit)}"
        )
        detail = (
            f"What {found.limit} deletes before the link is back is lost to every mirror and "
            "source, without an error. Raise it, or lower may_be_offline."
        )
        yield inputs.finding("warning", RETENTION_TOO_SHORT, text, detail, address, found.limit)


def shortest_retention(
    config: Config, live: LiveObject | None, now: datetime
) -> RetentionTime | None:
    """Return the limit that is reached first, or None if nothing limits it.

    `config` is compact. `live` is the stream whose rate is measured.
    """
    age, found = config.get("max_age") or 0, list[RetentionTime | None]()
    if age > 0:
        found.append(RetentionTime(age, "max_age", f"max_age is {format_duration(age)}"))
    if config.get("discard", "old") == "old" and live is not None:
        span = _message_span(live, now)
        found.append(_size_retention(config, "max_msgs", live.state.get("messages", 0), span))
        found.append(_size_retention(config, "max_bytes", live.state.get("bytes", 0), span))
    return min(filter(None, found), key=lambda reach: reach.duration, default=None)


def _size_retention(config: Config, name: str, used: int, span: int) -> RetentionTime | None:
    """Return the time for which the limit lasts at the rate of the current messages."""
    limit = config.get(name) or 0
    if limit <= 0 or span < MIN_RATE_SPAN or used * MIN_USED_PART < limit:
        return None
    shown, what = (
        (f"{limit:,}", "messages") if name == "max_msgs" else (format_size(limit), "bytes")
    )
    reason = f"{name} is {shown}, and {used:,} {what} came in {_format_rough_duration(span)}"
    return RetentionTime(limit * span // used, name, reason)


def _message_span(live: LiveObject, now: datetime) -> int:
    """Return the nanoseconds since the oldest message was stored; 0 if there is none.

    To whole seconds of that time. Quiet times count: the rate is an average.
    """
    first = live.state.get("first_ts")
    if not live.state.get("messages") or not first:
        return 0
    return max(0, instant_of(now) - parse_instant(first) // SECOND * SECOND)


def _format_rough_duration(duration: int) -> str:
    """Format a duration in its two largest units, as `3d 4h`."""
    seconds = duration // SECOND
    for big, small, name, rest in (
        (86400, 3600, "d", "h"),
        (3600, 60, "h", "m"),
        (60, 1, "m", "s"),
    ):
        if seconds >= big:
            part = seconds % big // small
            return f"{seconds // big}{name}" + (f" {part}{rest}" if part else "")
    return f"{seconds}s" if seconds else "less than a second"
