"""Read a range of a stream in order, as Arrow batches, each message once.

A push consumer delivers the messages. Its own sequence reveals messages that a link lost; they are
read again. The consumer is ephemeral, in memory and without acknowledgements. It leaves nothing
behind and moves no other consumer. A stream with interest or work queue retention keeps its
messages.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from jsplan.backfill.protocol.connection import RawConnection
from jsplan.backfill.protocol.frames import (
    DeliveredMessages,
    MessageColumns,
    ProtocolError,
    cut_messages,
    find_status_messages,
    parse_deliveries,
    scan_frames,
    scan_small_frames,
    split_tokens,
)
from jsplan.backfill.protocol.stream_info import (
    by_filters,
    expect_shape,
    request_api,
    require_same_stream,
)
from jsplan.errors import (
    ApiError,
    ApiTimeoutError,
    NoRespondersError,
    NotPermittedError,
    ServerRefusedError,
)
from jsplan.identity import KnownObject
from jsplan.units import SECOND

#: A batch is parsed at about this number of messages, within these bounds in bytes, or after a
#: lull. With smaller batches Arrow's cost per batch shows; with much larger ones the writer idles.
#: A fixed megabyte was 4 % slower with messages of 128 bytes, and 15 % with 4 KiB.
BATCH_MESSAGES: Final = 2000
MIN_BATCH_BYTES, MAX_BATCH_BYTES = 1 << 19, 1 << 22
#: Below this size, scanning every byte is cheaper than walking from message to message.
SMALL_MESSAGE_BYTES: Final = 1000
#: Bytes of the receive buffer. It grows for a single larger message.
BUFFER_BYTES: Final = 8 << 20
#: Data that arrives within these milliseconds belongs to the same batch.
LULL_MILLISECONDS: Final = 3
#: Seconds between heartbeats of the consumer, and until a silent consumer counts as lost.
HEARTBEAT: Final = 2.0
SILENCE_TIMEOUT: Final = 3 * HEARTBEAT


class ReadRequest(Struct, frozen=True):
    """Range to read.

    Sequences `first` to `last` (both included), on subjects that match one of `filters` (none:
    all). Each consumer is checked to be one of the `known` stream (None: any of that name).
    """

    api_prefix: str
    stream: str
    first: int
    last: int
    filters: tuple[str, ...] = ()
    headers_only: bool = False
    known: KnownObject | None = None


class _ConsumerLostError(Exception):
    """The consumer is gone, or lost a message. Read again after the last message that arrived."""


def read(
    connect: Callable[[], RawConnection], request: ReadRequest, patience: float = 120.0
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the messages of a range, in order, each once.

    A broken link is retried for `patience` seconds. Each batch is whole and owns its memory.
    Raises ServerRefusedError for a stream that does not exist, and ApiError when nothing arrives
    for `patience` seconds. Raises RefusedError if the stream was recreated.
    """
    position, since = request.first, time.monotonic()
    while position <= request.last:
        try:
            connection = connect()
            try:
                for batch in _read_deliveries(connection, request, position):
                    position = batch.column(0)[-1].as_py() + 1
                    yield batch
                    since = time.monotonic()
                if position > request.last or not _has_more(connection, request, position):
                    return
                raise _ConsumerLostError(
                    "the server of the consumer does not have the whole stream yet"
                )
            finally:
                connection.close()
        except (ServerRefusedError, NotPermittedError):
            raise
        except (_ConsumerLostError, ApiError) as error:
            if time.monotonic() - since > patience:
                text = (
                    f"no message of {request.stream} at {request.api_prefix} arrived "
                    f"after sequence {position - 1} for {patience:.0f} s: {error}"
                )
                raise ApiTimeoutError(text, hint="Check that its domain is reachable.") from None
            time.sleep(0.2)


def _read_deliveries(
    connection: RawConnection, request: ReadRequest, first: int
) -> Iterator[pa.RecordBatch]:
    inbox = f"{connection.inbox}.d"
    number = connection.subscribe(inbox)
    name = f"jsplan-{connection.inbox.rpartition('.')[2]}"
    try:
        has_messages = _create_consumer(connection, request, name, inbox, first)
        if request.known is not None:
            # After the consumer, which ends with its stream.
            require_same_stream(connection, request.api_prefix, request.stream, request.known)
        if has_messages:
            yield from _read_in_order(connection, request, first)
    except (_ConsumerLostError, ApiError):
        raise  # the consumer is already gone
    except BaseException:  # the caller stopped early
        _delete_consumer(connection, request, name, number)
        raise
    _delete_consumer(connection, request, name, number)


def _has_more(connection: RawConnection, request: ReadRequest, position: int) -> bool:
    """Return True if the stream has more of the range than its consumer saw.

    In a cluster, the consumer may be on a replica that lags behind. The request goes to the leader
    of the stream. Returns False where it is not permitted, or the answer is too large for a link.
    """
    for subject in request.filters or (">",):
        with contextlib.suppress(NotPermittedError, ApiTimeoutError):
            asked = {"seq": position, "next_by_subj": subject}
            answer = connection.request(
                f"{request.api_prefix}.STREAM.MSG.GET.{request.stream}", asked, timeout=5.0
            )
            with expect_shape(f"{request.api_prefix}.STREAM.MSG.GET.{request.stream}"):
                if position <= int((answer.get("message") or {}).get("seq", 0)) <= request.last:
                    return True
    return False


def _delete_consumer(
    connection: RawConnection, request: ReadRequest, name: str, number: int
) -> None:
    """Delete the consumer.

    If that fails, the server deletes it after some seconds without interest.
    """
    with contextlib.suppress(ApiError):
        connection.send(b"UNSUB %d\r\n" % number)
        connection.request(
            f"{request.api_prefix}.CONSUMER.DELETE.{request.stream}.{name}", timeout=2.0
        )


def _read_in_order(
    connection: RawConnection, request: ReadRequest, first: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the range while the consumer sequences have no gap."""
    expected = 1
    with contextlib.closing(_receive_frames(connection)) as arriving:
        for frames in arriving:
            delivered = _drop_status_messages(connection, frames)
            if delivered is None:
                if _is_idle(frames, expected):
                    return
                continue
            seqs = delivered.consumer_seqs
            good = seqs == np.arange(expected, expected + len(seqs))
            rows = delivered.rows if good.all() else delivered.rows.slice(0, int(np.argmin(good)))
            _require_ascending(rows, first)
            rows, over = _limit_rows(rows, request.last)
            if rows.num_rows:
                first = rows.column(0)[-1].as_py() + 1
                yield rows
            if not good.all():
                raise _ConsumerLostError("messages were lost")
            expected += len(seqs)
            if over or delivered.pending == 0:
                return


def _create_consumer(
    connection: RawConnection, request: ReadRequest, name: str, inbox: str, first: int
) -> bool:
    """Create the consumer. Returns False if it has nothing to deliver."""
    config: dict[str, Any] = {
        "name": name,
        "deliver_subject": inbox,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": first,
        "ack_policy": "none",
        "replay_policy": "instant",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "flow_control": True,
        "idle_heartbeat": int(HEARTBEAT * SECOND),
        "inactive_threshold": 5 * SECOND,
        "headers_only": request.headers_only,
    }
    verb = f"CONSUMER.CREATE.{request.stream}.{name}"
    asked = {"stream_name": request.stream, "config": config | by_filters(request.filters)}
    answer = request_api(
        connection, request.api_prefix, verb, asked, what=f"to read {request.stream}"
    )
    with expect_shape(f"{request.api_prefix}.{verb}"):
        delivered = answer.get("delivered") or {}
        return bool(answer.get("num_pending") or delivered.get("consumer_seq"))


def _receive_frames(connection: RawConnection) -> Generator[MessageColumns, None, None]:
    """Yield everything that arrives, in batches of complete frames.

    A caller that stops early can still use the connection: bytes that were received and not
    returned are put back. Raises _ConsumerLostError after too long a silence.
    """
    buffer, small, enough = bytearray(BUFFER_BYTES), False, MIN_BATCH_BYTES
    start = end = 0
    try:
        while True:
            end = _fill_buffer(connection, buffer, start, end, enough)
            found = (scan_small_frames(buffer, start, end) if small else None) or scan_frames(
                buffer, start, end
            )
            connection.handle_control_lines(found.control)
            begun, start = start, found.end
            if found.count:
                average = (start - begun) / found.count
                small, enough = (
                    average < SMALL_MESSAGE_BYTES,
                    min(max(int(BATCH_MESSAGES * average), MIN_BATCH_BYTES), MAX_BATCH_BYTES),
                )
                yield cut_messages(buffer, found)
            if start == end:
                start = end = 0
            elif end - start + max(found.needed_bytes, enough) > len(buffer) - start:
                rest = bytes(memoryview(buffer)[start:end])
                if found.needed_bytes + MAX_BATCH_BYTES > len(buffer):
                    buffer = bytearray(found.needed_bytes + BUFFER_BYTES)
                buffer[: len(rest)] = rest
                start, end = 0, len(rest)
    finally:
        connection.pushed_back = bytes(memoryview(buffer)[start:end]) + connection.pushed_back


def _fill_buffer(
    connection: RawConnection, buffer: bytearray, start: int, end: int, enough: int
) -> int:
    """Receive until there is enough for a batch, or a lull. Returns the new end of the data."""
    with memoryview(buffer) as view:
        try:
            end += connection.receive(view[end : end + enough], SILENCE_TIMEOUT)
        except TimeoutError:
            raise _ConsumerLostError("the consumer fell silent") from None
        while end - start < enough and end < len(buffer) and connection.has_data(LULL_MILLISECONDS):
            end += connection.receive(view[end : end + enough], SILENCE_TIMEOUT)
    return end


def _drop_status_messages(
    connection: RawConnection, frames: MessageColumns
) -> DeliveredMessages | None:
    """Answer the status messages of a batch, and return its other messages."""
    places = find_status_messages(frames.headers)
    for place in places:
        _answer_status(connection, frames, int(place))
    if len(places) == len(frames.line):
        return None
    if len(places):
        mask = np.ones(len(frames.line), dtype=bool)
        mask[places] = False
        keep = pa.array(mask)
        frames = MessageColumns(
            frames.line.filter(keep), frames.headers.filter(keep), frames.data.filter(keep)
        )
    return parse_deliveries(frames)


def _answer_status(connection: RawConnection, frames: MessageColumns, place: int) -> None:
    """Answer flow control at once: everything before it is in memory.

    Raises _ConsumerLostError for a deleted consumer.
    """
    words, block = split_tokens(frames.line[place].as_py()), frames.headers[place].as_py()
    if block.startswith(b"NATS/1.0 503"):
        raise NoRespondersError("the server of the consumer is offline")
    if not block.startswith(b"NATS/1.0 100"):
        raise _ConsumerLostError(block.split(b"\r\n")[0].decode(errors="replace"))
    # HMSG subject sid reply headers size: a flow control request waits for an answer
    if len(words) == 5 + 1:
        connection.send(b"PUB %s 0\r\n\r\n" % words[3])
    elif (stalled := _header_value(block, b"Nats-Consumer-Stalled")) is not None:
        connection.send(b"PUB %s 0\r\n\r\n" % stalled)


def _is_idle(frames: MessageColumns, expected: int) -> bool:
    """Return True if a heartbeat says that the consumer has nothing to deliver.

    The rest of the range was purged or has expired. Raises _ConsumerLostError if the last message
    that it has delivered never arrived.
    """
    block = frames.headers[-1].as_py()
    last = _header_value(block, b"Nats-Last-Consumer")
    if last is None:
        return False
    if not last.isdigit() or int(last[:20]) >= expected:
        raise _ConsumerLostError("messages were lost")
    return _header_value(block, b"Nats-Consumer-Stalled") is None


def _header_value(block: bytes, name: bytes) -> bytes | None:
    for line in block.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key == name:
            return value.strip()
    return None


def _require_ascending(rows: pa.RecordBatch, first: int) -> None:
    """Raise ProtocolError for sequences before `first`, or that do not ascend.

    A consumer delivers each message once.
    """
    sequences = rows.column(0).to_numpy()
    if len(sequences) and (sequences[0] < first or (np.diff(sequences) <= 0).any()):
        raise ProtocolError(f"sequences that do not ascend, among those from {first} on")


def _limit_rows(rows: pa.RecordBatch, last: int) -> tuple[pa.RecordBatch, bool]:
    """Return the rows up to sequence `last`, and True if it was reached."""
    if not rows.num_rows or rows.column(0)[-1].as_py() < last:
        return rows, False
    count = int(np.searchsorted(rows.column(0).to_numpy(), last, side="right"))
    return rows.slice(0, count), True
