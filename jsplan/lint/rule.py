"""A rule, and the finding of a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct

from jsplan.address import Address
from jsplan.codes import LINT

if TYPE_CHECKING:
    from jsplan.lint.view import View

Level = Literal["note", "warning"]


class Hit(NamedTuple):
    """One finding of a rule: `field` is the stream's or consumer's, for its place in the files.

    `detail` says what to do if the rule's own `fix` is too general. `also` are other addresses
    whose files may ignore it.
    """

    address: Address
    text: str
    field: str = ""
    detail: str = ""
    also: tuple[Address, ...] = ()


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
