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
SKEW: Final = 300 * 1_000_000_000
FAR: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Pushed:
    """Bounds, all included: sequences, times in ns (None: none) widened by `SKEW`, and subjects. `nothing`: they exclude each other."""

    first: int = 0
    last: int = FAR
    since: int | None = None
    until: int | None = None
    filters: tuple[str, ...] = ()
    nothing: bool = False


def take(pushed: Pushed, filters: Iterable[Filter]) -> tuple[Pushed, list[Filter]]:
    """Narrow by what can be used; what is returned Spark has to apply itself."""
    left = []
    for one in filters:
        narrowed = _narrowed(pushed, one)
        pushed = narrowed if narrowed is not None else pushed
        if narrowed is None or _column(one) not in ("seq", None):
            left.append(one)
    return replace(pushed, nothing=pushed.nothing or pushed.first > pushed.last), left


def _column(one: Filter) -> str | None:
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return str(path[0]) if len(path) == 1 else ""


def _narrowed(pushed: Pushed, one: Filter) -> Pushed | None:
    match _column(one), one:
        case "seq", IsNotNull():
            return pushed
        case "seq", _:
            return _by_sequence(pushed, one)
        case "time", _:
            return _by_time(pushed, one)
        case "subject", _:
            return _by_subject(pushed, one)
    return None


def _by_sequence(pushed: Pushed, one: Filter) -> Pushed | None:
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


def _by_time(pushed: Pushed, one: Filter) -> Pushed | None:
    match one:
        case GreaterThan(value=int(value)) | GreaterThanOrEqual(value=int(value)) | EqualTo(value=int(value)):
            pushed = replace(pushed, since=max(pushed.since or 0, value - SKEW, 0))
    match one:
        case LessThan(value=int(value)) | LessThanOrEqual(value=int(value)) | EqualTo(value=int(value)):
            pushed = replace(pushed, until=min(pushed.until if pushed.until is not None else FAR, value + SKEW))
    return pushed


def _by_subject(pushed: Pushed, one: Filter) -> Pushed | None:
    """Subjects only where none is asked for already: a consumer takes one of several, not all of them."""
    if pushed.filters:
        return None
    match one:
        case EqualTo(value=str(value)) if _literal(value):
            return replace(pushed, filters=(value,))
        case In(value=values) if values and all(isinstance(v, str) and _literal(v) for v in values):
            return replace(pushed, filters=_unique(values))
        case StringStartsWith(value=str(value)) if (parent := value.rpartition(".")[0]) and _literal(parent):
            return replace(pushed, filters=(f"{parent}.>",))
    return None


def _unique(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _literal(subject: str) -> bool:
    """Whether it is a subject that messages can have."""
    parts = subject.split(".")
    return all(part and part not in ("*", ">") and not any(c.isspace() for c in part) for part in parts)
