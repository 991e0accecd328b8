"""Finished messages that a new consumer which resumes at a position is given again. Pure.

Three values of a consumer are unreliable after a purge by filter (measured on 2.10 to 2.15). The
`consumer_seq` of its floor may have passed deliveries that are not finished; then nothing is stored
up to the floor. Pending messages may have been deleted: a purge of several messages does not remove
them. A message may be pending below the floor: that shows only where more are pending than were
delivered behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def max_redelivered(
    config: Mapping[str, Any],
    consumer: Mapping[str, Any],
    stream: Mapping[str, Any],
    position: int | None,
) -> int:
    """Return the most finished messages that a successor of a consumer is given again.

    `consumer` and `stream` are the counts in their INFO. The successor resumes at `position`, or
    (None: unknown) as many messages back as there were deliveries.
    """
    delivered, floor = (consumer.get(name) or {} for name in ("delivered", "ack_floor"))
    end, made = int(delivered.get("stream_seq") or 0), int(delivered.get("consumer_seq") or 0)
    out, start = int(consumer.get("num_ack_pending") or 0), (position or 1) - 1
    if config.get("ack_policy", "none") == "none" or not made or end - start <= out:
        return 0
    deliveries = made - (0 if position is None else int(floor.get("consumer_seq") or 0))
    first, last, messages = (
        int(stream.get(name) or 0) for name in ("first_seq", "last_seq", "messages")
    )
    between = max(0, min(end, last) - max(start + 1, first) + 1)
    has_all = messages == last - first + 1 and between == end - start
    missing, stored = 0 if has_all else end - start, min(between, messages)
    most = min(stored - max(0, out - missing), max(0, deliveries - out))
    if missing and position is not None and not (messages and first <= start):
        most = max(most, stored - out)
    return max(0, most)
