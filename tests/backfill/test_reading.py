from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from jsplan.backfill.protocol import FencedPublisher, RawConnection, publish, read, reader
from jsplan.backfill.protocol.frames import BYTES, concat_rows, format_numbers
from jsplan.backfill.protocol.publisher import Destination, PublishRefusedError
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.protocol.stream_info import fetch_stream_info
from jsplan.errors import (
    ApiError,
    ApiTimeoutError,
    NoRespondersError,
    RefusedError,
    ServerRefusedError,
)
from jsplan.identity import KnownObject
from tests.backfill.backfill_pair import connection_target
from tests.support.raw import Raw
from tests.support.waiting import wait_until

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
    """Create a stream with these messages, published by an independent client."""
    with Raw(server.url, server.user, server.password) as raw:
        raw.create(name, subjects=[f"{name.lower()}.>"], **config)
        for subject, block, data in rows:
            raw.publish_raw(
                subject.decode("latin-1"), block, data
            ) if subject.isascii() else raw.publish_raw(subject.decode(), block, data)
        raw.flush()
        last = config.get("first_seq", 1) - 1 + len(rows)
        wait_until(lambda: raw.state(name)["last_seq"] >= last, f"{len(rows)} messages")


def read_rows(
    server: Server, what: ReadRequest, **options: Any
) -> list[tuple[int, bytes, bytes, bytes]]:
    """Read sequence, subject, headers and data."""
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
    """Return a request for all messages of a stream."""
    return ReadRequest("$JS.API", name, **({"first": 1, "last": 1 << 60} | fields))


@pytest.mark.matrix
def test_every_byte_is_read(server: Server) -> None:
    """Unusual payloads, headers and subjects are read as they were stored."""
    store(server, EDGES)

    assert read_rows(server, whole_stream()) == [
        (number, *row) for number, row in enumerate(EDGES, 1)
    ]


@pytest.mark.parametrize("size", [300, 40_000])
def test_messages_beyond_the_range_are_ignored(server: Server, size: int) -> None:
    """Messages that the server sends beyond the range do not disturb the consumer's removal."""
    count = 20_000_000 // size
    store(server, [(b"s.a", b"", b"H" * size)] * count)

    for last in (count // 10, count // 7, count // 3):
        assert [row[0] for row in read_rows(server, whole_stream(last=last))] == list(
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
        expected = [
            raw.api_ok("$JS.API.STREAM.MSG.GET.S", {"seq": seq})["message"]["time"]
            for seq in (1, 5)
        ]

    found = [np.datetime64(batch["time"][row].as_py(), "ns") for row in (0, 4)]

    assert found == [np.datetime64(text.removesuffix("Z"), "ns") for text in expected]


def test_ranges(server: Server) -> None:
    """Both ends belong to a range, deleted messages do not end it, and it may be empty."""
    store(server, [(b"s.a", b"", b"%d" % number) for number in range(1, 21)])
    with Raw(server.url) as raw:
        for seq in (5, 6, 7, 15, 19, 20):
            raw.api_ok("$JS.API.STREAM.MSG.DELETE.S", {"seq": seq})

    def seqs(first: int, last: int) -> list[int]:
        return [row[0] for row in read_rows(server, whole_stream(first=first, last=last))]

    assert seqs(3, 9) == [3, 4, 8, 9]
    assert seqs(5, 7) == []
    assert seqs(14, 15) == [14]
    assert seqs(18, 20) == [18]
    assert seqs(19, 20) == []
    assert seqs(9, 8) == []
    assert seqs(30, 40) == []


def test_a_lagging_consumer_is_read_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer without the messages of its stream, as on a lagging server, is read again."""
    store(server, [(b"s.a", b"", b"1"), (b"s.b", b"", b"2")])
    created, seen = reader._create_consumer, list[bool]()  # noqa: SLF001 - no test can make a server lag

    def lagging(*arguments: Any) -> bool:
        seen.append(created(*arguments))
        return seen[-1] and len(seen) > 1

    monkeypatch.setattr(reader, "_create_consumer", lagging)
    assert [row[0] for row in read_rows(server, whole_stream())] == [1, 2]
    assert [row[0] for row in read_rows(server, whole_stream(filters=("s.b", "s.c")))] == [2]
    assert read_rows(server, whole_stream(filters=("s.c",))) == []
    assert len(seen) == 4


def test_a_stream_that_begins_late(server: Server) -> None:
    """A stream with a high first sequence is read from there."""
    store(server, [(b"s.a", b"", b"1"), (b"s.a", b"", b"2")], first_seq=10_000_000)

    assert [
        row[0] for row in read_rows(server, whole_stream(first=10_000_000, last=10_000_001))
    ] == [
        10_000_000,
        10_000_001,
    ]


def test_filters_and_headers_only(server: Server) -> None:
    """Only matching subjects are delivered, and no payloads with `headers_only`."""
    store(
        server,
        [
            (b"s.%d" % (number % 4), b"NATS/1.0\r\nN: %d\r\n\r\n" % number, b"data")
            for number in range(8)
        ],
    )

    assert [row[1] for row in read_rows(server, whole_stream(filters=("s.1",)))] == [b"s.1", b"s.1"]
    assert [row[1] for row in read_rows(server, whole_stream(filters=("s.1", "s.3")))] == [
        b"s.1",
        b"s.3",
    ] * 2
    assert read_rows(server, whole_stream(filters=("s.none",))) == []
    found = read_rows(server, whole_stream(headers_only=True, first=1, last=1))
    assert found == [(1, b"s.0", b"NATS/1.0\r\nN: 0\r\nNats-Msg-Size: 4\r\n\r\n", b"")]


def test_messages_larger_than_the_buffer(make_server: MakeServer) -> None:
    """The receive buffer grows for a message that does not fit."""
    server = make_server(extra="max_payload: 32MB\nmax_pending: 128MB\n")
    large = os.urandom(20 << 20)
    store(server, [(b"s.a", b"", b"small"), (b"s.a", b"", large), (b"s.a", b"", b"small")])

    assert [row[3] for row in read_rows(server, whole_stream())] == [b"small", large, b"small"]


def test_a_missing_stream_is_an_error(server: Server) -> None:
    """A missing stream is an error at once, with the text of the server."""
    with pytest.raises(
        ServerRefusedError, match=r"refused to read NONE: stream not found \(10059\)"
    ):
        read_rows(server, whole_stream("NONE"))


def test_nothing_is_left_behind(server: Server, open_connection: Connect) -> None:
    """Reading leaves no consumer and removes no message."""
    store(server, [(b"s.a", b"", b"x")] * 10)
    read_rows(server, whole_stream())

    state = open_connection(server).request("$JS.API.STREAM.INFO.S")["state"]

    assert (state["consumer_count"], state["messages"]) == (0, 10)


def fill(connection: RawConnection, count: int, name: str = "S", size: int = 100) -> None:
    """Create a stream with so many messages, numbered in their payload."""
    connection.request(
        f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name.lower()}.>"]}
    )
    for start in range(0, count, 5000):
        numbers = pa.array(np.arange(start + 1, min(count, start + 5000) + 1))
        subject = pa.repeat(pa.scalar(f"{name.lower()}.x".encode(), BYTES), len(numbers))
        empty = pa.repeat(pa.scalar(b"", BYTES), len(numbers))
        publish(
            connection, [(subject, empty, concat_rows(format_numbers(numbers), b" ", b"." * size))]
        )


def test_a_server_that_is_killed_while_reading(
    clean_hub_leaf: Sandbox, open_connection: Connect
) -> None:
    """Messages are read once and in order although the server is killed meanwhile.

    Before 2.14 an updated stream has another `created` after that. It is still the same stream.
    """
    hub, leaf, count = clean_hub_leaf["hub"], clean_hub_leaf["leaf"], 60_000
    # Create `S`, restart the server and update `S`. Return what is known of it then.
    fill(open_connection(leaf), 0)
    leaf.stop()
    leaf.start()
    connection = open_connection(leaf)
    config = fetch_stream_info(connection, "$JS.API", "S").config
    connection.request("$JS.API.STREAM.UPDATE.S", config)
    info = fetch_stream_info(connection, "$JS.API", "S")
    known = KnownObject(info.created, info.seen_at)
    fill(open_connection(leaf), count, size=1000)
    what, found, killed = ReadRequest("$JS.leaf.API", "S", 1, count, known=known), [], False
    restart = threading.Thread(target=leaf.start)

    for batch in read(lambda: RawConnection(connection_target(hub)), what):
        found += batch["seq"].to_pylist()
        if len(found) > count // 4 and not killed:
            killed = True
            leaf.kill()
            restart.start()
    restart.join()

    assert found == list(range(1, count + 1))


@pytest.mark.matrix
@pytest.mark.parametrize("count", [20_000, 5])
def test_a_stream_that_is_recreated_while_it_is_read(
    server: Server, open_connection: Connect, count: int
) -> None:
    """A read ends with an error before it returns a message of the new stream of that name."""
    connection = open_connection(server)
    fill(connection, 20_000, size=1000)
    info = fetch_stream_info(connection, "$JS.API", "S")
    what = whole_stream(known=KnownObject(info.created, info.seen_at), last=20_000)
    batches = read(lambda: RawConnection(connection_target(server)), what)

    found = next(batches)["data"].to_pylist()
    connection.request("$JS.API.STREAM.DELETE.S")
    fill(connection, count, size=1001)
    with pytest.raises(
        RefusedError, match=r"stream S at \$JS.API was recreated .* while it was read"
    ):
        found += [data for batch in batches for data in batch["data"].to_pylist()]

    assert all(data.count(b".") == 1000 for data in found)
    assert connection.request("$JS.API.CONSUMER.NAMES.S")["total"] == 0


@pytest.mark.matrix
@pytest.mark.parametrize("purge", [{}, {"filter": "s.x"}, {"keep": 1}], ids=str)
def test_messages_that_are_purged_while_reading(
    server: Server, open_connection: Connect, purge: dict[str, Any]
) -> None:
    """A read ends when all that is left of its range is purged, also if other messages are left."""
    connection = open_connection(server)
    fill(connection, 20_000, size=1000)
    connection.request("s.other")
    batches = read(lambda: RawConnection(connection_target(server)), whole_stream(filters=("s.x",)))

    found = next(batches)["seq"].to_pylist()
    assert connection.request("$JS.API.STREAM.PURGE.S", purge)["purged"] > 0
    for batch in batches:
        found += batch["seq"].to_pylist()

    assert found == list(range(1, len(found) + 1))
    assert len(found) < 20_000
    assert connection.request("$JS.API.CONSUMER.NAMES.S")["total"] == 0


def test_a_domain_that_stays_offline(clean_hub_leaf: Sandbox, open_connection: Connect) -> None:
    """A domain that stays offline is an error that names the last sequence that was read."""
    hub, leaf = clean_hub_leaf["hub"], clean_hub_leaf["leaf"]
    fill(open_connection(leaf), 10)
    leaf.stop()

    with pytest.raises(
        ApiTimeoutError, match=r"no message of S at \$JS.leaf.API arrived after sequence 0"
    ):
        read_rows(hub, ReadRequest("$JS.leaf.API", "S", 1, 10), patience=1.0)


# --- writing ---------------------------------------------------------------------------------------------------------


def column(*values: bytes) -> pa.BinaryArray:
    """Return a column of bytes."""
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
    """A fenced publisher stores everything in order and returns the last sequence."""
    chain = FencedPublisher(open_connection(target), 0, sparse=sparse)
    write_numbered(chain, 7_500)

    assert chain.finish() == 7_500
    assert [row[3] for row in read_rows(target, whole_stream())] == [
        b"%d" % number for number in range(1, 7_501)
    ]


@pytest.mark.matrix
def test_a_broken_chain_is_noticed(target: Server, open_connection: Connect) -> None:
    """After a message with a wrong sequence nothing more is stored, and `finish` raises."""
    chain = FencedPublisher(open_connection(target), 1)
    write_numbered(chain, 5)

    with pytest.raises(PublishRefusedError, match="wrong last sequence: 0") as refused:
        chain.finish()

    assert refused.value.is_fenced
    assert read_rows(target, whole_stream()) == []


@pytest.mark.matrix
def test_a_broken_sparse_chain_is_noticed(target: Server, open_connection: Connect) -> None:
    """A sparse publisher reports a wrong sequence at the end of each chunk."""
    chain = FencedPublisher(open_connection(target), 1, sparse=True)
    write_numbered(chain, 1005)

    with pytest.raises(PublishRefusedError, match="wrong last sequence: 999") as refused:
        chain.finish()

    assert refused.value.is_fenced
    assert not any(b"Expected" in row[2] for row in read_rows(target, whole_stream()))


def test_a_fence_does_not_exclude_a_second_writer(target: Server, open_connection: Connect) -> None:
    """A second writer can repeat the sequences of the first, so no attempts share a stream."""
    first, second = (
        FencedPublisher(open_connection(target), 0),
        FencedPublisher(open_connection(target), 0),
    )
    write_numbered(first, 10)
    first.finish()

    write_numbered(second, 20)

    assert second.finish() == 20
    assert [row[3] for row in read_rows(target, whole_stream())] == [
        b"%d" % number for number in range(1, 21)
    ]


def test_a_publisher_continues_at_the_last_sequence(
    target: Server, open_connection: Connect
) -> None:
    """A new publisher continues at the last sequence of the stream."""
    write_numbered(one := FencedPublisher(open_connection(target), 0), 5)
    two = FencedPublisher(open_connection(target), one.finish())
    write_numbered(two, 5)

    assert two.finish() == 10


def test_a_removed_target_is_an_error(server: Server, open_connection: Connect) -> None:
    """A subject that no stream stores is an error, without waiting."""
    chain = FencedPublisher(open_connection(server), 0)
    write_numbered(chain, 5)

    with pytest.raises(ApiError, match="no stream takes these messages any more"):
        chain.finish()


@pytest.mark.matrix
def test_acknowledged_messages(target: Server, open_connection: Connect) -> None:
    """Messages that the server takes for duplicates are an error, unless that is wanted."""
    rows = (
        column(b"s.a", b"s.a", b"s.b"),
        column(*(b"NATS/1.0\r\nNats-Msg-Id: %s\r\n\r\n" % n for n in (b"1", b"1", b"2"))),
        column(b"x", b"x", b"y"),
    )

    with pytest.raises(RefusedError, match="1 of 3 messages were not stored"):
        publish(open_connection(target), [rows])
    assert publish(open_connection(target), [rows], deduplicates=True) == 3
    assert [row[1] for row in read_rows(target, whole_stream())] == [b"s.a", b"s.b"]


@pytest.mark.matrix
def test_the_destination_is_checked(clean_hub_leaf: Sandbox, open_connection: Connect) -> None:
    """A subject of another stream stores nothing; one of another domain stores one message."""
    hub, leaf = open_connection(clean_hub_leaf["hub"]), open_connection(clean_hub_leaf["leaf"])
    hub.request("$JS.API.STREAM.CREATE.A", {"name": "A", "subjects": ["a.>"]})
    hub.request("$JS.API.STREAM.CREATE.B", {"name": "B", "subjects": ["b.>"]})
    leaf.request("$JS.API.STREAM.CREATE.A", {"name": "A", "subjects": ["far.>"]})
    clean_hub_leaf["hub"].wait_until(lambda: _is_taken(hub, "far.x"), "reach the leaf", 30)

    def send(subject: bytes, *destination: str) -> int:
        rows = [tuple(column(*[value] * 3) for value in (subject, b"", b"x"))]
        return publish(hub, rows, destination=Destination(*destination))

    def count(connection: RawConnection, name: str) -> int:
        return fetch_stream_info(connection, "$JS.API", name).messages

    assert (send(b"a.x", "A"), send(b"a.x", "A", "hub"), count(hub, "A")) == (3, 3, 6)
    with pytest.raises(
        RefusedError, match="stream B takes the subjects of these messages, not stream A"
    ):
        send(b"b.x", "A", "hub")
    with pytest.raises(RefusedError, match=r"stream A of domain leaf stored a message, not .* hub"):
        send(b"far.x", "A", "hub")
    assert (count(hub, "A"), count(hub, "B"), count(leaf, "A")) == (6, 0, 1)


def _is_taken(connection: RawConnection, subject: str) -> bool:
    """Return True if a stream answers on a subject; it refuses the message."""
    with contextlib.suppress(NoRespondersError):
        return "error" in connection.request(
            subject, headers=b"NATS/1.0\r\nNats-Expected-Stream: NONE\r\n\r\n"
        )
    return False


INVALID = [
    b"",
    b"a b",
    b"a\tb",
    b"a\r\nPUB victim 0\r\n\r\n",
    b"a..b",
    b".a",
    b"a.",
    b"*",
    b"a.>",
    b"*.a",
]
VALID = [b"a", b"a*b.c>", b"a.\x01\x0c\x7f", b"\xc3\xa9.\xff", LEGAL]


def test_invalid_subjects_are_not_sent(target: Server, open_connection: Connect) -> None:
    """A subject that is a command, or becomes another one, is refused in any row of any writer."""
    connection = open_connection(target)
    fenced = FencedPublisher(open_connection(target), 0, b"s.")
    for subject in INVALID:
        rows = (column(*VALID, subject), column(*[b""] * 6), column(*[b"x"] * 6))
        for write in (lambda rows: publish(connection, [rows]), lambda rows: fenced.write(*rows)):
            with pytest.raises(RefusedError, match="an invalid subject"):
                write(rows)
    with pytest.raises(RefusedError, match="no subject"):
        publish(connection, [(pa.array([None], BYTES), column(b""), column(b"x"))])

    fenced.write(column(*VALID), column(*[b""] * 5), column(*[b"x"] * 5))
    assert fenced.finish() == len(VALID)
    assert [row[1] for row in read_rows(target, whole_stream())] == [b"s." + one for one in VALID]


def test_a_message_over_the_limit_of_a_stream(server: Server, open_connection: Connect) -> None:
    """A message over the limit of the stream is refused with the text of the server."""
    connection = open_connection(server)
    connection.request(
        "$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "max_msg_size": 10}
    )

    with pytest.raises(ServerRefusedError, match=r"message size exceeds maximum allowed \(10054\)"):
        publish(connection, [(column(b"s.a"), column(b""), column(b"x" * 11))])
