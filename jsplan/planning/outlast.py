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
from jsplan.planning.inputs import Inputs
from jsplan.planning.verdict import Verdict
from jsplan.resources.fields import Config
from jsplan.units import SECOND, format_duration, format_size

TOO_SHORT = "JS481"
#: A limit is judged by the measured rate once this part of it has been used: further ahead nobody can see.
PART = 100
#: A rate that was measured for less than this is a burst: what it says about a week is nothing. Nanoseconds.
LONG_ENOUGH = 3600 * SECOND


@dataclass(frozen=True, slots=True)
class Reach:
    """How long a stream keeps what it stores (ns), by which limit, and what that rests on in words."""

    keeps: int
    limit: str
    because: str


def outlasting(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> Iterable[Diagnostic]:
    """A warning for each origin whose limits are reached before its domain has to be back."""
    for address in sorted({edge.origin for edge in inputs.topology.edges if edge.origin.domain != edge.copy.domain}):
        domain, verdict = inputs.workspace.domains.get(address.domain), verdicts.get(address)
        if domain is None or domain.may_be_offline is None or verdict is None or verdict.after is None:
            continue
        found = shortest(verdict.after, verdict.live, inputs.request.now)
        if found is None or found.keeps >= domain.may_be_offline:
            continue
        allowed, declared = format_duration(domain.may_be_offline), inputs.declared(address)
        text = f"keeps its messages for {_about(found.keeps)} ({found.because}), and {address.domain} may be offline for {allowed}"
        detail = (
            f"What {found.limit} drops before the link is back is lost to every mirror and source, without an error. "
            "Raise it, or lower may_be_offline."
        )
        place = (declared.ranges.get(found.limit) or declared.range) if declared else None
        yield Diagnostic("warning", TOO_SHORT, text, detail, str(address), place)


def shortest(config: Config, live: LiveObject | None, now: datetime) -> Reach | None:
    """The limit that is reached first. `config` is compact, `live` what the rate is measured on; None where nothing limits it."""
    found = [_by_age(config)]
    if config.get("discard", "old") == "old" and live is not None:
        span = _span(live, now)
        found += [_by_amount(config, "max_msgs", live.state.get("messages", 0), span)]
        found += [_by_amount(config, "max_bytes", live.state.get("bytes", 0), span)]
    return min((reach for reach in found if reach is not None), key=lambda reach: reach.keeps, default=None)


def _by_age(config: Config) -> Reach | None:
    age = config.get("max_age") or 0
    return Reach(age, "max_age", f"max_age is {format_duration(age)}") if age > 0 else None


def _by_amount(config: Config, name: str, used: int, span: int) -> Reach | None:
    """How long the limit lasts at the rate at which what is there now came in."""
    limit = config.get(name) or 0
    if limit <= 0 or span < LONG_ENOUGH or used * PART < limit:
        return None
    shown, rate = (f"{limit:,}", f"{used:,} messages") if name == "max_msgs" else (format_size(limit), f"{used:,} bytes")
    return Reach(limit * span // used, name, f"{name} is {shown}, and {rate} came in {_about(span)}")


def _span(live: LiveObject, now: datetime) -> int:
    """Nanoseconds since the oldest message came, 0 where there is none. Quiet times count: the rate is what it is on the whole."""
    first = live.state.get("first_ts")
    if not live.state.get("messages") or not first:
        return 0
    try:
        moment = datetime.fromisoformat(f"{first[:19]}+00:00")
    except ValueError:
        return 0
    return max(0, int((now.astimezone(UTC) - moment).total_seconds() * SECOND))


def _about(duration: int) -> str:
    """A duration to its two largest units, as `3d 4h`."""
    seconds = duration // SECOND
    for big, small, name, rest in ((86400, 3600, "d", "h"), (3600, 60, "h", "m"), (60, 1, "m", "s")):
        if seconds >= big:
            part = seconds % big // small
            return f"{seconds // big}{name}" + (f" {part}{rest}" if part else "")
    return f"{seconds}s" if seconds else "less than a second"
