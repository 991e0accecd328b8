"""Mutations of JSON documents: a key removed, a type changed, a number enlarged.

Mutations come from a `Random`, so a seed gives the same document again.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

#: The place of a value: its container, and its key or index there.
Place = tuple[Any, Any]


def places(document: Any) -> Iterator[Place]:
    """Yield the place of every value in the document."""
    pending = [document]
    while pending:
        container = pending.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            yield container, key
            if isinstance(container[key], dict | list):
                pending.append(container[key])


def nested_lists(levels: int) -> Any:
    """Return lists in lists."""
    result: Any = []
    for _ in range(levels):
        result = [result]
    return result


def remove(container: Any, key: Any, _: Random) -> None:
    """Remove the key or the element."""
    del container[key]


def retype(container: Any, key: Any, random: Random) -> None:
    """Replace the value by one of another type."""
    container[key] = random.choice(
        [None, True, "x", "", -1, 0, 1.5, [], {}, ["x"], {"x": 1}, [{}], {"x": {}}]
    )


def enlarge(container: Any, key: Any, random: Random) -> None:
    """Replace the value by a very large or very small number."""
    container[key] = random.choice(
        [2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 1e308, 1e-320, 5.0]
    )


def deepen(container: Any, key: Any, random: Random) -> None:
    """Replace the value by deeply nested lists."""
    container[key] = nested_lists(random.choice([3, 40, 200]))


def garble(container: Any, key: Any, random: Random) -> None:
    """Replace the value by a text that is not allowed, or dangerous to print."""
    container[key] = random.choice(
        [
            "../../x",
            "/etc/passwd",
            "a b",
            "\x1b[31m",
            "<b>x</b>",
            "A\r\nPUB x 1\r\n",
            "hub/stream/X",
            "2026-13-01T00:00:00Z",
            "9" * 400,
        ]
    )


def add(container: Any, key: Any, random: Random) -> None:
    """Add an unknown field, or repeat an element."""
    if isinstance(container, dict):
        container[random.choice(["newer_field", "x/y/z", "hub/stream/\n"])] = random.choice(
            [1, "x", None, {"x": 1}]
        )
    else:
        container.append(copy.deepcopy(container[key]))


def move(container: Any, key: Any, random: Random) -> None:
    """Replace the value by another value of the same container."""
    container[key] = container[
        random.choice(list(container) if isinstance(container, dict) else range(len(container)))
    ]


MUTATIONS: tuple[Callable[[Any, Any, Random], None], ...] = (
    remove,
    retype,
    enlarge,
    deepen,
    garble,
    add,
    move,
)


def mutate(document: Any, random: Random, most: int = 3) -> Any:
    """Return a copy of the document after one to `most` mutations."""
    result = copy.deepcopy(document)
    for _ in range(random.randint(1, most)):
        candidates = list(places(result))
        if candidates:
            random.choice(MUTATIONS)(*random.choice(candidates), random)
    return result
