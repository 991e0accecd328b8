"""Parse the messages of a receive buffer, and build frames to send, many at once.

Per message, only the walk between frames (`scan_frames`) runs in Python. Everything else is one
Arrow kernel for the whole buffer. All functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from jsplan.backfill.protocol.arrow_split import (
    Positions,
    cut_columns,
    find_byte,
    get_buffers,
    parse_numbers,
)
from jsplan.backfill.protocol.row_check import require_valid_subjects
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
#: Position of the stream sequence in an ack subject, by its number of tokens: without and with
#: domain and account. The consumer sequence, the time (ns) and the pending count follow it.
_SEQ_TOKENS: Final = {9: 5, 11: 7, 12: 7}

_MERGED_REPLY_PATTERN: Final = (
    r"^(?P<reply>(?:[^.]+\.){8}(?:(?:[^.]+\.){2,3})?[0-9]+)@(?P<rest>(?s:.*))$"
)
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
    spaces, counts = find_byte(messages.line, _SPACE)
    # MSG subject sid reply size
    if len(find_byte(messages.line, _AT)[0]) or (np.diff(counts) < 4).any():
        return _parse_deliveries_slowly(messages)
    first, second, third, fourth = (spaces[counts[:-1] + number] for number in range(4))
    head = _reply_prefix(split_tokens(messages.line[0].as_py())[3])
    begins = third + 1 + len(head)
    if (begins > fourth).any():
        return _parse_deliveries_slowly(messages)
    subject, before, tail = cut_columns(
        messages.line.buffers()[2], first + 1, second, third + 1, begins, begins, fourth
    )
    cuts = _cut_numbers(tail) if pc.all(pc.equal(before, head)).as_py() else None
    if cuts is None:
        return _parse_deliveries_slowly(messages)
    seq, number, time = (parse_numbers(piece) for piece in cuts)
    columns = [pa.array(seq), pa.array(time), subject, messages.headers, messages.data]
    return DeliveredMessages(
        pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA),
        number,
        int(tail[-1].as_py().split(b".")[3]),
    )


def _cut_numbers(tail: pa.BinaryArray) -> list[pa.BinaryArray] | None:
    """Cut the first three numbers, each followed by a dot, or return None if there are fewer."""
    dots, counts = find_byte(tail, _DOT)
    if (np.diff(counts) < 3).any():
        return None
    _, offsets = get_buffers(tail)
    first, second, third = (dots[counts[:-1] + number] for number in range(3))
    return cut_columns(tail.buffers()[2], offsets[:-1], first, first + 1, second, second + 1, third)


def _reply_prefix(reply: bytes) -> bytes:
    """Return the part of an ack subject before its numbers. It is the same for one consumer."""
    tokens = reply.split(b".")
    return b"".join(token + b"." for token in tokens[: _SEQ_TOKENS[len(tokens)]])


def _parse_deliveries_slowly(messages: MessageColumns) -> DeliveredMessages:
    """Parse deliveries whose replies differ in more than their numbers."""
    words = pc.split_pattern(messages.line.view(pa.string()), " ")
    reply, subject = _split_merged_replies(pc.list_element(words, 3), pc.list_element(words, 1))
    place = _SEQ_TOKENS[reply[0].as_py().count(".") + 1]
    parts = pc.split_pattern(reply, ".")
    seq, number, time = (pc.cast(pc.list_element(parts, place + k), pa.int64()) for k in range(3))
    columns = [seq, time, subject.view(BYTES), messages.headers, messages.data]
    return DeliveredMessages(
        pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA),
        number.to_numpy(),
        int(parts[-1].as_py()[place + 3]),
    )


def _split_merged_replies(
    reply: pa.StringArray, subject: pa.StringArray
) -> tuple[pa.StringArray, pa.StringArray]:
    """Separate replies and subjects that a server merged.

    Between servers the subject follows the reply and an `@`. Servers before 2.11 cut at the last
    `@`, even if it is part of the subject.
    """
    found = pc.extract_regex(reply.view(BYTES), pattern=_MERGED_REPLY_PATTERN)
    meant, rest = pc.struct_field(found, "reply"), pc.struct_field(found, "rest")
    whole = pc.if_else(
        pc.is_valid(rest),
        concat_rows(pc.coalesce(rest, b""), b"@", subject.view(BYTES)),
        subject.view(BYTES),
    )
    return pc.coalesce(meant, reply.view(BYTES)).view(pa.string()), whole.view(pa.string())


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
    block = _sum_sizes(pieces)
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


def _sum_sizes(pieces: Iterable[pa.BinaryArray | bytes]) -> pa.Array:
    """Return the total bytes of the pieces of each row."""
    total: Any = 0
    for piece in pieces:
        total = pc.add(total, len(piece) if isinstance(piece, bytes) else pc.binary_length(piece))
    return total
