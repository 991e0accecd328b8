"""Push filters of Spark down to the read of a stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql import datasource

if hasattr(datasource, "Filter"):
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

#: Maximum clock difference (ns) of successive leaders. Times of a stream may go back by it.
MAX_CLOCK_SKEW: Final = 300 * 1_000_000_000
MAX_BOUND: Final = (1 << 63) - 1
#: Before Spark 4.1 filters are not pushed down.
HAS_FILTERS: Final = hasattr(datasource, "Filter")


class PushedBounds(Struct, frozen=True):
    """Bounds of a read, all inclusive.

    Sequences, times in ns (None: none) widened by `MAX_CLOCK_SKEW`, and subjects. `is_empty`: the
    bounds exclude each other.
    """

    first: int = 0
    last: int = MAX_BOUND
    since: int | None = None
    until: int | None = None
    filters: tuple[str, ...] = ()
    is_empty: bool = False


def push_filters(
    pushed: PushedBounds, filters: Iterable[Filter]
) -> tuple[PushedBounds, list[Filter]]:
    """Narrow the bounds with the filters, and return those that Spark must apply itself."""
    remaining = []
    for candidate in filters:
        narrowed = _narrow(pushed, candidate)
        pushed = narrowed if narrowed is not None else pushed
        if narrowed is None or _filter_column(candidate) != "seq":
            remaining.append(candidate)
    return replace(pushed, is_empty=pushed.is_empty or pushed.first > pushed.last), remaining


def _filter_column(candidate: Filter) -> str:
    path: tuple[str, ...] = getattr(candidate, "attribute", ())
    return str(path[0]) if len(path) == 1 else ""


def _narrow(pushed: PushedBounds, candidate: Filter) -> PushedBounds | None:
    """Return the bounds with one filter more; None if it does not narrow them."""
    column, bounds = _filter_column(candidate), _find_bounds(candidate)
    if column == "subject":
        return _narrow_subject(pushed, candidate)
    if column == "seq" and isinstance(candidate, IsNotNull):
        return pushed
    if bounds is None or column not in ("seq", "time"):
        return None
    low, high = bounds
    if column == "seq":
        return replace(pushed, first=max(pushed.first, low), last=min(pushed.last, high))
    since, until = pushed.since, pushed.until
    if low > -MAX_BOUND:
        since = max(since or 0, low - MAX_CLOCK_SKEW)
    if high < MAX_BOUND:
        until = min(MAX_BOUND if until is None else until, high + MAX_CLOCK_SKEW)
    return replace(pushed, since=since, until=until)


def _find_bounds(candidate: Filter) -> tuple[int, int] | None:
    """Return the lowest and the highest whole number that a filter selects."""
    match candidate:
        case EqualTo(value=int(value)):
            return value, value
        case GreaterThan(value=int(value)):
            return value + 1, MAX_BOUND
        case GreaterThanOrEqual(value=int(value)):
            return value, MAX_BOUND
        case LessThan(value=int(value)):
            return -MAX_BOUND, value - 1
        case LessThanOrEqual(value=int(value)):
            return -MAX_BOUND, value
    return None


def _narrow_subject(pushed: PushedBounds, candidate: Filter) -> PushedBounds | None:
    """Narrow the subjects once: a consumer matches any of its filters, not all of them."""
    if pushed.filters:
        return None
    match candidate:
        case EqualTo(value=str(value)) if _is_literal(value):
            return replace(pushed, filters=(value,))
        case In(value=values) if values and all(
            isinstance(v, str) and _is_literal(v) for v in values
        ):
            return replace(pushed, filters=tuple(dict.fromkeys(values)))
        case StringStartsWith(value=str(value)) if (
            parent := value.rpartition(".")[0]
        ) and _is_literal(parent):
            return replace(pushed, filters=(f"{parent}.>",))
    return None


def _is_literal(subject: str) -> bool:
    """Return True for a subject without wildcards, blanks or empty tokens."""
    parts = subject.split(".")
    return all(
        part and part not in ("*", ">") and not any(c.isspace() for c in part) for part in parts
    )
