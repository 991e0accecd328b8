"""Find what nats-server calls a cycle of sources, which is more than a circle. Pure.

Before it makes or updates a stream the server walks through what that copies inside its own JetStream, level by level, and refuses
it where an origin was passed already (10052 "detected cycle"; the same on 2.10 to 2.15, measured). So a stream that copies
an origin and then a copy of it is refused, and taken with its sources the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, permutations
from typing import Any, Final

from jsplan.subjects import overlaps

Config = Mapping[str, Any]
#: The configuration of a stream of the same JetStream by its name, None where there is none.
FindConfig = Callable[[str], Config | None]
#: Streams that are walked through, and copies one behind another: real workspaces have a few.
MAX_VISITS: Final = 20_000
MAX_LEVELS: Final = 1_000
#: So many sources have 120 orders.
MAX_PERMUTED: Final = 5


def find_server_cycle(config: Config, find: FindConfig) -> tuple[str, str] | None:
    """The copy and the origin at which the server calls it a cycle when a stream gets this configuration; None where it takes it."""
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
    """What is put into the queue, also while it is walked through."""
    yield from queue


def local_origin_names(config: Config) -> list[str]:
    """The names of what a stream copies inside its own JetStream."""
    return [origin["name"] for origin in _local_origins(config)]


def _local_origins(stream: Config) -> Iterator[Config]:
    """The sources in their order, then the mirror, without those in another JetStream."""
    mirror = [stream["mirror"]] if stream.get("mirror") else []
    yield from (
        origin for origin in (*(stream.get("sources") or ()), *mirror) if not origin.get("external")
    )


def _reads_own_subjects(stream: Config, source: Config) -> bool:
    """Whether the source takes what the stream stores itself; without a filter the server says so unseen."""
    wanted = source.get("filter_subject")
    return not wanted or any(overlaps(subject, wanted) for subject in stream.get("subjects") or ())


def _sort_by_distance(sources: Sequence[Config], find: FindConfig) -> list[Config]:
    """The sources with those first that are the furthest from their last origin: so an origin is passed after its copies."""
    distance = {
        source["name"]: _distance(source["name"], find)
        for source in sources
        if not source.get("external")
    }
    return sorted(sources, key=lambda source: -distance.get(source["name"], 0))


def _distance(name: str, find: FindConfig) -> int:
    """Over how many copies, on the longest way, a stream gets what it has; circles have no end, so it is looked for so far only."""
    level, steps = {name}, 0
    while level and steps < MAX_LEVELS:
        level = {origin for one in level for origin in local_origin_names(find(one) or {})}
        steps += 1
    return steps


def find_circle(config: Config, find: FindConfig) -> set[str]:
    """The streams that the stream copies and that copy it: a real circle, about which `flows` decides; empty where there is none."""
    name = config["name"]
    return {
        origin
        for origin in _all_origin_names(config, find)
        if name in _all_origin_names(find(origin) or {}, find)
    }


def _all_origin_names(config: Config, find: FindConfig) -> set[str]:
    """The names of all streams that the stream copies, also over others."""
    todo, seen = [config], set[str]()
    while todo:
        new = {origin["name"] for origin in _local_origins(todo.pop())} - seen
        seen |= new
        todo += [found for name in new if (found := find(name)) is not None]
    return seen


def order_for_server(config: dict[str, Any], find: FindConfig) -> dict[str, Any]:
    """The configuration with its sources in an order that the server takes, as they are where there is none.

    Copies before their origins is the order that nearly always does; of few sources all orders are tried.
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
