"""Check the capacity of a target against its limits on messages and bytes."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from jsplan.units import count_text, format_bytes

#: Approximate bytes that one message grows by at the target: the server adds a source header,
#: and the headers of the staging stream are removed.
_OVERHEAD_BYTES: Final = 64


class CapacityProblem(Struct, frozen=True):
    """Reason why a target has no capacity for a copy.

    `deletes`: the target would delete its own messages. Otherwise it would refuse new ones.
    """

    text: str
    deletes: bool


def estimate_overhead(messages: int) -> int:
    """Estimate the bytes that messages take at the target beyond those in their staging stream."""
    return messages * _OVERHEAD_BYTES


def find_capacity_problem(
    address: str, info: dict[str, Any], messages: int, size: int
) -> CapacityProblem | None:
    """Return the reason why a stream cannot take a copy, or None.

    `info` is its STREAM.INFO. The copy has `messages` messages of `size` bytes together.
    """
    config, state = info["config"], info["state"]
    full = config.get("discard") == "new"
    most, largest, each = (
        int(config.get(name, -1)) for name in ("max_msgs", "max_bytes", "max_msgs_per_subject")
    )
    if 0 <= most < state["messages"] + messages:
        has, keeps = (
            f"has {state['messages']:,} messages, and {messages:,} will be copied",
            f"{most:,} messages",
        )
    elif 0 <= largest < state["bytes"] + size:
        has, keeps = (
            f"has {format_bytes(state['bytes'])}, and about {format_bytes(size)} will be copied",
            format_bytes(largest),
        )
    elif each > 0 and messages:
        return _build_subject_problem(
            address, each, full=full and bool(config.get("discard_new_per_subject"))
        )
    else:
        return None
    if full:
        return CapacityProblem(
            f"{address} {has}. It accepts at most {keeps} (discard: new)", deletes=False
        )
    return CapacityProblem(
        f"{address} {has}. It keeps {keeps} and would delete its oldest messages", deletes=True
    )


def _build_subject_problem(address: str, each: int, *, full: bool) -> CapacityProblem:
    limit = f"{count_text(each, 'message')} per subject"
    if full:
        return CapacityProblem(
            f"{address} accepts {limit} and refuses more (discard_new_per_subject), "
            "so a copy may stop before its end",
            deletes=False,
        )
    return CapacityProblem(
        f"{address} keeps {limit}. Copied messages would replace its current ones", deletes=True
    )
