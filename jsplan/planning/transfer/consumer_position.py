"""The position of a consumer, and how a new consumer gets it.

CONSUMER.RESET (2.14) moves a consumer to a sequence, but not one whose deliver_policy is new, last
or last_per_subject, and none to before its own start (10204, measured). A consumer that cannot be
reset is created with by_start_sequence. So are push consumers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from jsplan.documents.plan import FieldChange
from jsplan.documents.step_kinds import Effect
from jsplan.resources.fields import Config
from jsplan.resources.server_features import RESET_LEVEL

#: The fields that only the creation of a consumer reads.
START_FIELDS: Final = ("deliver_policy", "opt_start_seq", "opt_start_time")
#: Those that are not known before apply where the start is a position.
UNKNOWN_FIELDS: Final = START_FIELDS[:2]
#: `plain`: as declared, at the same position. `reset`: then reset. `start`: by start sequence.
PositionMethod = Literal["plain", "reset", "start"]


def choose_position_method(
    position: int, config: Mapping[str, Any], level: int, *, retention: str, first_seq: int
) -> PositionMethod:
    """Choose the method by which a consumer with `config` gets `position`.

    `first_seq` is the first sequence of the stream. In a work queue everything is unfinished, and
    only `all` is accepted (10101).
    """
    policy = config.get("deliver_policy", "all")
    if retention == "workqueue" or (policy == "all" and position <= max(first_seq, 1)):
        return "plain"
    later = policy == "by_start_sequence" and int(config.get("opt_start_seq") or 0) > position
    if (
        level >= RESET_LEVEL
        and policy in ("all", "by_start_time", "by_start_sequence")
        and not (later or config.get("deliver_subject"))
    ):
        return "reset"
    return "start"


def may_need_start(config: Mapping[str, Any], level: int, *, retention: str) -> bool:
    """Check whether a consumer may get a position, while a message is before it, as its start."""
    behind_all = 1 << 62
    method = choose_position_method(behind_all, config, level, retention=retention, first_seq=0)
    return method == "start"


def can_reset_in_place(position: int, config: Mapping[str, Any], level: int) -> bool:
    """Check whether an existing consumer with `config` can be set to `position`.

    One with by_start_time is replaced: the sequence of its start is not known.
    """
    policy = config.get("deliver_policy", "all")
    start = int(config.get("opt_start_seq") or 0) if policy == "by_start_sequence" else 0
    settable = policy in ("all", "by_start_sequence") and start <= position
    return level >= RESET_LEVEL and settable


def with_start_sequence(position: int, config: Mapping[str, Any]) -> Config:
    """Return the configuration with a start at `position` in place of its own."""
    start = {"deliver_policy": "by_start_sequence", "opt_start_seq": position}
    return without_start(config) | start


def without_start(config: Mapping[str, Any]) -> Config:
    """Return the configuration without its start: the server then begins with the first message."""
    return {name: value for name, value in config.items() if name not in START_FIELDS}


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
