"""JS226: nanoseconds or bytes that are probably a missing unit."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import LintItem, View
from jsplan.units import format_duration

_TIMES = (
    "max_age",
    "duplicate_window",
    "ack_wait",
    "inactive_threshold",
    "priority_timeout",
    "idle_heartbeat",
)
_MILLISECOND = 1_000_000
_SMALL = 1024


def check(view: View) -> Iterator[Hit]:
    """Times below a millisecond, sizes below a kibibyte."""
    for item in (*view.streams(), *view.consumers()):
        yield from _times(item)
        if item.address.is_stream:
            yield from _sizes(item)


def _times(item: LintItem) -> Iterator[Hit]:
    found = [(name, item.declared_fields.get(name) or 0) for name in _TIMES] + [
        ("backoff", wait) for wait in item.declared_fields.get("backoff") or ()
    ]
    for name, value in found:
        if isinstance(value, int) and 0 < value < _MILLISECOND:
            yield Hit(
                item.address,
                f"{name} is {format_duration(value)}: an integer is nanoseconds",
                name,
                f"Was {name}: {value}s meant?",
            )


def _sizes(item: LintItem) -> Iterator[Hit]:
    value = item.declared_fields.get("max_bytes") or 0
    if isinstance(value, int) and 0 < value < _SMALL:
        text = (
            f"max_bytes is {value} bytes: a message with its headers hardly fits,"
            " and is acknowledged nevertheless"
        )
        yield Hit(item.address, text, "max_bytes", f"Was max_bytes: {value}GiB meant?")


RULE = Rule(
    "JS226",
    "warning",
    check,
    why=(
        "The API counts in nanoseconds and bytes, and so does an integer in the files. An"
        " ack_wait of 30 redelivers each message immediately, again and again. A stream with"
        " max_bytes of 10 removes each message when it acknowledges it."
    ),
    fix="Write the unit: 30s, 10GiB.",
)
