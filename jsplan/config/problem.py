"""The result of the checks between fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

Body = Mapping[str, Any]


class Problem(NamedTuple):
    """One contradiction; `field` is where it is shown."""

    code: str
    field: str
    summary: str
    detail: str


Problems = Iterator[Problem]
#: A check, and the fields without any of which it finds nothing.
Check = tuple[Callable[[Body], Problems], frozenset[str]]


def check_with(checks: tuple[Check, ...], body: Body) -> Problems:
    """Yield what these checks find; most bodies have the fields of one or two of them."""
    for check, fields in checks:
        if not fields.isdisjoint(body):
            yield from check(body)
