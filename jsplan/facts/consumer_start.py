"""The start of a consumer, for servers that do not report it: counted back by deliveries."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jsplan.facts.live import LiveObject
from jsplan.facts.messages import MessageReader, ReadBudget
from jsplan.jetstream import DomainApi
from jsplan.subjects import is_subset


async def find_first_delivered(
    api: DomainApi, stream: LiveObject, filters: Sequence[str], *, upto: int, count: int
) -> int:
    """Find the `count`th message back from `upto` that passes the filters, or the first one.

    Reads the messages between the two, and none where the stream has no more than `count`. Raises
    ApiError.
    """
    name = stream.address.stream
    answer = await api.request(f"STREAM.INFO.{name}", {"deleted_details": True})
    state, gaps = answer["state"], sorted(answer["state"].get("deleted") or ())
    if count >= state["messages"]:
        return int(state["first_seq"])
    last = min(upto, state["last_seq"])
    reader = MessageReader(
        api,
        name,
        stream.raw["storage"],
        state["first_seq"],
        last,
        batches=False,
        budget=ReadBudget(sys.maxsize),
        gaps=gaps,
    )
    first = upto + 1
    async for message in reader.read_backward():
        if not filters or any(is_subset(message.subject, subject) for subject in filters):
            first, count = message.seq, count - 1
        if count <= 0:
            break
    return first
