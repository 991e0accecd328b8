"""Reads a range of a stream in order, as Arrow batches, with what a push consumer delivers. Whole and only once: what a link lost on
the way is seen by the consumer's own sequence, and read again. What is done with the messages is left to the caller.

The consumer is ephemeral, acknowledges nothing and lives in memory: reading leaves nothing behind and moves nobody's position.
A stream that deletes what is acknowledged keeps its messages.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from jsplan.backfill.wire.asking import readable
from jsplan.backfill.wire.frames import Delivered, GarbledError, Parts, delivered, parts, scan, scan_many, statuses, tokens
from jsplan.backfill.wire.socket import Wire
from jsplan.errors import ApiError, ApiTimeoutError, NoRespondersError, NotPermittedError, ServerRefusedError
from jsplan.units import SECOND

#: A batch is parsed when about so many messages are there, within these bounds in bytes, or nothing more comes: below, Arrow's cost per
#: batch shows; far above, whoever writes what was read has nothing to do meanwhile. A megabyte for all was 4 % slower with messages of
#: 128 bytes and 15 % with 4 KiB.
ENOUGH: Final = 2000
LEAST, MOST = 1 << 19, 1 << 22
#: Below so many bytes per message looking at every byte is cheaper than walking from message to message.
SMALL: Final = 1000
#: The receive buffer in bytes; it grows for a single message that is larger.
BUFFER: Final = 8 << 20
#: More that comes within so many milliseconds belongs to the same batch.
LULL: Final = 3
#: How often the consumer says that it is alive, and after how much silence it counts as gone. Seconds.
HEARTBEAT: Final = 2.0
SILENCE: Final = 3 * HEARTBEAT


@dataclass(frozen=True, slots=True)
class Range:
    """What to read: sequences `first` to `last`, both included, on subjects that match one of `filters` (none: all)."""

    api_prefix: str
    stream: str
    first: int
    last: int
    filters: tuple[str, ...] = ()
    headers_only: bool = False


class _Lost(Exception):
    """The consumer is gone, or delivered something that never arrived: begin again after the last message that did."""


def read(connect: Callable[[], Wire], what: Range, patience: float = 120.0) -> Generator[pa.RecordBatch, None, None]:
    """The messages of a range, in order, each once. `patience` is for how many seconds a broken link is tried again.

    A batch is whole before the next is asked for; its memory is its own. Raises ServerRefusedError for a stream that is not there, and
    ApiError when nothing arrived for all of `patience`.
    """
    position, since = what.first, time.monotonic()
    while position <= what.last:
        try:
            wire = connect()
            try:
                for batch in _deliveries(wire, what, position):
                    position = batch.column(0)[-1].as_py() + 1
                    yield batch
                    since = time.monotonic()
                if position > what.last or not _more(wire, what, position):
                    return
                raise _Lost("the consumer's server does not have all of the stream yet")
            finally:
                wire.close()
        except (ServerRefusedError, NotPermittedError):
            raise
        except (_Lost, ApiError) as error:
            if time.monotonic() - since > patience:
                text = f"nothing of {what.stream} at {what.api_prefix} arrived after sequence {position - 1} for {patience:.0f} s: {error}"
                raise ApiTimeoutError(text, hint="Is its domain reachable?") from None
            time.sleep(0.2)


def _deliveries(wire: Wire, what: Range, first: int) -> Iterator[pa.RecordBatch]:
    inbox = f"{wire.inbox}.d"
    number = wire.subscribe(inbox)
    name = f"jsplan-{wire.inbox.rpartition('.')[2]}"
    try:
        if _created(wire, what, name, inbox, first):
            yield from _in_order(wire, what, first)
    except (_Lost, ApiError):
        raise  # there is nobody to be asked
    except BaseException:  # whoever reads has had enough
        _removed(wire, what, name, number)
        raise
    _removed(wire, what, name, number)


def _more(wire: Wire, what: Range, position: int) -> bool:
    """Whether the stream has more of the range than its consumer saw: in a cluster that may be on a server that lags behind. Asked of
    the stream's leader, and taken for no where nobody may ask, or the answer is too large for a link on the way.
    """
    for subject in what.filters or (">",):
        with contextlib.suppress(NotPermittedError, ApiTimeoutError):
            asked = {"seq": position, "next_by_subj": subject}
            answer = wire.request(f"{what.api_prefix}.STREAM.MSG.GET.{what.stream}", asked, timeout=5.0)
            with readable(f"{what.api_prefix}.STREAM.MSG.GET.{what.stream}"):
                if position <= int((answer.get("message") or {}).get("seq", 0)) <= what.last:
                    return True
    return False


def _removed(wire: Wire, what: Range, name: str, number: int) -> None:
    """Take the consumer away again. If that fails it goes by itself, as soon as nobody listened for a while."""
    with contextlib.suppress(ApiError):
        wire.send(b"UNSUB %d\r\n" % number)
        wire.request(f"{what.api_prefix}.CONSUMER.DELETE.{what.stream}.{name}", timeout=2.0)


def _in_order(wire: Wire, what: Range, first: int) -> Iterator[pa.RecordBatch]:
    with contextlib.closing(_frames(wire)) as arriving:
        yield from _whole(wire, what, first, arriving)


def _whole(wire: Wire, what: Range, first: int, arriving: Iterator[Parts]) -> Iterator[pa.RecordBatch]:
    """The rows of the range, as long as each message is the one that the consumer delivered next."""
    expected = 1
    for frames in arriving:
        found = _without_words(wire, frames, expected)
        if found is None:
            continue
        if not np.array_equal(found.numbers, np.arange(expected, expected + len(found.numbers))):
            found, whole = _prefix(found, expected), False
        else:
            whole = True
        _require_ascending(found.rows, first)
        rows, over = _up_to(found.rows, what.last)
        if rows.num_rows:
            first = rows.column(0)[-1].as_py() + 1
            yield rows
        if not whole:
            raise _Lost("messages were lost on the way")
        expected += len(found.numbers)
        if over or found.pending == 0:
            return


def _created(wire: Wire, what: Range, name: str, inbox: str, first: int) -> bool:
    """Make the consumer; whether it has anything to deliver."""
    config: dict[str, Any] = {
        "name": name, "deliver_subject": inbox, "deliver_policy": "by_start_sequence", "opt_start_seq": first, "ack_policy": "none",
        "replay_policy": "instant", "max_deliver": 1, "mem_storage": True, "num_replicas": 1, "flow_control": True,
        "idle_heartbeat": int(HEARTBEAT * SECOND), "inactive_threshold": 5 * SECOND, "headers_only": what.headers_only,
    }  # fmt: skip
    if len(what.filters) == 1:
        config["filter_subject"] = what.filters[0]
    elif what.filters:
        config["filter_subjects"] = list(what.filters)
    subject = f"{what.api_prefix}.CONSUMER.CREATE.{what.stream}.{name}"
    answer = wire.request(subject, {"stream_name": what.stream, "config": config})
    with readable(subject):
        if "error" not in answer:
            return bool(answer.get("num_pending")) or bool((answer.get("delivered") or {}).get("consumer_seq"))
        error = answer["error"]
        text = f"{what.api_prefix} does not let {what.stream} be read: {error.get('description')} ({error.get('err_code')})"
        refused = ServerRefusedError.of(text, error)
    raise refused


def _frames(wire: Wire) -> Generator[Parts, None, None]:
    """Everything that arrives, in batches of complete frames. Raises _Lost after too long a silence.

    Whoever stops before the end leaves the connection usable: what was received and not handed out is put back.
    """
    buffer, small, enough = bytearray(BUFFER), False, LEAST
    start = end = 0
    try:
        while True:
            end = _filled(wire, buffer, start, end, enough)
            found = (scan_many(buffer, start, end) if small else None) or scan(buffer, start, end)
            wire.control(found.control)
            begun, start = start, found.end
            if found.count:
                average = (start - begun) / found.count
                small, enough = average < SMALL, min(max(int(ENOUGH * average), LEAST), MOST)
                yield parts(buffer, found)
            if start == end:
                start = end = 0
            elif end - start + max(found.need, enough) > len(buffer) - start:
                rest = bytes(memoryview(buffer)[start:end])
                if found.need + MOST > len(buffer):
                    buffer = bytearray(found.need + BUFFER)
                buffer[: len(rest)] = rest
                start, end = 0, len(rest)
    finally:
        wire.pushed_back = bytes(memoryview(buffer)[start:end]) + wire.pushed_back


def _filled(wire: Wire, buffer: bytearray, start: int, end: int, enough: int) -> int:
    """Receive until there is enough for a batch, or nothing more just now. The new end of what is in the buffer."""
    with memoryview(buffer) as view:
        try:
            end += wire.receive(view[end : end + enough], SILENCE)
        except TimeoutError:
            raise _Lost("the consumer fell silent") from None
        while end - start < enough and end < len(buffer) and wire.waiting(LULL):
            end += wire.receive(view[end : end + enough], SILENCE)
    return end


def _without_words(wire: Wire, frames: Parts, expected: int) -> Delivered | None:
    """The messages of a batch, after what the server had to say in between is answered. Raises _Lost where it tells of a loss."""
    places = statuses(frames.headers)
    for place in places:
        _answer_word(wire, frames, int(place))
    if len(places) == len(frames.line):
        _check_idle(frames, int(places[-1]), expected)
        return None
    if len(places):
        mask = np.ones(len(frames.line), dtype=bool)
        mask[places] = False
        keep = pa.array(mask)
        frames = Parts(frames.line.filter(keep), frames.headers.filter(keep), frames.data.filter(keep))
    return delivered(frames)


def _answer_word(wire: Wire, frames: Parts, place: int) -> None:
    """Flow control is answered at once: what came before it is in memory. Raises _Lost for a consumer that ended."""
    words, block = tokens(frames.line[place].as_py()), frames.headers[place].as_py()
    if block.startswith(b"NATS/1.0 503"):
        raise NoRespondersError("the consumer's server went away")
    if not block.startswith(b"NATS/1.0 100"):
        raise _Lost(block.split(b"\r\n")[0].decode(errors="replace"))
    if len(words) == 5 + 1:  # HMSG subject sid reply headers size: a flow control request waits for an answer
        wire.send(b"PUB %s 0\r\n\r\n" % words[3])
    elif (stalled := _header(block, b"Nats-Consumer-Stalled")) is not None:
        wire.send(b"PUB %s 0\r\n\r\n" % stalled)


def _check_idle(frames: Parts, place: int, expected: int) -> None:
    """A heartbeat says what was delivered last; if that never arrived, it is lost."""
    last = _header(frames.headers[place].as_py(), b"Nats-Last-Consumer")
    if last is not None and (not last.isdigit() or int(last[:20]) >= expected):
        raise _Lost("messages were lost on the way")


def _header(block: bytes, name: bytes) -> bytes | None:
    for line in block.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key == name:
            return value.strip()
    return None


def _prefix(found: Delivered, expected: int) -> Delivered:
    """What arrived before the first message that did not."""
    good = found.numbers == np.arange(expected, expected + len(found.numbers))
    count = len(good) if good.all() else int(np.argmin(good))
    return Delivered(found.rows.slice(0, count), found.numbers[:count], found.pending)


def _require_ascending(rows: pa.RecordBatch, first: int) -> None:
    """Raise GarbledError for sequences before `first`, or that go back: a consumer delivers each message once."""
    sequences = rows.column(0).to_numpy()
    if len(sequences) and (sequences[0] < first or (np.diff(sequences) <= 0).any()):
        raise GarbledError(f"sequences that go back, among those from {first} on")


def _up_to(rows: pa.RecordBatch, last: int) -> tuple[pa.RecordBatch, bool]:
    """The rows up to the last sequence of the range, and whether it was reached."""
    if not rows.num_rows or rows.column(0)[-1].as_py() < last:
        return rows, False
    count = int(np.searchsorted(rows.column(0).to_numpy(), last, side="right"))
    return rows.slice(0, count), True
