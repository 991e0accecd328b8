from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.protocol.parser import Parser

from jsplan.backfill.protocol.columns import find_invalid_row
from jsplan.backfill.protocol.frames import (
    BYTES,
    MAX_LINE_BYTES,
    MAX_MESSAGE_BYTES,
    FrameScan,
    ProtocolError,
    append_header_lines,
    build_frames,
    concat_rows,
    cut_messages,
    find_status_messages,
    parse_deliveries,
    scan_frames,
    scan_small_frames,
)
from jsplan.backfill.protocol.publisher import CHUNK_BYTES, CHUNK_MESSAGES, split_chunks

SUBJECTS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Z"]), min_size=1, max_size=12
).map(lambda text: text.encode().replace(b" ", b"_"))
VALUES = st.binary(max_size=8).map(lambda value: value.replace(b"\r", b"").replace(b"\n", b""))
PUBLISHABLE = SUBJECTS.filter(lambda text: find_invalid_row(pa.array([text], BYTES)) is None)
PAYLOADS = st.binary(max_size=60) | st.sampled_from(
    [b"", b"\r\nHMSG a 1 2 3\r\n", b"NATS/1.0 404\r\n\r\n", b"PING\r\n", b"\r\n"]
)
BLOCKS = st.lists(st.tuples(st.sampled_from([b"A", b"Nats-Msg-Id", b"a"]), VALUES), max_size=3).map(
    lambda rows: b"NATS/1.0\r\n" + b"".join(k + b": " + v + b"\r\n" for k, v in rows) + b"\r\n"
)


@dataclass
class Message:
    """One MSG or HMSG frame."""

    subject: bytes
    data: bytes
    headers: bytes = b""
    reply: bytes = b""

    def frame(self) -> bytes:
        """Return the frame as a server sends it."""
        to = b" ".join(word for word in (self.subject, b"7", self.reply) if word)
        if self.headers:
            return b"HMSG %s %d %d\r\n%s%s\r\n" % (
                to,
                len(self.headers),
                len(self.headers) + len(self.data),
                self.headers,
                self.data,
            )
        return b"MSG %s %d\r\n%s\r\n" % (to, len(self.data), self.data)


MESSAGE = st.builds(Message, SUBJECTS, PAYLOADS, st.just(b"") | BLOCKS, st.just(b"") | SUBJECTS)
WORD = st.sampled_from([b"PING\r\n", b"+OK\r\n", b"PONG\r\n", b'INFO {"server_name":"a b"}\r\n'])
STREAM = st.lists(
    MESSAGE.map(lambda m: (m, m.frame())) | WORD.map(lambda word: (None, word)), max_size=12
)


@dataclass
class ReferenceParser:
    """Messages that the parser of nats-py finds in a stream of bytes."""

    messages: list[tuple[bytes, bytes, bytes, bytes]] = field(default_factory=list)

    async def _process_msg(
        self, _sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        self.messages.append(
            (bytes(subject), bytes(reply or b""), bytes(headers or b""), bytes(data))
        )

    async def _nothing(self, *_: Any) -> None:
        pass

    _process_ping = _process_pong = _process_err = _process_info = _nothing


def parse_by_nats_py(data: bytes) -> list[tuple[bytes, bytes, bytes, bytes]]:
    """Parse messages with nats-py."""
    listener = ReferenceParser()
    asyncio.run(Parser(listener).parse(data))
    return listener.messages


def parse_in_chunks(data: bytes, cuts: list[int]) -> list[tuple[bytes, bytes, bytes, bytes]]:
    """Parse messages with jsplan from bytes that arrive in chunks."""
    found: list[tuple[bytes, bytes, bytes, bytes]] = []
    buffer = bytearray()
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    for start, stop in itertools.pairwise(places):
        buffer += data[start:stop]
        seen = scan_frames(buffer, 0, len(buffer))
        if seen.count:
            cut = cut_messages(buffer, seen)
            for line, headers, body in zip(
                cut.line.to_pylist(), cut.headers.to_pylist(), cut.data.to_pylist(), strict=True
            ):
                words = line.rstrip(b"\r\n").split(b" ")
                reply = words[3] if len(words) - (line.startswith(b"HMSG")) == 5 else b""
                found.append((words[1], reply, headers, body))
        del buffer[: seen.end]
    assert not buffer
    return found


@settings(max_examples=300, deadline=None)
@given(STREAM, st.lists(st.integers(0, 10_000), max_size=8))
def test_chunks_are_parsed_like_nats_py(
    stream: list[tuple[Message | None, bytes]], cuts: list[int]
) -> None:
    """Bytes in any chunks give the messages that the parser of nats-py finds."""
    data = b"".join(frame for _, frame in stream)

    assert parse_in_chunks(data, cuts) == parse_by_nats_py(data)
    assert [m[3] for m in parse_in_chunks(data, cuts)] == [
        message.data for message, _ in stream if message is not None
    ]


@settings(max_examples=300, deadline=None)
@given(STREAM, st.integers(0, 10_000), st.binary(max_size=9))
def test_fast_and_general_scans_agree(
    stream: list[tuple[Message | None, bytes]], cut: int, before: bytes
) -> None:
    """The scan of small frames finds the same as the general scan, or nothing."""
    data = before + b"".join(frame for _, frame in stream)
    buffer, end = bytearray(data), len(before) + cut % (len(data) - len(before) + 1)

    seen, walked = (
        scan_small_frames(buffer, len(before), end),
        scan_frames(buffer, len(before), end),
    )

    if seen is not None:
        assert (list(seen.offsets), seen.end, seen.control) == (
            list(walked.offsets),
            walked.end,
            walked.control,
        )
        assert seen.needed_bytes in (0, walked.needed_bytes)
        assert (seen.needed_bytes > 0) <= (walked.needed_bytes > 0)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.builds(
            Message,
            SUBJECTS,
            st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"").replace(b"M", b"")),
            BLOCKS,
        ),
        min_size=1,
        max_size=9,
    )
)
def test_small_messages_take_the_fast_scan(messages: list[Message]) -> None:
    """Small messages as a server usually delivers them take the fast scan."""
    buffer = bytearray(b"".join(message.frame() for message in messages))

    seen = scan_small_frames(buffer, 0, len(buffer))

    assert seen is not None
    assert seen.count == len(messages)
    assert cut_messages(buffer, seen).data.to_pylist() == [message.data for message in messages]


def test_a_partial_frame_reports_its_size() -> None:
    """A message larger than the buffer reports the size that the buffer needs."""
    frame = Message(b"a", b"x" * 1000, b"NATS/1.0\r\n\r\n").frame()

    seen = scan_frames(bytearray(frame[:100]), 0, 100)

    assert (seen.count, seen.end, seen.needed_bytes) == (0, 0, len(frame))


JUNK = [
    b"MSG a 1 x\r\n", b"HMSG a 1 1 x\r\n", b"MSG a 1 -15\r\n" + b"x" * 40, b"MSG a 1 +5\r\nabcde\r\n", b"MSG a 1 1_0\r\n0123456789\r\n",
    b"MSG a 1 \r\n", b"MSG \r\n", b"MSG a 1 99999999999\r\n", b"MSG a 1 %s\r\n" % (b"9" * 5000), b"MSG a 1 999999999\r\n", b"HMSG 5\r\n",
    b"HMSG a 1 9 5\r\nabcde\r\n", b"HMSG a 1 -9 5\r\nabcde\r\n", b"HMSG a 1 5 -9\r\nabcde\r\n", b"x" * (MAX_LINE_BYTES + 1),
]  # fmt: skip


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: repr(junk[:24]))
def test_invalid_protocol_is_refused(junk: bytes) -> None:
    """A frame with an invalid size is refused and never waited for."""
    buffer = bytearray(junk)
    with pytest.raises(ProtocolError, match="is not the NATS protocol"):
        scan_frames(buffer, 0, len(buffer))
    assert scan_small_frames(buffer, 0, len(buffer)) is None


NUMBER = st.sampled_from(
    [
        b"0",
        b"1",
        b"5",
        b"-1",
        b"-15",
        b"x",
        b"",
        b"99999999",
        b"9" * 30,
        b" 3",
        b"0x5",
        "\u0665".encode(),
    ]
)
KINDS = st.sampled_from([b"MSG", b"HMSG", b"MXG", b"H"])
ANY_BYTES = st.one_of(
    STREAM.map(lambda rows: b"".join(frame for _, frame in rows)),
    st.builds(lambda *words: b" ".join(words) + b"\r\n", KINDS, SUBJECTS, NUMBER, NUMBER, NUMBER),
    st.builds(lambda *words: b" ".join(words) + b"\r\n", KINDS, NUMBER),
    st.binary(max_size=30), PAYLOADS,
)  # fmt: skip


@given(
    st.lists(ANY_BYTES, max_size=6),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4),
)
def test_any_bytes_are_parsed_or_refused(pieces: list[bytes], flips: list[tuple[int, int]]) -> None:
    """Any bytes give frames within the buffer or a `ProtocolError`, and both scans agree."""
    buffer = bytearray(b"".join(pieces))
    for place, byte in flips:
        if buffer:
            buffer[place % len(buffer)] = byte
    many = scan_small_frames(buffer, 0, len(buffer))
    try:
        seen = scan_frames(buffer, 0, len(buffer))
    except ProtocolError:
        return
    places = list(seen.offsets)

    assert places == sorted(places)
    assert 0 <= seen.end <= len(buffer)
    assert seen.needed_bytes <= MAX_MESSAGE_BYTES + MAX_LINE_BYTES
    if many is not None and not seen.control:
        assert (list(many.offsets), many.end) == (places, seen.end)
    if places:
        with contextlib.suppress(ProtocolError):
            parse_deliveries(cut_messages(buffer, seen))


STRANGE_ACKS = [
    b"", b"x", b"$JS.ACK.S.c.1.41", b"$JS.ACK.S.c.1.a.b.c.d", b"$JS.ACK.S.c.1.-1.2.3.x", b"$JS.ACK.S.c.1.41.2.99999999999999999999.5",
    b"$JS.ACK.S.c.1.41.2.3", b"........", b"$JS.ACK.S.c.1.41.2.3.", b"\xff.\xff.\xff.\xff.\xff.\xff.\xff.\xff.\xff",
    b"$JS.ACK.hub.ABCD.S.c.1.41.1.1795309291290062261", b"$JS.ACK.S.c.1.41.1.1795309291290062261.5@x",
]  # fmt: skip


@pytest.mark.parametrize("reply", STRANGE_ACKS, ids=repr)
@pytest.mark.parametrize("together", [False, True], ids=["alone", "among good ones"])
def test_an_invalid_ack_subject_is_refused(reply: bytes, together: bool) -> None:
    """An invalid ack subject raises nothing but `ProtocolError`, alone and among others."""
    good = Message(b"s", b"x", reply=b"$JS.ACK.S.c.1.41.1.1795309291290062261.5").frame()
    frames = Message(b"s", b"x", reply=reply).frame()
    buffer = bytearray(good + frames + good if together else frames)
    with contextlib.suppress(ProtocolError):
        parse_deliveries(cut_messages(buffer, scan_frames(buffer, 0, len(buffer))))


ACKS = {
    "local": b"$JS.ACK.S.c.1.41.%d.1795309291290062261.%d",
    "with a domain": b"$JS.ACK.hub.ABCD.S.c.1.41.%d.1795309291290062261.%d",
    "with a token more": b"$JS.ACK.hub.ABCD.S.c.1.41.%d.1795309291290062261.%d.rnd",
    "of a stream that is not ASCII": "$JS.ACK.S\u00e9\u20ac.c.1.41.%d.1795309291290062261.%d".encode(),
}


@pytest.mark.parametrize("form", ACKS.values(), ids=ACKS)
def test_every_form_of_ack_subject(form: bytes) -> None:
    """Sequence, time and pending count are parsed from each form of ack subject."""
    frames = [
        Message(b"s.\xc3\xa9", b"one", b"", form % (1, 1)).frame(),
        Message(b"s.b", b"", b"NATS/1.0\r\n\r\n", form % (2, 0)).frame(),
    ]
    buffer = bytearray(b"".join(frames))

    found = parse_deliveries(cut_messages(buffer, scan_frames(buffer, 0, len(buffer))))

    assert found.rows.to_pydict() == {
        "seq": [41, 41],
        "time": [1795309291290062261] * 2,
        "subject": [b"s.\xc3\xa9", b"s.b"],
        "headers": [b"", b"NATS/1.0\r\n\r\n"],
        "data": [b"one", b""],
    }
    assert (found.consumer_seqs.tolist(), found.pending) == ([1, 2], 0)


def test_ack_subjects_of_different_forms() -> None:
    """Redelivered messages and mixed forms of ack subjects are parsed in one buffer."""
    replies = [
        ACKS["local"] % (1, 2),
        ACKS["local"].replace(b".1.41.", b".2.41.") % (2, 1),
        ACKS["with a domain"] % (3, 0),
    ]
    for some in (replies[:2], replies[1:2], replies[2:]):
        buffer = bytearray(b"".join(Message(b"s", b"x", b"", reply).frame() for reply in some))

        found = parse_deliveries(cut_messages(buffer, scan_frames(buffer, 0, len(buffer))))

        assert found.rows["seq"].to_pylist() == [41] * len(some)
        assert found.consumer_seqs.tolist() == [1 + replies.index(reply) for reply in some]
        assert found.pending == 2 - replies.index(some[-1])


def test_columns_outlive_the_buffer() -> None:
    """A batch is a copy that later receives do not change."""
    buffer = bytearray(Message(b"a", b"before").frame())
    cut = cut_messages(buffer, scan_frames(buffer, 0, len(buffer)))
    buffer[:] = b"#" * len(buffer)

    assert cut.data.to_pylist() == [b"before"]


def test_status_messages_are_found() -> None:
    """A status line is found; a payload that looks like one is not."""
    blocks = pa.array(
        [b"NATS/1.0\r\n\r\n", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", b"", b"NATS/1.0 404\r\n\r\n"],
        BYTES,
    )

    assert find_status_messages(blocks).tolist() == [1, 3]
    assert find_status_messages(pa.array([], BYTES)).tolist() == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(PUBLISHABLE, st.just(b"") | BLOCKS, PAYLOADS), min_size=1, max_size=8))
def test_published_frames_are_parsed_back(rows: list[tuple[bytes, bytes, bytes]]) -> None:
    """A published frame that is delivered gives back what was framed."""
    subject, headers, data = (pa.array(column, BYTES) for column in zip(*rows, strict=True))

    buffer, offsets = build_frames(subject, headers, data, prefix=b"in.")

    sent = bytes(buffer[offsets[0] : offsets[-1]])
    assert len(offsets) == len(rows) + 1
    received = b"".join(_as_delivered(bytes(buffer[a:b])) for a, b in itertools.pairwise(offsets))
    assert sent.count(b"HPUB in.") >= len(rows)
    assert parse_by_nats_py(received) == [(b"in." + s, b"", h, d) for s, h, d in rows]


def _as_delivered(frame: bytes) -> bytes:
    """Turn an HPUB frame into HMSG, or into MSG without headers, which nats-py needs."""
    line, _, rest = frame.partition(b"\r\n")
    _, subject, block, size = line.split(b" ")
    if block == b"0":
        return b"MSG %s 1 %s\r\n%s" % (subject, size, rest)
    return b"HMSG %s 1 %s %s\r\n%s" % (subject, block, size, rest)


def test_only_wanted_replies_are_framed() -> None:
    """Only messages that want an answer name a reply."""
    two = pa.array([b"a", b"b"], BYTES)

    buffer, _ = build_frames(
        two, pa.array([b"", b""], BYTES), two, reply=pa.array([b"", b" inbox.1"], BYTES)
    )

    assert bytes(buffer) == b"HPUB a 0 1\r\na\r\nHPUB b inbox.1 0 1\r\nb\r\n"


def test_lines_are_added_to_header_blocks() -> None:
    """A line is added before the end of a header block; a message without headers gets a block."""
    blocks = pa.array([b"NATS/1.0\r\nA: 1\r\n\r\n", b""], BYTES)

    found = append_header_lines(blocks, b"B: ", pa.array([b"2", b"3"], BYTES), b"\r\n")

    assert found.to_pylist() == [b"NATS/1.0\r\nA: 1\r\nB: 2\r\n\r\n", b"NATS/1.0\r\nB: 3\r\n\r\n"]


def test_joined_rows_keep_their_bytes() -> None:
    """Rows are joined as bytes, without any encoding."""
    assert concat_rows(b"\xff", pa.array([b"\x00", b""], BYTES)).to_pylist() == [
        b"\xff\x00",
        b"\xff",
    ]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, CHUNK_BYTES * 2), min_size=1, max_size=50))
def test_chunks_are_bounded(sizes: list[int]) -> None:
    """Chunks cover every row once, in order, within the bounds of rows and bytes.

    A single message may be larger than the bound of bytes.
    """
    found = list(split_chunks(np.array(sizes)))

    assert [row for start, stop in found for row in range(start, stop)] == list(range(len(sizes)))
    assert all(
        stop - start <= CHUNK_MESSAGES
        and (stop - start == 1 or sum(sizes[start:stop]) <= CHUNK_BYTES)
        for start, stop in found
    )


def test_many_small_messages_are_chunks_of_a_thousand() -> None:
    """Small messages are split into chunks of a thousand."""
    assert list(split_chunks(np.full(2500, 10))) == [(0, 1000), (1000, 2000), (2000, 2500)]


def test_an_empty_buffer_has_no_frame() -> None:
    """An empty buffer has no frame."""
    assert scan_frames(bytearray(), 0, 0) == FrameScan(0)
