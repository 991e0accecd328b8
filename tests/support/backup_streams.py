"""Streams with everything that a backup must restore, and their full content."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from tests.support.raw import encode
from tests.support.stream_content import read_each

if TYPE_CHECKING:
    from tests.support.raw import Raw

POSITION_FIELDS = (
    "delivered",
    "ack_floor",
    "num_ack_pending",
    "num_redelivered",
    "num_pending",
    "num_waiting",
)
HOUR = 3600 * 10**9


def create_lively_stream(
    raw: Raw, name: str, prefix: str, *, messages: int = 60, size: int = 100, **config: Any
) -> None:
    """Create a stream with headers and gaps, and consumers in different positions."""
    raw.api_ok(f"{prefix}.STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.*"]} | config)
    consumer(raw, name, "BUSY", prefix, ack_wait=HOUR)
    consumer(raw, name, "FRESH", prefix, filter_subject=f"{name}.3", deliver_policy="new")
    consumer(raw, name, "DONE", prefix, ack_policy="none")
    noise = random.Random(name)
    raw.publish_all(
        encode(
            f"{name}.{number % 5}",
            noise.randbytes(size),
            {"Number": str(number), "Nats-Msg-Id": f"{name}-{number}"},
        )
        for number in range(messages)
    )
    while raw.api_ok(f"{prefix}.STREAM.INFO.{name}")["state"]["messages"] < messages:
        pass
    for seq in (1, 2, 17, messages):
        raw.api_ok(f"{prefix}.STREAM.MSG.DELETE.{name}", {"seq": seq})
    # 2.11 counts a deleted message as pending for good if a consumer delivers meanwhile.
    for each in ("BUSY", "DONE"):
        while raw.api_ok(f"{prefix}.CONSUMER.INFO.{name}.{each}")["num_pending"] != messages - 4:
            pass
    deliver_and_ack(raw, name, "BUSY", prefix)
    pull(raw, name, "DONE", prefix, 9)
    info = f"{prefix}.CONSUMER.INFO.{name}.DONE"
    while raw.api_ok(info)["delivered"]["consumer_seq"] < 9:  # a cluster counts a moment later
        pass


def consumer(raw: Raw, stream: str, name: str, prefix: str, **config: Any) -> None:
    """Create a durable pull consumer."""
    body = {"durable_name": name, "name": name, "ack_policy": "explicit"} | config
    raw.api_ok(f"{prefix}.CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": body})


def pull(raw: Raw, stream: str, name: str, prefix: str, count: int) -> list[str]:
    """Deliver `count` messages and return their ack subjects.

    As clients do, it asks again: a cluster may deliver nothing for some seconds after a restore.
    """
    inbox, replies = f"pulled.{stream}.{name}", list[str]()
    raw.subscribe(inbox)
    while len(replies) < count:
        request = {"batch": count - len(replies), "expires": 2_000_000_000}
        subject = f"{prefix}.CONSUMER.MSG.NEXT.{stream}.{name}"
        raw.publish(subject, json.dumps(request).encode(), reply=inbox)
        while len(replies) < count:
            _, reply, headers, _ = raw.next_with_reply()
            if "Status" in headers:
                break
            replies.append(reply)
    raw.unsubscribe()
    return replies


def deliver_and_ack(raw: Raw, stream: str, name: str, prefix: str) -> None:
    """Deliver ten messages: acknowledge five and two more, deliver one again."""
    replies = pull(raw, stream, name, prefix, 10)
    for reply in (*replies[:5], replies[7], replies[8]):
        raw.request(reply, b"+ACK")
    raw.request(replies[5], b"-NAK")
    pull(raw, stream, name, prefix, 1)
    while raw.api_ok(f"{prefix}.CONSUMER.INFO.{stream}.{name}")["num_redelivered"] != 1:
        pass


def capture_stream(raw: Raw, stream: str, prefix: str) -> dict[str, Any]:
    """Return configuration, state, every message, and every consumer with its position.

    Archives of server 2.15 lack two things, which are left out: the time of a deleted last message,
    and a position before the first message. Such a consumer comes back right before the first
    message.
    """
    info = raw.api_ok(f"{prefix}.STREAM.INFO.{stream}", {"deleted_details": True})
    state = info["state"]
    names = raw.api_ok(f"{prefix}.CONSUMER.NAMES.{stream}")["consumers"] or []
    consumers = {name: raw.api_ok(f"{prefix}.CONSUMER.INFO.{stream}.{name}") for name in names}
    messages = read_each(raw, stream, prefix)
    dropped = {"bytes", "last_ts"} if state["last_seq"] in state.get("deleted", ()) else {"bytes"}
    bare = {name: value for name, value in info["config"].items() if name != "metadata"}
    return {
        "config": bare,
        "state": {name: value for name, value in state.items() if name not in dropped},
        "messages": [message.get("message", {"missing": True}) for message in messages],
        "consumers": {
            name: _position(info, (state["first_seq"] or 1) - 1) for name, info in consumers.items()
        },
    }


def _position(info: dict[str, Any], least: int) -> dict[str, Any]:
    config = {name: value for name, value in info["config"].items() if name != "metadata"}
    sequences = {
        name: {
            "consumer_seq": info[name]["consumer_seq"],
            "stream_seq": max(info[name]["stream_seq"], least),
        }
        for name in ("delivered", "ack_floor")
    }
    return {"config": config} | {name: info[name] for name in POSITION_FIELDS} | sequences
