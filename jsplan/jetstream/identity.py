"""Recognizes an object although its server reports another `created` after a restart.

On an update servers write `created` to disk again: not the time of the creation but that of the
last start (measured in `tests/facts/test_identity.py`). That time is never later than the update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from jsplan.units import parse_instant


class KnownObject(NamedTuple):
    """The `created` that state has for an object, and the server's time when it was last seen."""

    created: str
    seen_at: str


#: Finds the known object for a stream, or one of its consumers: `(domain, stream, consumer)`.
FindKnownObject = Callable[[str, str, str | None], KnownObject | None]


def find_no_object(domain: str, stream: str, consumer: str | None) -> None:
    """Return None: no object is known."""


def is_same_object(known: KnownObject, created: str, *, consumer: bool) -> bool:
    """Return True if the object that now reports `created` is the known one.

    An object that was created before it was seen was not recreated since. But a stream may be older
    than the known one: an archive of servers before 2.15 restores its own `created`. That is
    another stream.
    """
    if created == known.created:
        return True
    try:
        now = parse_instant(created)
        return now <= parse_instant(known.seen_at) and (
            consumer or parse_instant(known.created) < now
        )
    except ValueError:
        return False


def restore_created(answer: dict[str, Any], domain: str, known_objects: FindKnownObject) -> None:
    """Replace `created` in an answer by the known one where it is the same object."""
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
