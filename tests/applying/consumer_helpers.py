"""Helpers for tests of consumers: publish, pull, acknowledge and read the position."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.sequences.model import filters_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.support.raw import Raw
    from tests.support.workspaces import Space


def write(space: Space, stream: dict[str, Any] | None = None, **consumer: Any) -> Space:
    """Write one stream with one consumer, which acknowledges each message by default."""
    body = {"name": "A", "subjects": ["a.>"]} | (stream or {})
    return space.write(
        streams=[body | {"consumers": [{"name": "C", "ack_policy": "explicit"} | consumer]}]
    )


def fill(raw: Raw, count: int, subjects: tuple[str, ...] = ("a.1", "a.2", "a.3")) -> None:
    """Publish messages to the subjects in turn, and require an acknowledgement of each."""
    for number in range(count):
        answer = json.loads(
            raw.request(subjects[number % len(subjects)], f"message {number}".encode())[1]
        )
        assert "seq" in answer, answer


def pull(
    raw: Raw, stream: str, consumer: str, count: int, ack: Collection[int] | None = ()
) -> list[int]:
    """Pull up to `count` messages and return their sequences; `ack=None` acknowledges all.

    The server counts what was just stored a moment later. Until then, a request that does not wait
    gets nothing.
    """
    replies = raw.pull(stream, consumer, count, wait=False)
    if not replies and _is_more_stored(raw, stream, consumer):
        replies = raw.pull(stream, consumer, 1)
        replies += raw.pull(stream, consumer, count - 1, wait=False)
    raw.ack(reply for reply in replies if ack is None or stream_sequence(reply) in ack)
    return [stream_sequence(reply) for reply in replies]


def _is_more_stored(raw: Raw, stream: str, consumer: str) -> bool:
    """Check whether the stream stores a message that the consumer has not delivered."""
    info = raw.consumer_info(stream, consumer)
    seq = info["delivered"]["stream_seq"] + 1
    return any(
        "message" in raw.api(f"$JS.API.STREAM.MSG.GET.{stream}", {"seq": seq, "next_by_subj": each})
        for each in filters_of(info["config"]) or [">"]
    )


def stream_sequence(reply: str) -> int:
    """Read the stream sequence from the reply subject of a delivered message."""
    return int(reply.split(".")[-4])


def wait_until_resumed(raw: Raw, stream: str, consumer: str) -> None:
    """Wait until the pause of a consumer is over."""
    wait_until(
        lambda: not raw.consumer_info(stream, consumer).get("paused"), f"{consumer} to resume"
    )
