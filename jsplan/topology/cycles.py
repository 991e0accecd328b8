"""Find what nats-server calls a cycle of sources, which is more than a circle. Pure.

Before the server creates or updates a stream, it walks through the stream's origins inside its own
JetStream, level by level, and refuses an origin that it has passed already (10052 "detected cycle";
the same on 2.10 to 2.15, measured). So it refuses a stream that copies an origin and then a stream
downstream of it, and accepts the same sources in the reverse order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, permutations
from typing import Any, Final

from jsplan.subjects import overlaps

Config = Mapping[str, Any]
#: Returns the configuration of a stream of the same JetStream by its name; None if there is none.
FindConfig = Callable[[str], Config | None]
#: Limits on visited streams and on chained flows: real workspaces have a few.
MAX_VISITS: Final = 20_000
MAX_LEVELS: Final = 1_000
#: This number of sources has 120 orders.
MAX_PERMUTED: Final = 5


def find_server_cycle(config: Config, find: FindConfig) -> tuple[str, str] | None:
    """Return the stream and the origin at which the server reports a cycle; None if it accepts.

    `config` is the new configuration of a stream.
    """
    queue, passed = [config], set[str]()
    for stream in islice(_iterate_queue(queue), MAX_VISITS):
        passed.add(stream["name"])
        for origin in _local_origins(stream):
            if origin["name"] not in passed:
                queue += [found] if (found := find(origin["name"])) is not None else []
            elif origin is stream.get("mirror") or _reads_own_subjects(stream, origin):
                return stream["name"], origin["name"]
    return None


def _iterate_queue(queue: list[Config]) -> Iterator[Config]:
    """Yield the items of the queue, also those added meanwhile."""
    yield from queue


def local_origin_names(config: Config) -> list[str]:
    """Return the names of a stream's origins inside its own JetStream."""
    return [origin["name"] for origin in _local_origins(config)]


def _local_origins(stream: Config) -> Iterator[Config]:
    """Yield the sources in order, then the mirror, without those in another JetStream."""
    mirror = [stream["mirror"]] if stream.get("mirror") else []
    yield from (
        origin for origin in (*(stream.get("sources") or ()), *mirror) if not origin.get("external")
    )


def _reads_own_subjects(stream: Config, source: Config) -> bool:
    """Check whether the source reads what the stream stores itself.

    Without a filter the server assumes so.
    """
    wanted = source.get("filter_subject")
    return not wanted or any(overlaps(subject, wanted) for subject in stream.get("subjects") or ())


def _sort_by_distance(sources: Sequence[Config], find: FindConfig) -> list[Config]:
    """Sort the sources by distance, the furthest first: an origin follows its downstream."""
    distance = {
        source["name"]: _distance(source["name"], find)
        for source in sources
        if not source.get("external")
    }
    return sorted(sources, key=lambda source: -distance.get(source["name"], 0))


def _distance(name: str, find: FindConfig) -> int:
    """Count the flows on the longest path to a stream; limited, since circles have no end."""
    level, steps = {name}, 0
    while level and steps < MAX_LEVELS:
        level = {origin for one in level for origin in local_origin_names(find(one) or {})}
        steps += 1
    return steps


def find_circle(config: Config, find: FindConfig) -> set[str]:
    """Return the streams of a real circle: origins that also copy the stream; else empty.

    `replication_graph` decides about real circles.
    """
    name = config["name"]
    return {
        origin
        for origin in _all_origin_names(config, find)
        if name in _all_origin_names(find(origin) or {}, find)
    }


def _all_origin_names(config: Config, find: FindConfig) -> set[str]:
    """Return the names of all direct and indirect origins."""
    pending, seen = [config], set[str]()
    while pending:
        new = {origin["name"] for origin in _local_origins(pending.pop())} - seen
        seen |= new
        pending += [found for name in new if (found := find(name)) is not None]
    return seen


def order_for_server(config: dict[str, Any], find: FindConfig) -> dict[str, Any]:
    """Return the configuration with its sources in an order that the server accepts.

    They stay unchanged if there is none. Downstream before origin is nearly always accepted; of few
    sources all orders are tried.
    """
    sources = config.get("sources") or ()
    if len(sources) < 2 or find_server_cycle(config, find) is None:
        return config
    orders = chain(
        [_sort_by_distance(sources, find)],
        permutations(sources) if len(sources) <= MAX_PERMUTED else (),
    )
    others = (config | {"sources": list(order)} for order in orders)
    return next((other for other in others if find_server_cycle(other, find) is None), config)
