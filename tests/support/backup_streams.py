"""Streams with everything that a backup must restore, and their full content."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from tests.support.raw import api_prefix, encode
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
    raw: Raw, name: str, domain: str, *, messages: int = 60, size: int = 100, **config: Any
) -> None:
    """Create a stream with headers and gaps, and consumers in different positions."""
    raw.create(name, domain, **{"subjects": [f"{name}.*"]} | config)
    raw.consumer(name, "BUSY", domain, ack_wait=HOUR)
    raw.consumer(name, "FRESH", domain, filter_subject=f"{name}.3", deliver_policy="new")
    raw.consumer(name, "DONE", domain, ack_policy="none")
    noise = random.Random(name)
    raw.publish_all(
        encode(
            f"{name}.{number % 5}",
            noise.randbytes(size),
            {"Number": str(number), "Nats-Msg-Id": f"{name}-{number}"},
        )
        for number in range(messages)
    )
    while raw.count(name, domain) < messages:
        pass
    raw.delete(name, 1, 2, 17, messages, domain=domain)
    # 2.11 counts a deleted message as pending for good if a consumer delivers meanwhile.
    for each in ("BUSY", "DONE"):
        while raw.consumer_info(name, each, domain)["num_pending"] != messages - 4:
            pass
    # Deliver ten messages: acknowledge five and two more, deliver one again.
    replies = raw.pull(name, "BUSY", 10, domain)
    raw.ack([*replies[:5], replies[7], replies[8]])
    raw.request(replies[5], b"-NAK")
    raw.pull(name, "BUSY", 1, domain)
    while raw.consumer_info(name, "BUSY", domain)["num_redelivered"] != 1:
        pass
    raw.pull(name, "DONE", 9, domain)
    # A cluster counts a moment later.
    while raw.consumer_info(name, "DONE", domain)["delivered"]["consumer_seq"] < 9:
        pass


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
