"""Which filters of Spark narrow what is read from a stream, and which of them Spark need not look at again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

#: How far the clocks of servers that followed each other as leader may be apart: times of a stream can go back by so much. ns.
MAX_CLOCK_SKEW: Final = 300 * 1_000_000_000
MAX_BOUND: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class PushedBounds:
    """Bounds, all included: sequences, times in ns (None: none) widened by `MAX_CLOCK_SKEW`, and subjects. `is_empty`: they exclude each other."""

    first: int = 0
    last: int = MAX_BOUND
    since: int | None = None
    until: int | None = None
    filters: tuple[str, ...] = ()
    is_empty: bool = False


def push_filters(
    pushed: PushedBounds, filters: Iterable[Filter]
) -> tuple[PushedBounds, list[Filter]]:
    """Narrow by what can be used; what is returned Spark has to apply itself."""
    left = []
    for one in filters:
        narrowed = _narrow(pushed, one)
        pushed = narrowed if narrowed is not None else pushed
        if narrowed is None or _filter_column(one) not in ("seq", None):
            left.append(one)
    return replace(pushed, is_empty=pushed.is_empty or pushed.first > pushed.last), left


def _filter_column(one: Filter) -> str | None:
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return str(path[0]) if len(path) == 1 else ""


def _narrow(pushed: PushedBounds, one: Filter) -> PushedBounds | None:
    match _filter_column(one), one:
        case "seq", IsNotNull():
            return pushed
        case "seq", _:
            return _narrow_sequence(pushed, one)
        case "time", _:
            return _narrow_time(pushed, one)
        case "subject", _:
            return _narrow_subject(pushed, one)
    return None


def _narrow_sequence(pushed: PushedBounds, one: Filter) -> PushedBounds | None:
    match one:
        case EqualTo(value=int(value)):
            return replace(pushed, first=max(pushed.first, value), last=min(pushed.last, value))
        case GreaterThan(value=int(value)):
            return replace(pushed, first=max(pushed.first, value + 1))
        case GreaterThanOrEqual(value=int(value)):
            return replace(pushed, first=max(pushed.first, value))
        case LessThan(value=int(value)):
            return replace(pushed, last=min(pushed.last, value - 1))
        case LessThanOrEqual(value=int(value)):
            return replace(pushed, last=min(pushed.last, value))
    return None


def _narrow_time(pushed: PushedBounds, one: Filter) -> PushedBounds | None:
    match one:
        case (
            GreaterThan(value=int(value))
            | GreaterThanOrEqual(value=int(value))
            | EqualTo(value=int(value))
        ):
            pushed = replace(pushed, since=max(pushed.since or 0, value - MAX_CLOCK_SKEW, 0))
    match one:
        case (
            LessThan(value=int(value))
            | LessThanOrEqual(value=int(value))
            | EqualTo(value=int(value))
        ):
            pushed = replace(
                pushed,
                until=min(
                    pushed.until if pushed.until is not None else MAX_BOUND, value + MAX_CLOCK_SKEW
                ),
            )
    return pushed


def _narrow_subject(pushed: PushedBounds, one: Filter) -> PushedBounds | None:
    """Subjects only where none is asked for already: a consumer takes one of several, not all of them."""
    if pushed.filters:
        return None
    match one:
        case EqualTo(value=str(value)) if _is_literal(value):
            return replace(pushed, filters=(value,))
        case In(value=values) if values and all(
            isinstance(v, str) and _is_literal(v) for v in values
        ):
            return replace(pushed, filters=_unique(values))
        case StringStartsWith(value=str(value)) if (
            parent := value.rpartition(".")[0]
        ) and _is_literal(parent):
            return replace(pushed, filters=(f"{parent}.>",))
    return None


def _unique(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _is_literal(subject: str) -> bool:
    """Whether it is a subject that messages can have."""
    parts = subject.split(".")
    return all(
        part and part not in ("*", ">") and not any(c.isspace() for c in part) for part in parts
    )
