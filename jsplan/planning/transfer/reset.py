"""The reset of one consumer, as a decision has it."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from jsplan.documents.plan import FieldChange
from jsplan.documents.plan_types import Effect

#: `back` never skips a message, and `forward` never repeats one, however the consumer has moved
#: since the plan. `exact` is for a consumer whose position the server does not report.
Direction = Literal["back", "forward", "exact"]


class PositionReset(Struct, frozen=True):
    """A reset that a plan makes: to `seq`, from `position` (None: unknown, or a new consumer).

    `once` is its word. `seq` is None where a time was not resolved. `in_place`: the consumer is
    not replaced.
    """

    once: str
    seq: int | None
    position: int | None = None
    in_place: bool = False

    @property
    def direction(self) -> Direction:
        """The direction, as of the plan."""
        if self.position is None or self.seq is None:
            return "exact"
        return "back" if self.seq <= self.position else "forward"

    def to_json(self) -> dict[str, Any]:
        """Return `params.reset` of the step."""
        return {"once": self.once, "seq": self.seq, "direction": self.direction}

    def field_change(self) -> FieldChange:
        """Return what a plan shows of it, beside the changed fields."""
        effect: Effect = "in_place" if self.in_place else "replace"
        return FieldChange("position", self.position, self.seq, effect)
