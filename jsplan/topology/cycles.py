"""Find what nats-server calls a cycle of sources, which is more than a circle. Pure.

Before it makes or updates a stream the server walks through what that copies inside its own JetStream, level by level, and refuses
it where an origin was passed already (10052 "detected cycle"; the same on 2.10 to 2.15, measured). So a stream that copies
an origin and then a copy of it is refused, and taken with its sources the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, permutations
from typing import Any, Final

from jsplan.subjects import overlap

Config = Mapping[str, Any]
#: The configuration of a stream of the same JetStream by its name, None where there is none.
Find = Callable[[str], Config | None]
#: Streams that are walked through, and copies one behind another: real workspaces have a few.
MOST_VISITS: Final = 20_000
MOST_LEVELS: Final = 1_000
#: So many sources have 120 orders.
FEW: Final = 5


def detected_cycle(config: Config, find: Find) -> tuple[str, str] | None:
    """The copy and the origin at which the server calls it a cycle when a stream gets this configuration; None where it takes it."""
    queue, passed = [config], set[str]()
    for stream in islice(_growing(queue), MOST_VISITS):
        passed.add(stream["name"])
        for origin in _origins(stream):
            if origin["name"] not in passed:
                queue += [found] if (found := find(origin["name"])) is not None else []
            elif origin is stream.get("mirror") or _takes_own(stream, origin):
                return stream["name"], origin["name"]
    return None


def _growing(queue: list[Config]) -> Iterator[Config]:
    """What is put into the queue, also while it is walked through."""
    yield from queue


def origins_of(config: Config) -> list[str]:
    """The names of what a stream copies inside its own JetStream."""
    return [origin["name"] for origin in _origins(config)]


def _origins(stream: Config) -> Iterator[Config]:
    """The sources in their order, then the mirror, without those in another JetStream."""
    mirror = [stream["mirror"]] if stream.get("mirror") else []
    yield from (origin for origin in (*(stream.get("sources") or ()), *mirror) if not origin.get("external"))


def _takes_own(stream: Config, source: Config) -> bool:
    """Whether the source takes what the stream stores itself; without a filter the server says so unseen."""
    wanted = source.get("filter_subject")
    return not wanted or any(overlap(subject, wanted) for subject in stream.get("subjects") or ())


def _in_order_of_copies(sources: Sequence[Config], find: Find) -> list[Config]:
    """The sources with those first that are the furthest from their last origin: so an origin is passed after its copies."""
    distance = {source["name"]: _distance(source["name"], find) for source in sources if not source.get("external")}
    return sorted(sources, key=lambda source: -distance.get(source["name"], 0))


def _distance(name: str, find: Find) -> int:
    """Over how many copies, on the longest way, a stream gets what it has; circles have no end, so it is looked for so far only."""
    level, steps = {name}, 0
    while level and steps < MOST_LEVELS:
        level = {origin for one in level for origin in origins_of(find(one) or {})}
        steps += 1
    return steps


def circle_of(config: Config, find: Find) -> set[str]:
    """The streams that the stream copies and that copy it: a real circle, about which `flows` decides; empty where there is none."""
    name = config["name"]
    return {origin for origin in _copied(config, find) if name in _copied(find(origin) or {}, find)}


def _copied(config: Config, find: Find) -> set[str]:
    """The names of all streams that the stream copies, also over others."""
    todo, seen = [config], set[str]()
    while todo:
        new = {origin["name"] for origin in _origins(todo.pop())} - seen
        seen |= new
        todo += [found for name in new if (found := find(name)) is not None]
    return seen


def as_taken(config: dict[str, Any], find: Find) -> dict[str, Any]:
    """The configuration with its sources in an order that the server takes, as they are where there is none.

    Copies before their origins is the order that nearly always does; of few sources all orders are tried.
    """
    sources = config.get("sources") or ()
    if len(sources) < 2 or detected_cycle(config, find) is None:
        return config
    orders = chain([_in_order_of_copies(sources, find)], permutations(sources) if len(sources) <= FEW else ())
    others = (config | {"sources": list(order)} for order in orders)
    return next((other for other in others if detected_cycle(other, find) is None), config)
