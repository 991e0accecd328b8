"""Whether a target has room for what is to come: by its own limits on messages and bytes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from jsplan.units import format_bytes

#: What a message is larger by at the target than in its staging stream: the server's line that says where it took it from, without the
#: header of the way through the staging stream. About.
_OVERHEAD_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class CapacityProblem:
    """Why a target has no room. `deletes`: it would make some by deleting messages of its own; otherwise it would take no more."""

    text: str
    deletes: bool


def estimate_overhead(messages: int) -> int:
    """So many bytes more than in their staging stream messages take at the target."""
    return messages * _OVERHEAD_BYTES


def find_capacity_problem(
    address: str, info: dict[str, Any], messages: int, size: int
) -> CapacityProblem | None:
    """What keeps a stream with this STREAM.INFO from taking `messages` more messages of `size` bytes together; None: nothing."""
    config, state = info["config"], info["state"]
    full = config.get("discard") == "new"
    most, largest, each = (
        int(config.get(name, -1)) for name in ("max_msgs", "max_bytes", "max_msgs_per_subject")
    )
    if 0 <= most < state["messages"] + messages:
        has, keeps = (
            f"has {state['messages']:,} messages, and {messages:,} more are to come",
            f"{most:,} messages",
        )
    elif 0 <= largest < state["bytes"] + size:
        has, keeps = (
            f"has {format_bytes(state['bytes'])}, and about {format_bytes(size)} more are to come",
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
            f"{address} {has}; it takes no more than {keeps} (discard: new)", deletes=False
        )
    return CapacityProblem(
        f"{address} {has}; it keeps {keeps} and would delete its oldest", deletes=True
    )


def _build_subject_problem(address: str, each: int, *, full: bool) -> CapacityProblem:
    kept = f"{each:,} message{'' if each == 1 else 's'} per subject"
    if full:
        return CapacityProblem(
            f"{address} takes {kept} and refuses more (discard_new_per_subject), so a copy may stop in its middle",
            deletes=False,
        )
    return CapacityProblem(
        f"{address} keeps {kept}, and what is copied counts as newer than what it has", deletes=True
    )
