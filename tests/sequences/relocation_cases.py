"""Sequences with relocations, each of a mended error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.sequences.cases import Case, Edit
from tests.sequences.fixed_cases import KEPT, FixedCase, consumer, publish, stream

if TYPE_CHECKING:
    from collections.abc import Iterator

ERRORED: Final = frozenset({"errored"})


def _downstream_cases() -> Iterator[tuple[str, FixedCase]]:
    """A stream that sources a relocated one."""
    t = "ra0x"
    copy = {
        "name": f"{t}M",
        "domain": "hub",
        "lifecycle": KEPT,
        "sources": [{"name": f"{t}S", "domain": "hub"}],
        "consumers": [consumer("C")],
    }
    case = Case(
        t,
        {"streams": [stream(t, "limits"), copy]},
        (publish(t, "abc"),),
        (
            Edit("relocate", f"{t}S", fields={"domain": "leaf"}),
            Edit("set", f"{t}M", fields={"storage": "memory"}),
        ),
    )
    yield "a stream that sources a relocated one is replaced", FixedCase(case, ERRORED)


def _meddled_cases() -> Iterator[tuple[str, FixedCase]]:
    """Messages that arrive after the plan, more than the limits of the target hold."""
    t = "ra1x"
    case = Case(
        t,
        {"streams": [stream(t, "limits")]},
        (publish(t, "abcabca"),),
        (
            Edit("relocate", f"{t}S", fields={"domain": "leaf"}),
            Edit("set", f"{t}S", fields={"max_msgs": 5}),
        ),
        (publish(t, "bcbcaa"),),
        {"safe_below": 0},
    )
    yield "more is deleted than the plan said", FixedCase(case, frozenset({"stale"}))


def _limited_cases() -> Iterator[tuple[str, FixedCase]]:
    """An interest stream that gets limits for its consumers while it is relocated."""
    t = "ra2x"
    few = {"max_ack_pending": 50}
    case = Case(
        t,
        {"streams": [stream(t, "interest") | {"consumers": [consumer("C") | few]}]},
        (publish(t, "abca"),),
        (
            Edit("set", f"{t}S", fields={"consumer_limits": {"max_ack_pending": 100}}),
            Edit("relocate", f"{t}S", fields={"domain": "leaf"}),
        ),
    )
    yield "an interest stream gets limits for its consumers", FixedCase(case)


def _resized_cases() -> Iterator[tuple[str, FixedCase]]:
    """A stream whose messages have another size in the storage of its target."""
    for number, (before, after) in enumerate((("file", "memory"), ("memory", "file"))):
        t = f"ra{3 + number}x"
        case = Case(
            t,
            {"streams": [stream(t, "limits") | {"storage": before}]},
            (publish(t, "abcabcabcab"),),
            (
                Edit("relocate", f"{t}S", fields={"domain": "leaf"}),
                Edit("set", f"{t}S", fields={"storage": after, "max_bytes": 300}),
            ),
        )
        yield f"from {before} to {after} with max_bytes", FixedCase(case)


RELOCATED: Final[dict[str, FixedCase]] = {
    name: fixed
    for group in (_downstream_cases, _meddled_cases, _limited_cases, _resized_cases)
    for name, fixed in group()
}
