"""Mutations of JSON documents: a key removed, a type changed, a number enlarged, a list nested.

Mutations are drawn from a `Random`, so a seed gives the same document again.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

#: A value and where it stands: the container, and its key or index there.
Place = tuple[Any, Any]


def places(document: Any) -> Iterator[Place]:
    """Every value of the document but the document itself."""
    todo = [document]
    while todo:
        container = todo.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            yield container, key
            if isinstance(container[key], dict | list):
                todo.append(container[key])


def nested_lists(levels: int) -> Any:
    """Lists in lists."""
    found: Any = []
    for _ in range(levels):
        found = [found]
    return found


def remove(container: Any, key: Any, _: Random) -> None:
    """Take the key, or the element, out."""
    del container[key]


def retype(container: Any, key: Any, random: Random) -> None:
    """Put something of another type there."""
    container[key] = random.choice(
        [None, True, "x", "", -1, 0, 1.5, [], {}, ["x"], {"x": 1}, [{}], {"x": {}}]
    )


def enlarge(container: Any, key: Any, random: Random) -> None:
    """Put a number there that few things can hold."""
    container[key] = random.choice(
        [2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 1e308, 1e-320, 5.0]
    )


def deepen(container: Any, key: Any, random: Random) -> None:
    """Put lists in lists there."""
    container[key] = nested_lists(random.choice([3, 40, 200]))


def garble(container: Any, key: Any, random: Random) -> None:
    """Put a text there that is not allowed, and that is dangerous to print or to join."""
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
    """Put a field there that this release does not know, or one element more."""
    if isinstance(container, dict):
        container[random.choice(["newer_field", "x/y/z", "hub/stream/\n"])] = random.choice(
            [1, "x", None, {"x": 1}]
        )
    else:
        container.append(copy.deepcopy(container[key]))


def move(container: Any, key: Any, random: Random) -> None:
    """Put the value of another place of the same container there."""
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
    """The document after one to `most` mutations; the one that is given stays as it is."""
    found = copy.deepcopy(document)
    for _ in range(random.randint(1, most)):
        every = list(places(found))
        if every:
            random.choice(MUTATIONS)(*random.choice(every), random)
    return found
