"""The messages of a stream and the positions of its consumers, to compare before and after."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from tests.support.raw import Raw, encode

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A message: sequence, subject, header block, payload, time.
Message = tuple[int, str, bytes, bytes, str]


def messages(raw: Raw, stream: str) -> list[Message]:
    """Return every message of a stream in order, read many at once."""
    state = raw.state(stream)
    result: list[Message] = []
    seq = state["first_seq"]
    while seq <= state["last_seq"] and state["messages"]:
        # the next one, wherever it is, and what comes directly after this sequence, if it is there
        count = min(_window(state), max(1, state["messages"] - len(result)))
        requests = [{"seq": seq, "next_by_subj": ">"}, *({"seq": seq + n} for n in range(1, count))]
        payloads = [json.dumps(request).encode() for request in requests]
        found: dict[int, dict[str, Any]] = {}
        for _, body in raw.request_all(f"$JS.API.STREAM.MSG.GET.{stream}", payloads):
            answer = json.loads(body)
            assert answer.get("error", {}).get("err_code", 10037) == 10037, answer
            if "message" in answer:
                found[answer["message"]["seq"]] = answer["message"]
        if not found:
            break
        for number, message in sorted(found.items()):
            head, data = (base64.b64decode(message.get(name, "")) for name in ("hdrs", "data"))
            result.append((number, message["subject"], head, data, message["time"]))
        seq = max(found) + 1
    assert len(result) == state["messages"], (len(result), state)
    return result


def read_each(raw: Raw, stream: str, prefix: str = "$JS.API") -> list[dict[str, Any]]:
    """Return the answer for each sequence from the first to the last one, errors included."""
    state = raw.api_ok(f"{prefix}.STREAM.INFO.{stream}")["state"]
    subject, end = f"{prefix}.STREAM.MSG.GET.{stream}", state["last_seq"] + 1
    answers: list[dict[str, Any]] = []
    for start in range(state["first_seq"] or 1, end, window := _window(state)):
        payloads = [b'{"seq": %d}' % seq for seq in range(start, min(start + window, end))]
        answers += [json.loads(body) for _, body in raw.request_all(subject, payloads)]
    return answers


def _window(state: dict[str, Any]) -> int:
    """Return how many messages to ask for at once, so that the answers stay below some MB."""
    return int(max(1, min(100, 4_000_000 * state["messages"] // max(1, state["bytes"]))))


def without_sequences(result: Iterable[Message]) -> list[tuple[str, bytes]]:
    """Return subjects and payloads, which sourcing keeps."""
    return [(subject, data) for _, subject, _, data, _ in result]


def fill(raw: Raw, stream: str, count: int, *, subjects: int = 3, header_every: int = 4) -> None:
    """Publish `count` messages to `<stream>.<n>`, some with headers."""
    before = raw.state(stream)["last_seq"]
    for start in range(0, count, 500):
        raw.publish_all(
            encode(
                f"{stream}.{number % subjects}",
                f"message {number} ".encode() * 3,
                {"X-Number": str(number)} if number % header_every == 0 else None,
            )
            for number in range(start, min(start + 500, count))
        )
        raw.flush()
    while (last := raw.state(stream)["last_seq"]) < before + count:
        assert last >= before


def positions(raw: Raw, stream: str) -> dict[str, tuple[int, ...]]:
    """Return the positions of each consumer that is not paused.

    A position is delivered, ack floor (stream sequences), unacknowledged and pending.
    """
    listed = raw.api_ok(f"$JS.API.CONSUMER.LIST.{stream}", {"offset": 0})["consumers"] or []
    return {
        c["name"]: (
            c["delivered"]["stream_seq"],
            c["ack_floor"]["stream_seq"],
            c["num_ack_pending"],
            c["num_pending"],
        )
        for c in listed
        if not c.get("paused")
    }


def unread(raw: Raw, stream: str) -> dict[str, int]:
    """Count the messages that each consumer still has to deliver or get acknowledged."""
    return {name: numbers[2] + numbers[3] for name, numbers in positions(raw, stream).items()}


def payloads(raw: Raw, stream: str, name: str) -> list[bytes]:
    """Return everything that a pull consumer still delivers."""
    raw.subscribe("payloads.here")
    result = []
    while True:
        request = json.dumps({"batch": 1000, "no_wait": True}).encode()
        raw.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", request, reply="payloads.here")
        got = 0
        while True:
            _, headers, data = raw.next_message()
            if headers.get("Status"):
                break
            result.append(data)
            got += 1
            if got == 1000:
                break
        if got < 1000:
            break
    raw.unsubscribe()
    return result
