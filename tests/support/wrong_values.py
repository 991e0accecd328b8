"""Every place of a JSON document, and what may wrongly stand there."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

JsonPath = tuple[str | int, ...]
#: What takes the place of a value.
WRONG: tuple[Any, ...] = (
    None,
    "x",
    "",
    -1,
    5,
    1.5,
    True,
    [],
    {},
    [None],
    [5],
    {"x": "y"},
    2**63,
    "a.b/c",
    [[["x"]]],
)


def nested_lists(levels: int) -> Any:
    """Return lists in lists."""
    result: Any = []
    for _ in range(levels):
        result = [result]
    return result


def paths(value: Any, so_far: JsonPath = ()) -> Iterator[JsonPath]:
    """Return every path in a document, the root included."""
    yield so_far
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, each in items:
        yield from paths(each, (*so_far, key))


def replace_at(answer: Any, path: JsonPath, value: Any) -> Any:
    """Replace one place of the answer, if it has that place."""
    if not path:
        return value
    out = copy.deepcopy(answer)
    at: Any = out
    try:
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
    except (KeyError, IndexError, TypeError):
        return answer
    return out
