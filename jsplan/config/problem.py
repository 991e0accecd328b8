"""The result of the checks between fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
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


class Checks:
    """The checks of one kind of body; most bodies have the fields of one or two of them."""

    def __init__(self, *checks: Check) -> None:
        self._checks = checks
        #: Thousands of bodies have the same fields, for which it is looked up once.
        self._concerned = lru_cache(maxsize=1024)(self._select)

    def find(self, body: Body) -> Problems:
        """Yield what the checks find in a body."""
        for check in self._concerned(tuple(body)):
            yield from check(body)

    def _select(self, fields: tuple[str, ...]) -> list[Callable[[Body], Problems]]:
        return [check for check, concerned in self._checks if not concerned.isdisjoint(fields)]
