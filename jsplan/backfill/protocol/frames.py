"""Parse the messages of a receive buffer, and build frames to send, many at once.

Per message, only the walk between frames (`scan_frames`) runs in Python. Everything else is one
Arrow kernel for the whole buffer. All functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from jsplan.backfill.protocol.columns import (
    Positions,
    cut_columns,
    find_byte,
    get_buffers,
    parse_numbers,
    require_valid_subjects,
)
from jsplan.errors import ApiError

#: Columns of a message. `headers` is a whole block with `NATS/1.0` and the empty line, or empty.
MESSAGE_SCHEMA: Final = pa.schema(
    [
        ("seq", pa.int64()),
        ("time", pa.int64()),
        ("subject", pa.binary()),
        ("headers", pa.binary()),
        ("data", pa.binary()),
    ]
)
#: Position of the delivery count in an ack subject, by its number of tokens: without and with
#: domain and account. The sequences of stream and consumer, the time (ns) and the pending count
#: follow it.
_COUNT_TOKENS: Final = {9: 4, 11: 6, 12: 6}
#: Between servers the subject follows the reply and an `@`. Servers before 2.11 cut at the last
#: `@`, even if it is part of the subject, so the first part of the subject is left in the reply.
_MERGED_REPLY: Final = (
    r"^(H?MSG) ([^ ]*) ([^ ]*) ((?:[^. ]+\.){8}(?:(?:[^. ]+\.){2,3})?[0-9]+)@([^ ]*) "
)
_SEPARATED_REPLY: Final = r"\1 \5@\2 \3 \4 "
_H, _M, _NEWLINE, _SPACE, _AT, _DOT = ord("H"), ord("M"), ord("\n"), ord(" "), ord("@"), ord(".")
#: Bytes of the shortest head of a message, `MSG s 1 0`.
_MIN_HEAD_BYTES: Final = 9
BYTES: Final = pa.binary()
#: Maximum bytes of a message, its digits, and maximum bytes of a line. Servers allow 64 MiB.
MAX_MESSAGE_BYTES: Final = 1 << 28
_MAX_SIZE_DIGITS: Final = 9
#: Head of a message with an ordinary subject, and its sizes: header block (HMSG only) and message.
_HEAD: Final = re.compile(
    rb"(?:HMSG [!-~]+ [0-9]+(?: [!-~]+)? ([0-9]{1,8})|MSG [!-~]+ [0-9]+(?: [!-~]+)?) "
    rb"([0-9]{1,8})\r\n"
)
MAX_LINE_BYTES: Final = 4 << 20


class FrameScan(Struct):
    """Complete frames of a buffer.

    `offsets` (a list or an array) has four numbers per message: the positions of its line, its
    headers, its payload and its end. `control` has the lines that are not messages. `end` is the
    position of the first incomplete frame. For that frame the buffer needs at least `needed_bytes`
    bytes from there (0: not known yet).
    """

    end: int
    offsets: Any = field(default_factory=list)
    control: list[bytes] = field(default_factory=list)
    needed_bytes: int = 0

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.offsets) // 4


class ProtocolError(ApiError):
    """Error for bytes that no nats-server sends."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"received data that is not the NATS protocol: {detail}",
            hint="Check that the address is that of a nats-server, not of a proxy.",
        )


def scan_frames(buffer: bytearray, start: int, end: int) -> FrameScan:
    """Find the frames between `start` and `end`. Raises ProtocolError for invalid bytes."""
    found = FrameScan(start)
    match_head, add, place = _HEAD.match, found.offsets.extend, start
    while True:
        if head := match_head(buffer, place, end):
            block, total = head.groups()
            body, size = head.end(), int(total)
            headers = int(block) if block else 0
        elif (line_end := buffer.find(b"\r\n", place, end)) < 0:
            if end - place > MAX_LINE_BYTES:
                raise ProtocolError(f"a line of more than {MAX_LINE_BYTES} bytes")
            break
        elif (sizes := _parse_head(buffer, place, line_end)) is not None:
            body, (headers, size) = line_end + 2, sizes
        else:
            found.control.append(bytes(buffer[place:line_end]))
            place = line_end + 2
            continue
        if headers > size:
            raise ProtocolError(f"a header of {headers} bytes in a message of {size}")
        stop = body + size
        if stop + 2 > end:
            found.needed_bytes = stop + 2 - place
            break
        add((place, body, body + headers, stop))
        place = stop + 2
    found.end = place
    return found


def _parse_head(buffer: bytearray, place: int, line_end: int) -> tuple[int, int] | None:
    """Return the bytes of header block and message of any head; None for any other line."""
    last = buffer.rfind(b" ", place, line_end)
    if buffer.startswith(b"HMSG ", place):
        before = buffer.rfind(b" ", place, last)
        size = _parse_size(buffer, last + 1, line_end)
        return _parse_size(buffer, before + 1, last), size
    if buffer.startswith(b"MSG ", place):
        return 0, _parse_size(buffer, last + 1, line_end)
    return None


def _parse_size(buffer: bytearray, start: int, stop: int) -> int:
    digits = buffer[start:stop]
    if (
        not digits.isdigit()
        or stop - start > _MAX_SIZE_DIGITS
        or (number := int(digits)) > MAX_MESSAGE_BYTES
    ):
        raise ProtocolError(f"{bytes(digits[:20])!r} is not the size of a message")
    return number


def scan_small_frames(buffer: bytearray, start: int, end: int) -> FrameScan | None:
    """Find the frames in a buffer of many small messages only, all at once.

    Returns the same as `scan_frames`, or None for any other buffer. Every line that looks like the
    head of a message is a candidate; the result is valid if each message ends where the next
    begins.
    """
    view = np.frombuffer(buffer, dtype=np.uint8, count=end)
    lines = np.flatnonzero(view[start:end] == _NEWLINE) + start
    begins = np.concatenate([[start], lines + 1])[:-1]  # of the lines that are complete
    kind = view[begins]
    heads = np.flatnonzero(((kind == _H) | (kind == _M)) & (lines - begins >= _MIN_HEAD_BYTES))
    with_block = kind[heads] == _H
    word = begins[heads] + with_block
    is_head = (view[word] == _M) & (view[word + 1] == ord("S")) & (view[word + 2] == ord("G"))
    heads, with_block = heads[is_head], with_block[is_head]
    begins, stops = begins[heads], lines[heads] - 1
    sizes = (
        _parse_sizes(buffer, begins, stops, with_block)
        if len(begins) and begins[0] == start
        else None
    )
    if sizes is None:
        return None
    block, size = sizes
    body = stops + 2
    ends = body + size + 2
    whole = ends <= end
    if (
        not whole[:-1].all()
        or not np.array_equal(ends[:-1], begins[1:])
        or (whole[-1] and lines[-1] >= ends[-1])
    ):
        return None
    count = int(whole.sum())
    offsets = np.stack([begins, body, body + block, ends - 2], axis=1)[:count].ravel()
    last = int(ends[count - 1]) if count else start
    return FrameScan(last, offsets, [], 0 if whole.all() else int(ends[-1] - begins[-1]))


def _parse_sizes(
    buffer: bytearray, begins: Positions, stops: Positions, with_block: Positions
) -> tuple[Positions, Positions] | None:
    """Return the sizes of header block and message of each head, or None if one is not a head."""
    (heads,) = cut_columns(buffer, begins, stops)
    _, offsets = get_buffers(heads)
    spaces, counts = find_byte(heads, _SPACE)
    if (np.diff(counts) < 3).any():  # MSG subject sid size
        return None
    before, last = spaces[counts[1:] - 2], spaces[counts[1:] - 1]
    first, second = cut_columns(heads.buffers()[2], before + 1, last, last + 1, offsets[1:])
    block = np.zeros(len(begins), dtype=np.int64)
    try:
        size = parse_numbers(second)
        block[with_block] = parse_numbers(
            first if with_block.all() else first.filter(pa.array(with_block))
        )
    except pa.ArrowInvalid:
        return None
    # `scan_frames` reports the error
    if (block < 0).any() or (block > size).any() or (size > MAX_MESSAGE_BYTES).any():
        return None
    return block, size


class MessageColumns(Struct):
    """Messages of one scan as columns: line without its end, header block, payload.

    The columns are copies, independent of the buffer.
    """

    line: pa.BinaryArray
    headers: pa.BinaryArray
    data: pa.BinaryArray


def cut_messages(buffer: bytearray, found: FrameScan) -> MessageColumns:
    """Copy the messages out of the buffer, which may then be reused."""
    places = np.asarray(found.offsets, dtype=np.int64).reshape(-1, 4)
    begins, headers_at, data_at, stops = places.T
    line, headers, data = cut_columns(
        buffer, begins, headers_at, headers_at, data_at, data_at, stops
    )
    return MessageColumns(line, headers, data)


def find_status_messages(headers: pa.BinaryArray) -> np.ndarray[Any, Any]:
    """Return the positions of status messages: `NATS/1.0 100`, `204`, `404`, `409`."""
    if not len(headers):
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(pc.starts_with(headers, b"NATS/1.0 ").to_numpy(zero_copy_only=False))


def split_tokens(line: bytes) -> list[bytes]:
    """Split the tokens of one line: `MSG subject sid [reply] size`."""
    return line.rstrip(b"\r\n").split(b" ")


class DeliveredMessages(Struct):
    """Messages that a consumer delivered.

    `rows` are in the columns of `MESSAGE_SCHEMA`, `consumer_seqs` are the sequences of the
    consumer, and `pending` is its count after the last message.
    """

    rows: pa.RecordBatch
    consumer_seqs: np.ndarray[Any, Any]
    pending: int


def parse_deliveries(messages: MessageColumns) -> DeliveredMessages:
    """Parse sequence and time from ack subjects, the replies of delivered messages.

    Subjects may contain any byte but spaces, so they are cut as text without a check of the
    encoding. Raises ProtocolError where a reply is not an ack subject.
    """
    try:
        return _parse_deliveries(messages)
    except (pa.ArrowException, LookupError, ValueError, TypeError, AttributeError, OverflowError):
        lines = messages.line.to_pylist()
        raise ProtocolError(
            f"a message that no consumer delivers, among {len(lines)} messages "
            f"that begin with {lines[:1]!r:.80}"
        ) from None


def _parse_deliveries(messages: MessageColumns) -> DeliveredMessages:
    lines = messages.line
    if len(find_byte(lines, _AT)[0]):
        lines = pc.replace_substring_regex(lines, _MERGED_REPLY, _SEPARATED_REPLY)
    spaces, counts = find_byte(lines, _SPACE)
    # MSG subject sid reply size
    first, second, third, fourth = (spaces[counts[:-1] + number] for number in range(4))
    tokens = split_tokens(lines[0].as_py())[3].split(b".")
    head = b"".join(token + b"." for token in tokens[: _COUNT_TOKENS[len(tokens)]])
    begins = third + 1 + len(head)
    if (np.diff(counts) < 4).any() or (begins > fourth).any():
        raise ValueError("a message without an ack subject")
    subject, before, tail = cut_columns(
        lines.buffers()[2], first + 1, second, third + 1, begins, begins, fourth
    )
    if not pc.all(pc.equal(before, head)).as_py():
        raise ValueError("messages of several consumers")
    seq, number, time = (parse_numbers(piece) for piece in _cut_numbers(tail))
    columns = [pa.array(seq), pa.array(time), subject, messages.headers, messages.data]
    return DeliveredMessages(
        pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA),
        number,
        int(tail[-1].as_py().split(b".")[4]),
    )


def _cut_numbers(tail: pa.BinaryArray) -> list[pa.BinaryArray]:
    """Cut the three numbers after the delivery count. Raises ValueError if there are fewer."""
    dots, counts = find_byte(tail, _DOT)
    if (np.diff(counts) < 4).any():
        raise ValueError("an ack subject that is too short")
    first, second, third, fourth = (dots[counts[:-1] + number] for number in range(4))
    return cut_columns(tail.buffers()[2], first + 1, second, second + 1, third, third + 1, fourth)


def concat_rows(*pieces: pa.BinaryArray | pa.BinaryScalar | bytes) -> pa.BinaryArray:
    """Concatenate the pieces of each row."""
    parts = [pa.scalar(piece, BYTES) if isinstance(piece, bytes) else piece for piece in pieces]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", BYTES))


def format_numbers(numbers: pa.Array) -> pa.BinaryArray:
    """Format numbers as text."""
    return pc.cast(numbers, pa.string()).view(BYTES)


def append_header_lines(block: pa.BinaryArray, *lines: pa.BinaryArray | bytes) -> pa.BinaryArray:
    """Append lines to header blocks. A line ends with CRLF.

    An empty line adds nothing, but creates a block.
    """
    return concat_rows(*_append_lines(block, lines))


def _append_lines(
    block: pa.BinaryArray, lines: Sequence[pa.BinaryArray | bytes]
) -> list[pa.BinaryArray | bytes]:
    empty = pc.equal(pc.binary_length(block), 0)
    begun = pc.binary_slice(block, 0, -2)
    return [
        pc.if_else(empty, pa.scalar(b"NATS/1.0\r\n", BYTES), begun)
        if pc.any(empty).as_py()
        else begun,
        *lines,
        b"\r\n",
    ]


def build_frames(
    subject: pa.BinaryArray,
    headers: pa.BinaryArray,
    data: pa.BinaryArray,
    *,
    prefix: bytes = b"",
    reply: pa.BinaryArray | None = None,
    lines: Sequence[pa.BinaryArray | bytes] = (),
) -> tuple[memoryview, np.ndarray[Any, Any]]:
    """Build the frames that publish every row, in one buffer, and their offsets.

    The offsets end with the end of the last frame. `reply` has a leading space, or is empty for no
    acknowledgement. `lines` are added to the headers as in `append_header_lines`. Every frame has
    headers: the server accepts a block of length 0. Raises RefusedError for an invalid subject.
    """
    require_valid_subjects(subject)
    pieces = _append_lines(headers, lines) if lines else [headers]
    sizes = (len(one) if isinstance(one, bytes) else pc.binary_length(one) for one in pieces)
    block = reduce(pc.add, sizes)
    answer = [] if reply is None else [reply]
    words = [
        b"HPUB " + prefix,
        subject,
        *answer,
        b" ",
        format_numbers(block),
        b" ",
        format_numbers(pc.add(block, pc.binary_length(data))),
        b"\r\n",
    ]
    rows = concat_rows(*words, *pieces, data, b"\r\n")
    offsets = get_buffers(rows)[1]
    return memoryview(rows.buffers()[2]), offsets
