"""Recognizes an object although its server reports another `created` after a restart.

On an update servers write `created` to disk again: not the time of the creation but that of the
last start (measured in `tests/facts/test_identity.py`). That time is never later than the update.
In a cluster each server has a `created` of its own for a restored stream: that of the request, or
of the end of the restore (`tests/clusters/test_identity.py`). The leader's is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jsplan.units import parse_instant


class KnownObject(NamedTuple):
    """The `created` that state has for an object, and the server's time when it was last seen."""

    created: str
    seen_at: str


#: Finds the known objects of a name, most trusted first: `(domain, stream, consumer)`.
FindKnownObjects = Callable[[str, str, str | None], Sequence[KnownObject]]


def find_no_objects(*_name: str | None) -> Sequence[KnownObject]:
    """Return nothing: no object is known."""
    return ()


def is_same_object(known: KnownObject, created: str, *, may_be_older: bool) -> bool:
    """Return True if the object that now reports `created` is the known one.

    An object that was created before it was seen was not recreated since. `may_be_older` is False
    for the stream of a single server: an archive of servers before 2.15 restores its own `created`,
    so an older stream is another one.
    """
    if created == known.created:
        return True
    try:
        now = parse_instant(created)
        return now <= parse_instant(known.seen_at) and (
            may_be_older or parse_instant(known.created) < now
        )
    except ValueError:
        return False


def restore_created(answer: dict[str, Any], domain: str, find: FindKnownObjects) -> None:
    """Replace `created` in an answer by the known one where it is the same object."""
    for info in _infos_in(answer):
        consumer = info.get("name") if "stream_name" in info else None
        config = info.get("config")
        stream = info.get("stream_name") or (
            config.get("name") if isinstance(config, dict) else None
        )
        if not isinstance(stream, str):
            continue
        may_be_older = consumer is not None or is_clustered(info.get("cluster") or {})
        for known in find(domain, stream, consumer):
            if is_same_object(known, info["created"], may_be_older=may_be_older):
                info["created"] = known.created
                break


def is_clustered(cluster: Mapping[str, Any]) -> bool:
    """Check by the `cluster` of an answer: a single server has no name there, or its own."""
    return cluster.get("name") not in (None, cluster.get("leader"))


def _infos_in(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "created" in answer:
        yield answer
    for listed in (answer.get("streams"), answer.get("consumers")):
        if isinstance(listed, list):
            yield from (info for info in listed if isinstance(info, dict) and "created" in info)
