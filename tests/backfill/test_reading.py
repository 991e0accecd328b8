from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from jsplan.backfill.protocol import FencedPublisher, RawConnection, publish, read, reader
from jsplan.backfill.protocol.frames import BYTES, concat_rows, format_numbers
from jsplan.backfill.protocol.publisher import PublishRefusedError
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.errors import ApiError, ApiTimeoutError, ServerRefusedError
from tests.backfill.conftest import connection_target
from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.sandbox import Sandbox, Server
    from tests.backfill.conftest import Connect
    from tests.conftest import MakeServer

#: Bytes that a subject may have: everything but spaces, and dots and wildcards where they mean something.
LEGAL = bytes(b for b in range(0x21, 0x7F) if b not in b".*>") + "é€𝄞".encode()
EDGES: list[tuple[bytes, bytes, bytes]] = [
    (b"s." + LEGAL, b"", b"legal"),
    (b"s.empty", b"", b""),
    (b"s.binary", b"", bytes(range(256))),
    (b"s.frame", b"", b"\r\nHMSG a 1 2 3\r\nPING\r\n"),
    (b"s.status", b"", b"NATS/1.0 404 No Messages\r\n\r\n"),
    (b"s.headers", b"NATS/1.0\r\nA: 1\r\nA: 2\r\na:3\r\nOdd: =?x?:  \xff \r\n\r\n", b"x"),
    (b"s.only", b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n", b""),
    (b"s.bare", b"NATS/1.0\r\n\r\n", b"y"),
]


def store(
    server: Server, rows: list[tuple[bytes, bytes, bytes]], name: str = "S", **config: Any
) -> None:
    """A stream with these messages, published by a client that shares nothing with what is tested."""
    with Raw(server.url, server.user, server.password) as raw:
        raw.api_ok(
            f"$JS.API.STREAM.CREATE.{name}",
            {"name": name, "subjects": [f"{name.lower()}.>"], **config},
        )
        for subject, block, data in rows:
            raw.publish_raw(
                subject.decode("latin-1"), block, data
            ) if subject.isascii() else raw.publish_raw(subject.decode(), block, data)
        raw.flush()
        while raw.api_ok(f"$JS.API.STREAM.INFO.{name}")["state"]["last_seq"] < config.get(
            "first_seq", 1
        ) - 1 + len(rows):
            pass


def rows_of(
    server: Server, what: ReadRequest, **options: Any
) -> list[tuple[int, bytes, bytes, bytes]]:
    """What is read: sequence, subject, headers, data."""
    found = []
    for batch in read(lambda: RawConnection(connection_target(server)), what, **options):
        found += list(
            zip(
                *(batch[name].to_pylist() for name in ("seq", "subject", "headers", "data")),
                strict=True,
            )
        )
    return found


def whole_stream(name: str = "S", **fields: Any) -> ReadRequest:
    """All of a stream."""
    return ReadRequest("$JS.API", name, **({"first": 1, "last": 1 << 60} | fields))


@pytest.mark.matrix
def test_every_byte_comes_as_it_was_stored(server: Server) -> None:
    """Empty and binary payloads, odd headers, payloads that look like frames, subjects with every legal character."""
    store(server, EDGES)

    assert rows_of(server, whole_stream()) == [
        (number, *row) for number, row in enumerate(EDGES, 1)
    ]


@pytest.mark.parametrize("size", [300, 40_000])
def test_a_range_ends_in_the_middle_of_what_arrives(server: Server, size: int) -> None:
    """What the server has sent beyond the range, torn anywhere, does not confuse taking the consumer away."""
    count = 20_000_000 // size
    store(server, [(b"s.a", b"", b"H" * size)] * count)

    for last in (count // 10, count // 7, count // 3):
        assert [row[0] for row in rows_of(server, whole_stream(last=last))] == list(
            range(1, last + 1)
        )
    with Raw(server.url) as raw:
        assert raw.api_ok("$JS.API.CONSUMER.NAMES.S")["total"] == 0


@pytest.mark.matrix
def test_times_are_those_of_the_stream(server: Server) -> None:
    """The time of each message is kept to the nanosecond."""
    store(server, EDGES)
    batch = next(iter(read(lambda: RawConnection(connection_target(server)), whole_stream())))
    with Raw(server.url) as raw:
        told = [
            raw.api_ok("$JS.API.STREAM.MSG.GET.S", {"seq": seq})["message"]["time"]
            for seq in (1, 5)
        ]

    found = [np.datetime64(batch["time"][row].as_py(), "ns") for row in (0, 4)]

    assert found == [np.datetime64(text.removesuffix("Z"), "ns") for text in told]


def test_ranges(server: Server) -> None:
    """Both ends belong to a range, holes are no end, and an empty range has nothing."""
    store(server, [(b"s.a", b"", b"%d" % number) for number in range(1, 21)])
    with Raw(server.url) as raw:
        for seq in (5, 6, 7, 15, 19, 20):
            raw.api_ok("$JS.API.STREAM.MSG.DELETE.S", {"seq": seq})

    def seqs(first: int, last: int) -> list[int]:
        return [row[0] for row in rows_of(server, whole_stream(first=first, last=last))]

    assert seqs(3, 9) == [3, 4, 8, 9]
    assert seqs(5, 7) == []
    assert seqs(14, 15) == [14]
    assert seqs(18, 20) == [18]
    assert seqs(19, 20) == []
    assert seqs(9, 8) == []
    assert seqs(30, 40) == []


def test_a_consumer_that_lags(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that sees nothing of what the stream has, as on a server that lags behind the leader, is not believed: read again."""
    store(server, [(b"s.a", b"", b"1"), (b"s.b", b"", b"2")])
    created, seen = reader._create_consumer, list[bool]()  # noqa: SLF001 - no server lags when it is told to

    def lagging(*arguments: Any) -> bool:
        seen.append(created(*arguments))
        return seen[-1] and len(seen) > 1

    monkeypatch.setattr(reader, "_create_consumer", lagging)
    assert [row[0] for row in rows_of(server, whole_stream())] == [1, 2]
    assert [row[0] for row in rows_of(server, whole_stream(filters=("s.b", "s.c")))] == [2]
    assert rows_of(server, whole_stream(filters=("s.c",))) == []
    assert len(seen) == 4


def test_a_stream_that_begins_late(server: Server) -> None:
    """A first sequence of ten million is read from there."""
    store(server, [(b"s.a", b"", b"1"), (b"s.a", b"", b"2")], first_seq=10_000_000)

    assert [row[0] for row in rows_of(server, whole_stream(first=10_000_000, last=10_000_001))] == [
        10_000_000,
        10_000_001,
    ]


def test_filters_and_headers_only(server: Server) -> None:
    """Only what matches one of the filters is delivered; without payloads where only headers are asked for."""
    store(
        server,
        [
            (b"s.%d" % (number % 4), b"NATS/1.0\r\nN: %d\r\n\r\n" % number, b"data")
            for number in range(8)
        ],
    )

    assert [row[1] for row in rows_of(server, whole_stream(filters=("s.1",)))] == [b"s.1", b"s.1"]
    assert [row[1] for row in rows_of(server, whole_stream(filters=("s.1", "s.3")))] == [
        b"s.1",
        b"s.3",
    ] * 2
    assert rows_of(server, whole_stream(filters=("s.none",))) == []
    found = rows_of(server, whole_stream(headers_only=True, first=1, last=1))
    assert found == [(1, b"s.0", b"NATS/1.0\r\nN: 0\r\nNats-Msg-Size: 4\r\n\r\n", b"")]


def test_messages_larger_than_the_buffer(make_server: MakeServer) -> None:
    """The receive buffer grows for a message that does not fit, up to what the server takes."""
    server = make_server(extra="max_payload: 32MB\nmax_pending: 128MB\n")
    large = os.urandom(20 << 20)
    store(server, [(b"s.a", b"", b"small"), (b"s.a", b"", large), (b"s.a", b"", b"small")])

    assert [row[3] for row in rows_of(server, whole_stream())] == [b"small", large, b"small"]


def test_a_stream_that_is_not_there(server: Server) -> None:
    """A missing stream is an error at once, with the server's words."""
    with pytest.raises(
        ServerRefusedError, match=r"refused to read NONE: stream not found \(10059\)"
    ):
        rows_of(server, whole_stream("NONE"))


def test_nothing_is_left_behind(server: Server, open_connection: Connect) -> None:
    """Reading moves nobody's position and leaves no consumer; a work queue keeps its messages, when it has no consumer."""
    store(server, [(b"s.a", b"", b"x")] * 10)
    rows_of(server, whole_stream())

    state = open_connection(server).request("$JS.API.STREAM.INFO.S")["state"]

    assert (state["consumer_count"], state["messages"]) == (0, 10)


def fill(wire: RawConnection, count: int, name: str = "S", size: int = 100) -> None:
    """So many messages, numbered in their payload."""
    wire.request(f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name.lower()}.>"]})
    for start in range(0, count, 5000):
        numbers = pa.array(np.arange(start + 1, min(count, start + 5000) + 1))
        subject = pa.repeat(pa.scalar(f"{name.lower()}.x".encode(), BYTES), len(numbers))
        empty = pa.repeat(pa.scalar(b"", BYTES), len(numbers))
        publish(wire, [(subject, empty, concat_rows(format_numbers(numbers), b" ", b"." * size))])


def test_a_server_that_is_killed_while_reading(
    clean_hub_leaf: Sandbox, open_connection: Connect
) -> None:
    """Read through the hub, the leaf killed and started again in the middle: every message once, in order."""
    hub, leaf, count = clean_hub_leaf["hub"], clean_hub_leaf["leaf"], 60_000
    fill(open_connection(leaf), count, size=1000)
    what, found, killed = ReadRequest("$JS.leaf.API", "S", 1, count), [], False
    restart = threading.Thread(target=leaf.start)

    for batch in read(lambda: RawConnection(connection_target(hub)), what):
        found += batch["seq"].to_pylist()
        if len(found) > count // 4 and not killed:
            killed = True
            leaf.kill()
            restart.start()
    restart.join()

    assert found == list(range(1, count + 1))


def test_a_domain_that_stays_offline(clean_hub_leaf: Sandbox, open_connection: Connect) -> None:
    """A domain that does not come back is an error that says up to where was read."""
    hub, leaf = clean_hub_leaf["hub"], clean_hub_leaf["leaf"]
    fill(open_connection(leaf), 10)
    leaf.stop()

    with pytest.raises(
        ApiTimeoutError, match=r"no message of S at \$JS.leaf.API arrived after sequence 0"
    ):
        rows_of(hub, ReadRequest("$JS.leaf.API", "S", 1, 10), patience=1.0)


# --- writing ---------------------------------------------------------------------------------------------------------


def column(*values: bytes) -> pa.BinaryArray:
    """A column of bytes."""
    return pa.array(list(values), BYTES)


def write_numbered(chain: FencedPublisher, count: int, subject: bytes = b"s.x") -> None:
    """Write so many messages that hold their number."""
    data = format_numbers(pa.array(np.arange(1, count + 1)))
    chain.write(
        pa.repeat(pa.scalar(subject, BYTES), count), pa.repeat(pa.scalar(b"", BYTES), count), data
    )


@pytest.fixture
def target(server: Server, open_connection: Connect) -> Server:
    """A server with an empty stream `S`."""
    open_connection(server).request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    return server


@pytest.mark.matrix
@pytest.mark.parametrize("sparse", [False, True])
def test_a_chain_is_stored_in_order(target: Server, open_connection: Connect, sparse: bool) -> None:
    """Everything that was written is stored, in order, and the last sequence is known at the end."""
    chain = FencedPublisher(open_connection(target), 0, sparse=sparse)
    write_numbered(chain, 7_500)

    assert chain.finish() == 7_500
    assert [row[3] for row in rows_of(target, whole_stream())] == [
        b"%d" % number for number in range(1, 7_501)
    ]


@pytest.mark.matrix
def test_a_broken_chain_is_noticed(target: Server, open_connection: Connect) -> None:
    """After a message that is not where it should be nothing more is stored, and the next answer says so."""
    chain = FencedPublisher(open_connection(target), 1)
    write_numbered(chain, 5)

    with pytest.raises(PublishRefusedError, match="wrong last sequence: 0") as refused:
        chain.finish()

    assert refused.value.is_fenced
    assert rows_of(target, whole_stream()) == []


@pytest.mark.matrix
def test_a_broken_sparse_chain_is_noticed(target: Server, open_connection: Connect) -> None:
    """The last message of each chunk is refused that is not where it should be: nothing proves what was before it."""
    chain = FencedPublisher(open_connection(target), 1, sparse=True)
    write_numbered(chain, 1005)

    with pytest.raises(PublishRefusedError, match="wrong last sequence: 999") as refused:
        chain.finish()

    assert refused.value.is_fenced
    assert not any(b"Expected" in row[2] for row in rows_of(target, whole_stream()))


def test_a_chain_does_not_keep_others_out(target: Server, open_connection: Connect) -> None:
    """What a second writer sends fits again behind as many messages as a first one wrote: so no two attempts share a stream."""
    first, second = (
        FencedPublisher(open_connection(target), 0),
        FencedPublisher(open_connection(target), 0),
    )
    write_numbered(first, 10)
    first.finish()

    write_numbered(second, 20)

    assert second.finish() == 20
    assert [row[3] for row in rows_of(target, whole_stream())] == [
        b"%d" % number for number in range(1, 21)
    ]


def test_a_publisher_continues_where_it_ended(target: Server, open_connection: Connect) -> None:
    """A new chain that begins at the stream's last sequence is taken."""
    write_numbered(one := FencedPublisher(open_connection(target), 0), 5)
    two = FencedPublisher(open_connection(target), one.finish())
    write_numbered(two, 5)

    assert two.finish() == 10


def test_a_target_that_is_gone(server: Server, open_connection: Connect) -> None:
    """A subject that no stream stores is an error, not a wait."""
    chain = FencedPublisher(open_connection(server), 0)
    write_numbered(chain, 5)

    with pytest.raises(ApiError, match="no stream takes these messages any more"):
        chain.finish()


@pytest.mark.matrix
def test_acknowledged_messages(target: Server, open_connection: Connect) -> None:
    """Each message is acknowledged; one that the server knows already by its id is counted."""
    rows = (
        column(b"s.a", b"s.a", b"s.b"),
        column(*(b"NATS/1.0\r\nNats-Msg-Id: %s\r\n\r\n" % n for n in (b"1", b"1", b"2"))),
        column(b"x", b"x", b"y"),
    )

    assert publish(open_connection(target), [rows]) == (3, 1)
    assert [row[1] for row in rows_of(target, whole_stream())] == [b"s.a", b"s.b"]


def test_a_message_that_is_too_large(server: Server, open_connection: Connect) -> None:
    """A stream's own limit refuses a message with the server's words."""
    wire = open_connection(server)
    wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "max_msg_size": 10})

    with pytest.raises(ServerRefusedError, match=r"message size exceeds maximum allowed \(10054\)"):
        publish(wire, [(column(b"s.a"), column(b""), column(b"x" * 11))])
