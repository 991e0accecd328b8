"""Recognize an object although its server reports another `created` after a restart.

Servers write `created` to the disk again when an object is updated, and then not the time of its creation but that of the last
start; measured in `tests/facts/test_identity.py`. What they write is never later than that update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jsplan.units import parse_time


@dataclass(frozen=True, slots=True)
class KnownObject:
    """The `created` by which state knows an object, and the server's time when it was last known to be that object."""

    created: str
    seen_at: str


#: Finds the sighting of a stream, or of one of its consumers, in a domain: `(domain, stream, consumer)`.
FindKnownObject = Callable[[str, str, str | None], KnownObject | None]


def find_no_object(domain: str, stream: str, consumer: str | None) -> None:
    """Know of no object."""


def is_same_object(known: KnownObject, created: str, *, consumer: bool) -> bool:
    """Tell whether the object that reports `created` now is the one that was seen.

    One that was created before it was seen cannot have been created since. A stream may be older than the one that
    was seen: an archive of servers before 2.15 brings its own `created` back. That is another stream.
    """
    if created == known.created:
        return True
    try:
        now = _parse_instant(created)
        return now <= _parse_instant(known.seen_at) and (
            consumer or _parse_instant(known.created) < now
        )
    except ValueError:
        return False


def restore_created(answer: dict[str, Any], domain: str, known_objects: FindKnownObject) -> None:
    """Put the `created` that state knows into an answer about streams or consumers, where they are the same objects."""
    for info in _infos_in(answer):
        consumer = info.get("name") if "stream_name" in info else None
        config = info.get("config")
        stream = info.get("stream_name") or (
            config.get("name") if isinstance(config, dict) else None
        )
        known = known_objects(domain, stream, consumer) if isinstance(stream, str) else None
        if known is not None and is_same_object(
            known, info["created"], consumer=consumer is not None
        ):
            info["created"] = known.created


def _infos_in(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "created" in answer:
        yield answer
    for listed in (answer.get("streams"), answer.get("consumers")):
        if isinstance(listed, list):
            yield from (info for info in listed if isinstance(info, dict) and "created" in info)


def _parse_instant(text: str) -> tuple[str, str]:
    """An RFC 3339 time as something that sorts, to the nanosecond. Raises ValueError."""
    whole, _, fraction = parse_time(text).removesuffix("Z").partition(".")
    return whole, fraction.ljust(9, "0")
