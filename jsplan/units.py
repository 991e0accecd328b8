"""Durations, sizes, times, counts: text for people, and the values of the JetStream API."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

SECOND = 1_000_000_000
#: ns per unit; `M` is 30 days and `y` is 365, as in the nats CLI.
DURATIONS = {
    "y": 365 * 86400 * SECOND,
    "M": 30 * 86400 * SECOND,
    "w": 7 * 86400 * SECOND,
    "d": 86400 * SECOND,
    "h": 3600 * SECOND,
    "m": 60 * SECOND,
    "s": SECOND,
    "ms": 1_000_000,
    "us": 1_000,
    "µs": 1_000,
    "ns": 1,
}
#: bytes per unit, 1024-based as in NATS, whether written `MB` or `MiB`.
SIZES = {"": 1, "B": 1} | {
    unit + tail: 1024**power for power, unit in enumerate("KMGTPE", 1) for tail in ("", "B", "iB")
}
_DURATION_PART = re.compile(r"(\d+)(?:\.(\d+))?(ms|us|µs|ns|[yMwdhms])")
_SIZE = re.compile(r"(-?)(\d+)(?:\.(\d+))?\s*([A-Za-z]*)")
_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INT64 = 2**63 - 1


def parse_duration(value: object) -> int:
    """Parse a duration to nanoseconds: `1h30m`, `30d`, `500ms`, or an integer of nanoseconds.

    Raises ValueError for anything else, for fractions below 1 ns and for more than int64 holds.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("a duration is text such as 30d or 1h30m, or an integer of nanoseconds")
    total = value if isinstance(value, int) else _parse_duration_text(value)
    if abs(total) > _INT64:
        raise ValueError(f"{value} is longer than a duration can be (292 years)")
    return total


@lru_cache(maxsize=1024)
def _parse_duration_text(text: str) -> int:
    """Parse the text of a duration; thousands of resources have the same few."""
    stripped = text.strip()
    sign, body = (-1, stripped[1:]) if stripped.startswith("-") else (1, stripped)
    return sign * sum(_parse_duration_parts(body, text))


def _parse_duration_parts(body: str, shown: str) -> list[int]:
    if body == "0":
        return [0]
    parts, end = [], 0
    for match in _DURATION_PART.finditer(body):
        if match.start() != end:
            break
        end = match.end()
        parts.append(_scale_exactly(match[1], match[2], DURATIONS[match[3]], shown))
    if not parts or end != len(body):
        raise ValueError(
            f'"{shown}" is not a duration; write 30d, 1h30m, 500ms (units y M w d h m s ms us ns)'
        )
    return parts


def _scale_exactly(whole: str, fraction: str | None, unit: int, shown: str) -> int:
    total = int(whole) * unit
    if fraction:
        exact, rest = divmod(int(fraction) * unit, 10 ** len(fraction))
        if rest:
            raise ValueError(f'"{shown}" is finer than the smallest unit')
        total += exact
    return total


def parse_size(value: object) -> int:
    """Parse a size to bytes: `10GiB` or `512MB`, both 1024-based, or an integer of bytes.

    Raises ValueError for anything else and for more than int64 holds.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("a size is text such as 10GiB, or an integer of bytes")
    if isinstance(value, int):
        total = value
    else:
        match = _SIZE.fullmatch(value.strip())
        units = {unit.upper(): factor for unit, factor in SIZES.items()}
        if match is None or match[4].upper() not in units:
            raise ValueError(
                f'"{value}" is not a size; write 10GiB, 512MB, 4096 (units B KiB MiB GiB TiB)'
            )
        total = _scale_exactly(match[2], match[3], units[match[4].upper()], value) * (
            -1 if match[1] else 1
        )
    if abs(total) > _INT64:
        raise ValueError(f"{value} is larger than a size can be (8 EiB)")
    return total


def format_duration(ns: int) -> str:
    """Return the shortest exact text: `1y`, `1h30m`, `500ms`; 0 is `0s`."""
    if ns == 0:
        return "0s"
    sign, rest = ("-", -ns) if ns < 0 else ("", ns)
    for unit in ("y", "w", "d"):
        if rest % DURATIONS[unit] == 0 and (unit != "w" or rest // DURATIONS[unit] == 1):
            return f"{sign}{rest // DURATIONS[unit]}{unit}"
    out = sign
    for unit in ("d", "h", "m", "s", "ms", "us", "ns"):
        count, rest = divmod(rest, DURATIONS[unit])
        out += f"{count}{unit}" if count else ""
    return out


def format_size(size: int) -> str:
    """Return the size in the largest 1024-based unit, exact (`10GiB`) or to two decimals."""
    if abs(size) < 1024:
        return f"{size}B"
    power = (abs(size).bit_length() - 1) // 10
    unit = 1024 ** min(power, 6)
    name = "KMGTPE"[min(power, 6) - 1] + "iB"
    return f"{size // unit}{name}" if size % unit == 0 else f"{size / unit:.2f}{name}"


def parse_instant(value: object) -> int:
    """Parse an RFC 3339 instant to nanoseconds since 1970. Raises ValueError for anything else."""
    match = _INSTANT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f'"{value}" is not a time; write 2026-01-31T12:00:00Z')
    try:
        seconds = (
            datetime.fromisoformat(f"{match[1]}T{match[2]}+00:00")
            if match[4] in "Zz"
            else datetime.fromisoformat(f"{match[1]}T{match[2]}{match[4]}").astimezone(UTC)
        )
    except (ValueError, OverflowError) as error:
        raise ValueError(f'"{value}" is not a time: {error}') from None
    return instant_of(seconds) + int((match[3] or "").ljust(9, "0"))


def format_instant(instant: int) -> str:
    """Format nanoseconds since 1970 as RFC 3339 in UTC, without trailing zeros, as servers do."""
    seconds, fraction = divmod(instant, SECOND)
    whole = (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()
    return f"{whole}.{fraction:09}".rstrip("0") + "Z" if fraction else f"{whole}Z"


def normalize_time(value: object) -> str:
    """Return an RFC 3339 instant as `format_instant` writes it. Raises ValueError."""
    return format_instant(parse_instant(value))


def instant_of(moment: datetime) -> int:
    """Return a moment in nanoseconds since 1970."""
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * SECOND + since.microseconds * 1000


def parse_moment(value: object) -> datetime:
    """Parse an RFC 3339 instant to a datetime in UTC. Raises ValueError for anything else."""
    return _EPOCH + timedelta(microseconds=parse_instant(value) // 1000)


def format_timestamp(moment: datetime | None = None) -> str:
    """Format a moment, or now, as RFC 3339 in UTC with whole seconds."""
    return (moment or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def count_text(number: int, noun: str, plural: str | None = None) -> str:
    """Return `1 stream`, `2,000 streams`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def bounds_text(least: int, most: int, noun: str = "") -> str:
    """Return `7 messages`, `between 3 and 7 messages` or, without a lower bound, `up to 7`."""
    text = count_text(most, noun) if noun else f"{most:,}"
    if least == most:
        return text
    return f"between {least:,} and {text}" if least else f"up to {text}"


def format_bytes(size: int) -> str:
    """Format a byte count for reading, with at most two decimals: `88.2 KiB`."""
    step = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(step) < 1024 or unit == "TiB":
            return f"{size} B" if unit == "B" else f"{step:.1f} {unit}"
        step /= 1024
    raise AssertionError


def format_age(age: int) -> str:
    """Format an age (ns) in its largest unit."""
    seconds = max(0, age // SECOND)
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"
