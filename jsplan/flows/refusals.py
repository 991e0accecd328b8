"""Messages that a stream refuses of what flows into it: there the flow stops.

A full stream does with `discard: new`, and each one with a smaller `max_msg_size` at the first
message that is larger with its headers (measured on 2.12 and 2.15).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsplan.flows.graph import StreamNode


def limit_of(config: Mapping[str, Any], name: str) -> int:
    """Return a limit of a stream; 0: none."""
    return max(0, int(config.get(name) or 0))


def count_without_place(
    config: Mapping[str, Any], state: Mapping[str, Any], messages: int | None, size: int | None
) -> int | None:
    """Return how many messages, of so many bytes in all, a stream may have no place for.

    None: unknown, as the arguments may be.
    """
    if config.get("discard", "old") != "new":
        return 0
    most, most_bytes = (limit_of(config, name) for name in ("max_msgs", "max_bytes"))
    by_subject = config.get("discard_new_per_subject") and limit_of(config, "max_msgs_per_subject")
    has = int(state.get("bytes") or 0)
    if by_subject or (most_bytes and (size is None or has + size > most_bytes)):
        return messages
    if not most or messages is None:
        return messages if most else 0
    return max(0, int(state.get("messages") or 0) + messages - most)


def is_full(config: Mapping[str, Any], state: Mapping[str, Any], size: int) -> bool:
    """Check whether a stream has no place for a message of so many bytes, of whatever subject."""
    of_all = {name: value for name, value in config.items() if name != "max_msgs_per_subject"}
    return bool(count_without_place(of_all, state, 1, size))


def may_have_larger(origin: StreamNode, size: int) -> bool:
    """Check whether an origin may have a message of more bytes."""
    if 0 < limit_of(origin.config, "max_msg_size") <= size:
        return False
    return not origin.is_read or int(origin.state.get("bytes") or 0) > size
