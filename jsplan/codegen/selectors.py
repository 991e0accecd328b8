"""The shortest selector for the given domains, from labels, globs, ranges and exceptions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import groupby

from jsplan.config.model import Domain

#: The number of exceptions (`!store-017`) that is easier to read than the names.
MAX_EXCEPTIONS = 3
_NUMBERED = re.compile(r"(.*?)(\d{1,9})(\D*)")


def shortest_selector(
    keys: Collection[str], domains: Mapping[str, Domain], *, without: str | None = None
) -> str | list[str]:
    """Return one name, a label, a glob, or a list.

    `without` is a domain that no pattern matches in any case.
    """
    wanted = set(keys)
    order = [key for key, domain in domains.items() if domain.is_own and key != without]
    if len(wanted) == 1:
        return next(iter(wanted))
    if len(wanted) > 2 or _has_exact_label(order, domains, wanted):
        for text, matched in _candidate_patterns(order, domains, wanted):
            if matched == wanted:
                return text
    short = _with_exceptions(order, domains, wanted)
    return short or _compress_ranges(
        [key for key in [*order, *sorted(wanted - set(order))] if key in wanted]
    )


def _has_exact_label(order: list[str], domains: Mapping[str, Domain], wanted: set[str]) -> bool:
    return any(
        matched == wanted
        for text, matched in _candidate_patterns(order, domains, wanted)
        if text.startswith("label:")
    )


def _candidate_patterns(
    order: list[str], domains: Mapping[str, Domain], wanted: set[str]
) -> Iterator[tuple[str, set[str]]]:
    """Yield patterns with their matches: labels of the workspace first."""
    for label in sorted(
        {label for key in wanted if key in domains for label in domains[key].labels}
    ):
        yield f"label:{label}", {key for key in order if label in domains[key].labels}
    prefix = _common_prefix(wanted)
    if len(prefix) > 1:
        yield f"{prefix}*", {key for key in order if key.startswith(prefix)}
    yield "*", set(order)


def _common_prefix(keys: Collection[str]) -> str:
    """Return the common beginning, up to a number or the last word."""
    first, last = min(keys), max(keys)
    same = next(
        (n for n, (one, other) in enumerate(zip(first, last, strict=False)) if one != other),
        min(len(first), len(last)),
    )
    return first[:same].rstrip("0123456789")


def _with_exceptions(
    order: list[str], domains: Mapping[str, Domain], wanted: set[str]
) -> list[str] | None:
    found = [
        [text, *(f"!{key}" for key in order if key in matched - wanted)]
        for text, matched in _candidate_patterns(order, domains, wanted)
        if matched > wanted and len(matched - wanted) <= min(MAX_EXCEPTIONS, len(wanted) - 2)
    ]
    return min(found, key=len, default=None)


def _compress_ranges(keys: list[str]) -> str | list[str]:
    """Return the names, with three or more consecutive ones as one range."""
    out: list[str] = []
    for (prefix, width, tail), some in groupby(keys, key=_split_number):
        group = list(some)
        out += _format_ranges(group, prefix, width, tail) if width else group
    return out[0] if len(out) == 1 else out


def _split_number(key: str) -> tuple[str, int, str]:
    """Split a key into the common parts of its range and its number; width 0 without a number."""
    found = _NUMBERED.fullmatch(key)
    return (found[1], len(found[2]), found[3]) if found else (key, 0, "")


def _format_ranges(keys: list[str], prefix: str, width: int, tail: str) -> list[str]:
    numbers = sorted(int(key[len(prefix) : len(prefix) + width]) for key in keys)
    out: list[str] = []
    for _, some in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [f"{number:0{width}d}" for _, number in some]
        out += (
            [f"{prefix}{{{run[0]}..{run[-1]}}}{tail}"]
            if len(run) > 2
            else [f"{prefix}{number}{tail}" for number in run]
        )
    return out
