"""Stream requests before a read: state, position of a time, pending counts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from jsplan.backfill.protocol.connection import RawConnection
from jsplan.backfill.protocol.frames import ProtocolError
from jsplan.errors import RefusedError, ServerRefusedError
from jsplan.identity import KnownObject, is_clustered, is_same_object
from jsplan.units import SECOND, format_instant

#: Servers store times in 64 bits, which overflow after the year 2262.
MAX_TIME: Final = 1 << 63


class StreamInfo(Struct, frozen=True):
    """Current state of a stream.

    `first` and `last` are sequences (first > last: empty), `last_time` is the RFC 3339 time of the
    last message. `created` distinguishes it from another stream of the same name, `seen_at` is the
    time of the server (empty before nats-server 2.10). Each server of a cluster may have its own
    `created` for it (see `jsplan.identity`).
    """

    created: str
    seen_at: str
    first: int
    last: int
    messages: int
    config: dict[str, Any]
    clustered: bool = False
    last_time: str = ""


def request_api(
    connection: RawConnection,
    api_prefix: str,
    verb: str,
    payload: dict[str, Any] | None = None,
    *,
    what: str = "",
) -> dict[str, Any]:
    """Send a JetStream request, and return the answer.

    Raises ServerRefusedError with the error of the server, which says that it refused `what` (the
    verb), and the errors of `RawConnection.request`.
    """
    answer = connection.request(f"{api_prefix}.{verb}", payload)
    if "error" in answer:
        with expect_shape(f"{api_prefix}.{verb}"):
            error = answer["error"]
            refused = ServerRefusedError.of(
                f"{api_prefix} refused {what or verb}: "
                f"{error.get('description')} ({error.get('err_code')})",
                error,
            )
        raise refused
    return answer


@contextlib.contextmanager
def expect_shape(subject: str) -> Iterator[None]:
    """Raise ProtocolError where the block reads an answer of unexpected shape."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError):
        raise ProtocolError(f"an answer to {subject} has an unexpected shape") from None


def fetch_stream_info(connection: RawConnection, api_prefix: str, stream: str) -> StreamInfo:
    """Fetch STREAM.INFO. Raises ServerRefusedError (10059) where the stream does not exist."""
    info = request_api(connection, api_prefix, f"STREAM.INFO.{stream}")
    with expect_shape(f"{api_prefix}.STREAM.INFO.{stream}"):
        state = info["state"]
        first, last, messages = (int(state[name]) for name in ("first_seq", "last_seq", "messages"))
        created, seen_at = str(info["created"]), str(info.get("ts") or "")
        clustered = is_clustered(info.get("cluster") or {})
        config = dict(info["config"])
        time = str(state.get("last_ts") or "") if last else ""
        return StreamInfo(created, seen_at, first, last, messages, config, clustered, time)


def fetch_time(connection: RawConnection, api_prefix: str, stream: str, seq: int) -> str:
    """Return the RFC 3339 time of one message; empty if it is not there or cannot be read."""
    try:
        answer = request_api(connection, api_prefix, f"STREAM.MSG.GET.{stream}", {"seq": seq})
    except ServerRefusedError:
        return ""
    with expect_shape(f"{api_prefix}.STREAM.MSG.GET.{stream}"):
        return str(answer["message"]["time"])


def require_same_stream(
    connection: RawConnection, api_prefix: str, stream: str, known: KnownObject
) -> StreamInfo:
    """Fetch STREAM.INFO. Raises RefusedError if the stream was recreated since it was known."""
    info = fetch_stream_info(connection, api_prefix, stream)
    if not is_same_object(known, info.created, may_be_older=info.clustered):
        raise RefusedError(
            f"stream {stream} at {api_prefix} was recreated ({info.created}) while it was read. "
            "Its sequences no longer match",
            hint="Start again with the new stream. A backfill needs --reset-range for that.",
        )
    return info


def find_first_seq_at(connection: RawConnection, api_prefix: str, stream: str, time: int) -> int:
    """Return the sequence of the first message at or after `time` (ns since 1970, UTC).

    Returns the sequence after the last message where there is none. The position is read from a
    short-lived consumer, the only method that every server supports.
    """
    if time >= MAX_TIME:
        return fetch_stream_info(connection, api_prefix, stream).last + 1
    consumer = _probe_consumer(
        connection,
        api_prefix,
        stream,
        {"deliver_policy": "by_start_time", "opt_start_time": format_instant(time)},
    )
    if not consumer.get("num_pending"):
        return fetch_stream_info(connection, api_prefix, stream).last + 1
    with expect_shape(f"{api_prefix}.CONSUMER.CREATE.{stream}"):
        return int(consumer["delivered"]["stream_seq"]) + 1


def count_pending(
    connection: RawConnection,
    api_prefix: str,
    stream: str,
    first: int,
    filters: tuple[str, ...] = (),
) -> int:
    """Count the messages from a sequence on, on subjects that match `filters` (none: all)."""
    config = {"deliver_policy": "by_start_sequence", "opt_start_seq": first, **by_filters(filters)}
    with expect_shape(f"{api_prefix}.CONSUMER.CREATE.{stream}"):
        return int(_probe_consumer(connection, api_prefix, stream, config).get("num_pending") or 0)


def by_filters(filters: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings of a consumer that delivers only these subjects (none: all)."""
    if len(filters) == 1:
        return {"filter_subject": filters[0]}
    return {"filter_subjects": list(filters)} if filters else {}


def _probe_consumer(
    connection: RawConnection, api_prefix: str, stream: str, start: dict[str, Any]
) -> dict[str, Any]:
    """Create a consumer with this start, delete it, and return its CONSUMER.INFO."""
    name = f"jsplan-{os.urandom(11).hex()}"
    config = {
        "name": name,
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": 5 * SECOND,
    } | start
    consumer = request_api(
        connection,
        api_prefix,
        f"CONSUMER.CREATE.{stream}.{name}",
        {"stream_name": stream, "config": config},
    )
    connection.request(f"{api_prefix}.CONSUMER.DELETE.{stream}.{name}")
    return consumer
