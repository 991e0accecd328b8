from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from jsplan.backfill.protocol import RawConnection, reader
from jsplan.backfill.protocol.frames import BYTES
from jsplan.backfill.protocol.publisher import publish
from jsplan.backfill.protocol.reader import ReadRequest, read
from jsplan.backfill.protocol.stream_info import (
    count_pending,
    fetch_stream_info,
    find_first_seq_at,
    request_api,
)
from jsplan.errors import ApiError
from jsplan.jetstream.contexts import ConnectionSettings
from tests.support.listening_server import ListeningServer, info_line

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

#: Seconds. The servers here answer at once.
LONG = 20.0
SHAPES: list[bytes] = [
    b"[]", b"5", b"null", b"{", b"[" * 50_000, b'{"error": "x"}', b'{"error": null}', b'{"error": {"code": "x"}}', b'{"error": [1]}',
    b'{"state": null}', b'{"state": {"first_seq": "x"}, "created": 5}', b'{"num_pending": "x"}', b'{"num_pending": 5, "delivered": 3}',
    b'{"num_pending": 5, "delivered": {}}', b'{"created": "a", "state": {"first_seq": 1, "last_seq": 1, "messages": 1}, "config": 5}',
    b'{"message": {"seq": "x"}}', b'{"message": [1]}',
]  # fmt: skip


def answering(body: bytes) -> Callable[[ListeningServer, socket.socket], None]:
    """Answer every request, and every message that wants an answer, with this body."""

    def serve(server: ListeningServer, stream: socket.socket) -> None:
        stream.sendall(info_line())
        rest = b""
        while data := server.read(stream):
            *lines, rest = (rest + data).split(b"\r\n")
            for line in lines:
                words = line.split(b" ")
                if words[0] == b"PING":
                    stream.sendall(b"PONG\r\n")
                elif words[0] == b"HPUB" and len(words) == 5:
                    stream.sendall(b"MSG %s 1 %d\r\n%s\r\n" % (words[2], len(body), body))

    return serve


@pytest.mark.parametrize("body", SHAPES, ids=lambda body: repr(body[:40]))
def test_an_answer_of_any_shape(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of any shape to a request of a copy gives a result or an `ApiError`."""
    monkeypatch.setattr(reader, "SILENCE_TIMEOUT", 0.05)
    asks: list[Callable[[RawConnection], object]] = [
        lambda connection: request_api(connection, "$JS.API", "INFO"),
        lambda connection: fetch_stream_info(connection, "$JS.API", "S"),
        lambda connection: find_first_seq_at(connection, "$JS.API", "S", 5),
        lambda connection: count_pending(connection, "$JS.API", "S", 1),
        lambda connection: list(
            read(lambda: connection, ReadRequest("$JS.API", "S", 1, 5), patience=0.0)
        ),
    ]
    with ListeningServer(answering(body)) as server:
        for ask in asks:
            connection = RawConnection(
                ConnectionSettings("main", f"nats://127.0.0.1:{server.port}", "it", timeout=LONG)
            )
            with contextlib.closing(connection), contextlib.suppress(ApiError):
                json.dumps(ask(connection), default=str)


def delivering(*sequences: int) -> Callable[[ListeningServer, socket.socket], None]:
    """Accept every consumer, and deliver a message of each sequence."""
    made = b'{"num_pending": %d, "delivered": {"consumer_seq": 0}}' % len(sequences)
    replies = (
        b"$JS.ACK.S.c.1.%d.%d.1700000000000000000.%d" % (seq, n, len(sequences) - n)
        for n, seq in enumerate(sequences, 1)
    )
    messages = b"".join(b"MSG a 2 %s 1\r\nx\r\n" % reply for reply in replies)

    def serve(server: ListeningServer, stream: socket.socket) -> None:
        stream.sendall(info_line())
        while data := server.read(stream):
            for line in data.split(b"\r\n"):
                words = line.split(b" ")
                if words[0] == b"PING":
                    stream.sendall(b"PONG\r\n")
                elif words[0] == b"HPUB" and b"CONSUMER.CREATE" in words[1]:
                    stream.sendall(
                        b"MSG %s 1 %d\r\n%s\r\n" % (words[2], len(made), made) + messages
                    )

    return serve


@pytest.mark.parametrize("sequences", [(3, 4, 2, 5), (3, 3), (1, 2)], ids=str)
def test_sequences_that_go_back(sequences: tuple[int, ...]) -> None:
    """A sequence that does not ascend is refused, since a copy would have the message twice."""
    with ListeningServer(delivering(*sequences)) as server:
        target = ConnectionSettings("main", f"nats://127.0.0.1:{server.port}", "it", timeout=LONG)
        with pytest.raises(ApiError, match="sequences that do not ascend"):
            list(
                read(lambda: RawConnection(target), ReadRequest("$JS.API", "S", 2, 5), patience=0.0)
            )


@pytest.mark.parametrize(
    "body",
    [b'"error"', b'{"error": "x"}', b'{"error": null}', b'{"error"', b'{"error": {"code": []}}'],
    ids=repr,
)
def test_an_ack_of_any_shape(body: bytes) -> None:
    """An invalid acknowledgement is an `ApiError`."""
    column = pa.array([b"x"], BYTES)
    with ListeningServer(answering(body)) as server:
        connection = RawConnection(
            ConnectionSettings("main", f"nats://127.0.0.1:{server.port}", "it", timeout=LONG)
        )
        with pytest.raises(ApiError):
            publish(connection, [(column, pa.array([b""], BYTES), column)])
        connection.close()
