"""Streams with everything that a backup must restore, and their full content."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from tests.support.raw import NoResponders, api_prefix, encode
from tests.support.stream_content import read_each
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

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
    raw: Raw, name: str, domain: str, *, messages: int = 60, size: int = 100, **config: Any
) -> None:
    """Create a stream with headers and gaps, and consumers in different positions."""
    raw.create(name, domain, **{"subjects": [f"{name}.*"]} | config)
    raw.consumer(name, "BUSY", domain, ack_wait=HOUR)
    raw.consumer(name, "FRESH", domain, filter_subject=f"{name}.3", deliver_policy="new")
    raw.consumer(name, "DONE", domain, ack_policy="none")
    noise = random.Random(name)
    to_send = [
        (
            f"{name}.{number % 5}",
            noise.randbytes(size),
            {"Number": str(number), "Nats-Msg-Id": f"{name}-{number}"},
        )
        for number in range(messages)
    ]
    # In a cluster, this server may not know yet who takes the messages of the new stream.
    first, *others = to_send
    wait_until(lambda: _is_taken(raw, *first), f"{name} to take messages")
    raw.publish_all(encode(*each) for each in others)
    raw.wait_for(name, messages, domain)
    raw.delete(name, 1, 2, 17, messages, domain=domain)

    def wait_for_consumer(consumer: str, ready: Callable[[dict[str, Any]], bool]) -> None:
        wait_until(
            lambda: ready(raw.consumer_info(name, consumer, domain)), f"{consumer} of {name}"
        )

    # 2.11 counts a deleted message as pending for good if a consumer delivers meanwhile. Any server
    # counts one too few until its next delivery, if INFO is asked while the message is deleted.
    for each in ("BUSY", "DONE"):
        wait_for_consumer(each, lambda info: info["num_pending"] <= messages - 4)
    # Deliver ten messages: acknowledge five and two more, deliver one again.
    replies = raw.pull(name, "BUSY", 10, domain)
    raw.ack([*replies[:5], replies[7], replies[8]])
    raw.request(replies[5], b"-NAK")
    raw.pull(name, "BUSY", 1, domain)
    wait_for_consumer("BUSY", lambda info: info["num_redelivered"] == 1)
    raw.pull(name, "DONE", 9, domain)
    # A cluster counts a moment later.
    wait_for_consumer("DONE", lambda info: info["delivered"]["consumer_seq"] >= 9)


def _is_taken(raw: Raw, subject: str, payload: bytes, headers: dict[str, str]) -> bool:
    try:
        return "seq" in json.loads(raw.request(subject, payload, headers)[1])
    except NoResponders:
        return False


def capture_stream(raw: Raw, stream: str, domain: str) -> dict[str, Any]:
    """Return configuration, state, every message, and every consumer with its position.

    Archives of server 2.15 lack two things, which are left out: the time of a deleted last message,
    and a position before the first message. Such a consumer comes back right before the first
    message.
    """
    info = raw.api_ok(f"{api_prefix(domain)}.STREAM.INFO.{stream}", {"deleted_details": True})
    state = info["state"]
    names = raw.consumer_names(stream, domain)
    consumers = {name: raw.consumer_info(stream, name, domain) for name in names}
    messages = read_each(raw, stream, api_prefix(domain))
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
