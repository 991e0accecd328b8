"""What a copy asks about a stream before it reads: its state, and where in it a time is. Reading is left to `reading`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from jsplan.backfill.protocol.connection import RawConnection
from jsplan.backfill.protocol.frames import ProtocolError
from jsplan.errors import ServerRefusedError
from jsplan.units import SECOND

#: The server counts times in 64 bits: one after the year 2262 would be one long ago.
MAX_TIME: Final = 1 << 63
_TIME_PATTERN = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)"
)


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as it is now. `first` and `last` are sequences (first > last: it is empty), `created` tells it from one of the same name."""

    created: str
    first: int
    last: int
    messages: int
    config: dict[str, Any]


def request_api(
    wire: RawConnection,
    api_prefix: str,
    verb: str,
    payload: dict[str, Any] | None = None,
    timeout: float | None = None,
) -> dict[str, Any]:
    """One JetStream request. Raises ServerRefusedError with the server's words, and what `Wire.request` raises."""
    answer = wire.request(f"{api_prefix}.{verb}", payload, timeout)
    if "error" in answer:
        with expect_shape(f"{api_prefix}.{verb}"):
            error = answer["error"]
            refused = ServerRefusedError.of(
                f"{api_prefix} refused {verb}: {error.get('description')} ({error.get('err_code')})",
                error,
            )
        raise refused
    return answer


@contextlib.contextmanager
def expect_shape(subject: str) -> Iterator[None]:
    """Read an answer. Raises GarbledError where it has another shape than a server gives it."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError):
        raise ProtocolError(f"an answer to {subject} of another shape") from None


def fetch_stream_info(wire: RawConnection, api_prefix: str, stream: str) -> StreamInfo:
    """Ask for a stream. Raises ServerRefusedError (10059) where there is none."""
    info = request_api(wire, api_prefix, f"STREAM.INFO.{stream}")
    with expect_shape(f"{api_prefix}.STREAM.INFO.{stream}"):
        state = info["state"]
        first, last, messages = (int(state[name]) for name in ("first_seq", "last_seq", "messages"))
        return StreamInfo(str(info["created"]), first, last, messages, dict(info["config"]))


def find_first_seq_at(wire: RawConnection, api_prefix: str, stream: str, time: int) -> int:
    """The sequence of the first message at or after `time` (ns since 1970, UTC); one after the last where there is none.

    A consumer that would begin there is asked where that is, and taken away again: the only way that every server knows.
    """
    if time >= MAX_TIME:
        return fetch_stream_info(wire, api_prefix, stream).last + 1
    made = _probe_consumer(
        wire,
        api_prefix,
        stream,
        {"deliver_policy": "by_start_time", "opt_start_time": format_time(time)},
    )
    if not made.get("num_pending"):
        return fetch_stream_info(wire, api_prefix, stream).last + 1
    with expect_shape(f"{api_prefix}.CONSUMER.CREATE.{stream}"):
        return int(made["delivered"]["stream_seq"]) + 1


def count_pending(
    wire: RawConnection, api_prefix: str, stream: str, first: int, filters: tuple[str, ...] = ()
) -> int:
    """How many messages there are from a sequence on, on subjects that match one of `filters` (none: all)."""
    config: dict[str, Any] = {"deliver_policy": "by_start_sequence", "opt_start_seq": first}
    if filters:
        config |= (
            {"filter_subject": filters[0]}
            if len(filters) == 1
            else {"filter_subjects": list(filters)}
        )
    with expect_shape(f"{api_prefix}.CONSUMER.CREATE.{stream}"):
        return int(_probe_consumer(wire, api_prefix, stream, config).get("num_pending") or 0)


def _probe_consumer(
    wire: RawConnection, api_prefix: str, stream: str, start: dict[str, Any]
) -> dict[str, Any]:
    """CONSUMER.INFO of a consumer that begins so, and is gone again."""
    name = f"jsplan-{os.urandom(11).hex()}"
    config = {
        "name": name,
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": 5 * SECOND,
    } | start
    made = request_api(
        wire,
        api_prefix,
        f"CONSUMER.CREATE.{stream}.{name}",
        {"stream_name": stream, "config": config},
    )
    wire.request(f"{api_prefix}.CONSUMER.DELETE.{stream}.{name}")
    return made


def format_time(time: int) -> str:
    """RFC 3339 with nanoseconds."""
    return f"{datetime.fromtimestamp(time // SECOND, UTC):%Y-%m-%dT%H:%M:%S}.{time % SECOND:09d}Z"


def parse_time(text: str) -> int:
    """Nanoseconds since 1970 of an RFC 3339 time. Raises ValueError."""
    match = _TIME_PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no RFC 3339 time such as 2026-01-31T12:00:00Z")
    whole = datetime.fromisoformat(f"{match[1]}T{match[2]}{match[4].replace('Z', '+00:00')}")
    return int(whole.timestamp()) * SECOND + int((match[3] or "").ljust(9, "0"))
