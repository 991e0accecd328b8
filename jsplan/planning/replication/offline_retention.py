"""Whether a stream keeps its messages for as long as its domain may be away, so that no copy misses any. Pure arithmetic.

The server says nothing: when a link comes back after the origin has dropped messages, the copy goes on behind the gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.facts.live import LiveObject
from jsplan.planning.decide import ResourceDecision
from jsplan.planning.model import PlanInputs
from jsplan.resources.fields import Config
from jsplan.units import SECOND, format_duration, format_size

RETENTION_TOO_SHORT = "JS481"
#: A limit is judged by the measured rate once this part of it has been used: further ahead nobody can see.
MIN_USED_PART = 100
#: A rate that was measured for less than this is a burst: what it says about a week is nothing. Nanoseconds.
MIN_RATE_SPAN = 3600 * SECOND


@dataclass(frozen=True, slots=True)
class RetentionTime:
    """How long a stream keeps what it stores (ns), by which limit, and what that rests on in words."""

    duration: int
    limit: str
    reason: str


def check_offline_retention(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> Iterable[Diagnostic]:
    """A warning for each origin whose limits are reached before its domain has to be back."""
    for address in sorted(
        {
            edge.origin
            for edge in inputs.topology.edges
            if edge.origin.domain != edge.downstream.domain
        }
    ):
        domain, verdict = inputs.workspace.domains.get(address.domain), verdicts.get(address)
        if (
            domain is None
            or domain.may_be_offline is None
            or verdict is None
            or verdict.after is None
        ):
            continue
        found = shortest_retention(verdict.after, verdict.live, inputs.request.now)
        if found is None or found.duration >= domain.may_be_offline:
            continue
        allowed, declared = format_duration(domain.may_be_offline), inputs.declared(address)
        text = f"keeps its messages for {_format_rough_duration(found.duration)} ({found.reason}), and {address.domain} may be offline for {allowed}"
        detail = (
            f"What {found.limit} drops before the link is back is lost to every mirror and source, without an error. "
            "Raise it, or lower may_be_offline."
        )
        place = (declared.ranges.get(found.limit) or declared.range) if declared else None
        yield Diagnostic("warning", RETENTION_TOO_SHORT, text, detail, str(address), place)


def shortest_retention(
    config: Config, live: LiveObject | None, now: datetime
) -> RetentionTime | None:
    """The limit that is reached first. `config` is compact, `live` what the rate is measured on; None where nothing limits it."""
    found = [_age_retention(config)]
    if config.get("discard", "old") == "old" and live is not None:
        span = _message_span(live, now)
        found += [_size_retention(config, "max_msgs", live.state.get("messages", 0), span)]
        found += [_size_retention(config, "max_bytes", live.state.get("bytes", 0), span)]
    return min(
        (reach for reach in found if reach is not None),
        key=lambda reach: reach.duration,
        default=None,
    )


def _age_retention(config: Config) -> RetentionTime | None:
    age = config.get("max_age") or 0
    return RetentionTime(age, "max_age", f"max_age is {format_duration(age)}") if age > 0 else None


def _size_retention(config: Config, name: str, used: int, span: int) -> RetentionTime | None:
    """How long the limit lasts at the rate at which what is there now came in."""
    limit = config.get(name) or 0
    if limit <= 0 or span < MIN_RATE_SPAN or used * MIN_USED_PART < limit:
        return None
    shown, rate = (
        (f"{limit:,}", f"{used:,} messages")
        if name == "max_msgs"
        else (format_size(limit), f"{used:,} bytes")
    )
    return RetentionTime(
        limit * span // used,
        name,
        f"{name} is {shown}, and {rate} came in {_format_rough_duration(span)}",
    )


def _message_span(live: LiveObject, now: datetime) -> int:
    """Nanoseconds since the oldest message came, 0 where there is none. Quiet times count: the rate is what it is on the whole."""
    first = live.state.get("first_ts")
    if not live.state.get("messages") or not first:
        return 0
    try:
        moment = datetime.fromisoformat(f"{first[:19]}+00:00")
    except ValueError:
        return 0
    return max(0, int((now.astimezone(UTC) - moment).total_seconds() * SECOND))


def _format_rough_duration(duration: int) -> str:
    """A duration to its two largest units, as `3d 4h`."""
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
