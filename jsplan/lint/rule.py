"""A rule, and how a function becomes one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from msgspec import Struct

from jsplan.codes import LINT
from jsplan.lint.view import Hit, View

Level = Literal["note", "warning"]


class Rule(Struct, frozen=True):
    """One piece of advice. `level` is its default, never an error: the server accepts it.

    A `note` is shown by `lint` alone, a `warning` also by `plan`, unless `in_plan` is False because
    planning reports the same, with numbers. `needs_live`: it finds nothing without live.
    """

    code: str
    level: Level
    check: Callable[[View], Iterable[Hit]]
    why: str
    fix: str
    in_plan: bool = True
    needs_live: bool = False

    @property
    def title(self) -> str:
        """Its finding in one line."""
        return LINT[self.code]


def rule(
    code: str, level: Level, *, why: str, fix: str, in_plan: bool = True, needs_live: bool = False
) -> Callable[[Callable[[View], Iterable[Hit]]], Rule]:
    """Make the function below it a rule."""
    return lambda check: Rule(code, level, check, why, fix, in_plan, needs_live)
