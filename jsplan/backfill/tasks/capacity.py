"""Check the capacity of a target against its limits on messages and bytes."""

from __future__ import annotations

from collections.abc import Callable
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


def find_capacity_problem(
    address: str, info: dict[str, Any], messages: int, size: int
) -> CapacityProblem | None:
    """Return the reason why a stream cannot take a copy, or None.

    `info` is its STREAM.INFO. The copy has `messages` messages, of `size` bytes in their
    staging streams.
    """
    config, state = info["config"], info["state"]
    size += messages * _OVERHEAD_BYTES
    is_full = config.get("discard") == "new"
    limits: tuple[tuple[str, int, str, Callable[[int], str]], ...] = (
        (
            "max_msgs",
            state["messages"] + messages,
            f"has {state['messages']:,} messages, and {messages:,} will be copied",
            lambda most: f"{most:,} messages",
        ),
        (
            "max_bytes",
            state["bytes"] + size,
            f"has {format_bytes(state['bytes'])}, and about {format_bytes(size)} will be copied",
            format_bytes,
        ),
    )
    for name, wanted, problem, show in limits:
        if 0 <= (most := int(config.get(name, -1))) < wanted:
            end = (
                f"It accepts at most {show(most)} (discard: new)"
                if is_full
                else f"It keeps {show(most)} and would delete its oldest messages"
            )
            return CapacityProblem(f"{address} {problem}. {end}", deletes=not is_full)
    each = int(config.get("max_msgs_per_subject", -1))
    if each <= 0 or not messages:
        return None
    limit = f"{count_text(each, 'message')} per subject"
    if is_full and config.get("discard_new_per_subject"):
        return CapacityProblem(
            f"{address} accepts {limit} and refuses more (discard_new_per_subject), "
            "so a copy may stop before its end",
            deletes=False,
        )
    return CapacityProblem(
        f"{address} keeps {limit}. Copied messages would replace its current ones", deletes=True
    )
