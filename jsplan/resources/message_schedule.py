"""Message schedules: messages that make a stream publish others, and their headers.

The last message of a subject is its schedule. The server keeps it until its time has passed, and
stores what it produces in the same stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from jsplan.resources.fields import Config, Field, Table
from jsplan.resources.kv_entry import VALUE
from jsplan.subjects import is_valid
from jsplan.units import SECOND, format_instant, parse_duration, parse_instant, parse_moment

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

AT, EVERY, CRON, TARGET = "at", "every", "cron", "target"
TIME_ZONE, RESULT_TTL, SOURCE = "time_zone", "ttl", "source"
#: A schedule has one of these.
WHEN: Final = (AT, EVERY, CRON)
SCHEDULE: Final = Table(
    "schedule",
    (
        Field(VALUE, "string", "The payload.", default=""),
        Field(AT, "time", "Publish once at this time; the schedule is gone then.", level=2),
        Field(EVERY, "duration", "Publish in this interval.", minimum=SECOND, level=4),
        Field(CRON, "string", "Publish at the times of a cron line of six fields.", level=4),
        Field(TARGET, "string", "The subject of what is published."),
        Field(TIME_ZONE, "string", "The time zone of `cron`; UTC if omitted.", level=4),
        Field(RESULT_TTL, "duration", "The TTL of what is published.", default=0, minimum=SECOND),
        Field(SOURCE, "string", "The subject whose last message is published.", level=4),
    ),
)
_HEADERS: Final = {
    TARGET: "Nats-Schedule-Target",
    TIME_ZONE: "Nats-Schedule-Time-Zone",
    SOURCE: "Nats-Schedule-Source",
}
_SCHEDULE: Final = "Nats-Schedule"
#: Refuses a message that another stream would store.
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
_TTL: Final = "Nats-Schedule-TTL"
#: Short forms of a cron line.
_MACROS: Final[Mapping[str, str]] = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
_CRON_LINE: Final = re.compile(r"[0-9A-Za-z*/,?-]+( [0-9A-Za-z*/,?-]+){5}")
_TIME_ZONE: Final = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")


def is_schedule_subject(subject: str) -> bool:
    """Check whether an address can name the subject: printable, without blanks and glob signs."""
    return is_valid(subject) and subject.isprintable() and not set(subject) & set("/*?>")


def check_cron(line: str, zone: str = "") -> str:
    """Return why the server refuses a cron line or its time zone; empty if it does not."""
    if zone and find_zone(zone) is None:
        return f'"{zone}" is not a time zone'
    try:
        next(iter(_cron_times(line, datetime(2026, 1, 1, tzinfo=UTC))))
    except ValueError as error:
        return f'"{line}" is not a cron line of six fields: {error}'
    except StopIteration:
        return f'"{line}" never comes'
    return ""


def find_zone(name: str) -> ZoneInfo | None:
    """Return a time zone by its name; None for an unknown one."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415 - as cronsim below

    if _TIME_ZONE.fullmatch(name) is None:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _cron_times(line: str, now: datetime) -> Iterable[datetime]:
    """Return the times of a cron line after `now`. Raises ValueError for no cron line."""
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - most workspaces have no schedule

    expanded = _MACROS.get(line, line)
    if _CRON_LINE.fullmatch(expanded) is None:
        raise ValueError("write second minute hour day month weekday, or @daily")
    try:
        return CronSim(expanded.replace("?", "*"), now)
    except CronSimError as error:
        raise ValueError(str(error)) from None


def next_times(config: Mapping[str, Any], now: datetime, count: int = 3) -> list[str]:
    """Return the next times at which a schedule publishes, RFC 3339 in its time zone.

    An interval begins when the schedule is written, which is taken for `now`.
    """
    if at := config.get(AT):
        return [str(at)] if parse_moment(at) > now else []
    times: Iterable[datetime]
    if every := config.get(EVERY):
        times = (now + timedelta(seconds=n * every / SECOND) for n in range(1, count + 1))
    else:
        zone = find_zone(config.get(TIME_ZONE) or "UTC") or UTC
        if check_cron(config.get(CRON) or ""):
            return []
        times = _cron_times(config[CRON], now.astimezone(zone))
    return [
        time.isoformat(timespec="seconds").replace("+00:00", "Z") for time in islice(times, count)
    ]


def build_headers(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a schedule. Durations are whole seconds."""
    if at := config.get(AT):
        when = f"@at {at}"
    elif every := config.get(EVERY):
        when = f"@every {every // SECOND}s"
    else:
        when = str(config.get(CRON))
    headers = {_SCHEDULE: when}
    headers |= {header: str(config[name]) for name, header in _HEADERS.items() if config.get(name)}
    return headers | ({_TTL: f"{config[RESULT_TTL] // SECOND}s"} if config.get(RESULT_TTL) else {})


def schedule_header_size(stream: str, config: Mapping[str, Any]) -> int:
    """Return the bytes of the headers of a schedule that is written to a stream alone."""
    headers = {EXPECTED_STREAM: stream} | build_headers(config)
    return sum(len(f"{name}: {value}\r\n") for name, value in headers.items())


def parse_headers(headers: bytes) -> Config:
    """Return the fields of a schedule by the headers of its message; of no schedule, none."""
    lines = (line.partition(":") for line in headers.decode("utf-8", "replace").split("\r\n"))
    found = {name.strip().lower(): value.strip() for name, colon, value in lines if colon}
    config: Config = _parse_when(found.get(_SCHEDULE.lower(), ""))
    for name, header in _HEADERS.items():
        if value := found.get(header.lower()):
            config[name] = value
    if ttl := _duration(found.get(_TTL.lower(), "")):
        config[RESULT_TTL] = ttl
    return config


def other_headers(headers: bytes) -> dict[str, str]:
    """Return the headers that are not the server's, which it copies to what it publishes."""
    lines = (line.partition(":") for line in headers.decode("utf-8", "replace").split("\r\n")[1:])
    return {
        name.strip(): value.strip()
        for name, colon, value in lines
        if colon and name.strip() and not name.strip().lower().startswith("nats-")
    }


def _parse_when(text: str) -> Config:
    word, _, rest = text.partition(" ")
    if word == "@at":
        try:
            return {AT: format_instant(parse_instant(rest.strip()))}
        except ValueError:
            return {AT: rest.strip()}
    if word == "@every" and (every := _duration(rest.strip())):
        return {EVERY: every}
    return {CRON: " ".join(text.split())} if text else {}


def _duration(text: str) -> int:
    """Return ns for seconds or a duration of Go; 0 for anything else."""
    try:
        return int(text) * SECOND if text.isdecimal() else max(0, parse_duration(text))
    except ValueError:
        return 0


def is_over(config: Mapping[str, Any], now: int) -> bool:
    """Check whether the time of a schedule has passed. `now` is ns since 1970."""
    at = config.get(AT)
    try:
        return at is not None and parse_instant(at) <= now
    except ValueError:
        return False
