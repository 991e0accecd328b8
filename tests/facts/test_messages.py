from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.config.model import Connection, Domain
from jsplan.facts.limit_trimming import StoredMessage, stored_size
from jsplan.facts.messages import MessageReader, ReadBudget, ReadLimitExceeded
from jsplan.jetstream import Pool
from jsplan.units import parse_instant
from tests.facts.conftest import MESSAGES, OLD

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.facts.conftest import FilledServer

pytestmark = pytest.mark.matrix

#: Headers as clients write them, not only as the specification spells them.
BLOCKS = (
    b"",
    b"NATS/1.0\r\nA: b\r\n\r\n",
    b"NATS/1.0\r\nA:b\r\n\r\n",
    b"NATS/1.0\r\nNats-Sequence: 9\r\nNats-Stream: X\r\nNats-Subject: y\r\n\r\n",
    b"NATS/1.0\r\nLong: " + b"x" * 3000 + b"\r\nLong: again\r\n\r\n",
)
YEAR_2001 = parse_instant("2001-01-01T00:00:00Z")
YEAR_2100 = parse_instant("2100-01-01T00:00:00Z")
DOMAIN = Domain("main", "main", None, "$JS.API")


@pytest.fixture
async def pool(filled_server: FilledServer) -> AsyncIterator[Pool]:
    """Connections that can only read."""
    async with Pool(
        {"main": Connection("main", url=filled_server.server.url)}, {}, read_only=True
    ) as opened:
        await opened.open(["main"])
        yield opened


def reader(
    pool: Pool, filled_server: FilledServer, stream: str, *, batches: bool, reads: int = 10**6
) -> MessageReader:
    info = filled_server.raw.api_ok(f"$JS.API.STREAM.INFO.{stream}", {"deleted_details": True})
    state = info["state"]
    gaps = state.get("deleted") or []
    return MessageReader(
        pool.api(DOMAIN),
        stream,
        info["config"]["storage"],
        state["first_seq"],
        state["last_seq"],
        batches,
        ReadBudget(reads),
        gaps=gaps,
    )


def readers(filled_server: FilledServer) -> tuple[bool, ...]:
    """Return the values of `batches` to test: both, or one by one on 2.10."""
    return (True, False) if filled_server.level else (False,)


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("compression", ["none", "s2"])
async def test_sizes_are_what_the_store_counts(
    filled_server: FilledServer, pool: Pool, storage: str, compression: str
) -> None:
    """The sizes of messages with any headers add up to the bytes of the stream."""
    stream = filled_server.new_stream(
        0, storage=storage, compression=compression, allow_direct=True
    )
    for block in BLOCKS:
        for size in (0, 1, 2, 3, 1000, 100_000):
            filled_server.raw.publish_raw(f"{stream}.größe.{size}", block, b"x" * size)
    filled_server.raw.flush()
    count = len(BLOCKS) * 6
    filled_server.raw.wait_for(stream, count)

    for batches in readers(filled_server):
        messages = [
            m async for m in reader(pool, filled_server, stream, batches=batches).read_forward(1)
        ]
        assert len(messages) == count
        assert sum(m.size for m in messages) == filled_server.raw.state(stream)["bytes"]


def test_measured_overheads() -> None:
    """A file store adds 30 bytes, or 34 with headers; a memory store adds 16."""
    assert stored_size("file", 3, 0, 10) == 43
    assert stored_size("file", 3, 18, 10) == 65
    assert stored_size("memory", 3, 0, 10) == 29
    assert stored_size("memory", 3, 18, 10) == 47


async def test_all_ways_of_reading_return_the_same(filled_server: FilledServer, pool: Pool) -> None:
    """Forward and backward, in batches and one by one: the same messages, gaps or not."""
    stream = filled_server.new_stream(3_500, allow_direct=True)
    filled_server.raw.delete(stream, *range(5, 3_500, 50))
    seen: list[list[StoredMessage]] = []
    for batches in readers(filled_server):
        messages_reader = reader(pool, filled_server, stream, batches=batches)
        seen.append([m async for m in messages_reader.read_forward(1)])
        seen.append([m async for m in messages_reader.read_backward()][::-1])

    assert all(messages == seen[0] for messages in seen)
    assert [m.seq for m in seen[0]] == [seq for seq in range(1, 3_501) if seq < 5 or (seq - 5) % 50]


async def test_an_empty_stream_has_nothing_to_read(filled_server: FilledServer, pool: Pool) -> None:
    """An empty stream is read without a request for sequence 0, which servers refuse."""
    stream = filled_server.new_stream(0, allow_direct=True)
    for batches in readers(filled_server):
        messages_reader = reader(pool, filled_server, stream, batches=batches)
        assert (
            [m async for m in messages_reader.read_backward()]
            == [m async for m in messages_reader.read_forward(0)]
            == []
        )
        assert await messages_reader.find_first_since(YEAR_2001, by_time=batches) is None
        assert await messages_reader.count_from(0) == 0


async def test_reading_stops_at_the_last_known_message(
    filled_server: FilledServer, pool: Pool
) -> None:
    """Messages that arrive during a read are not seen."""
    stream = filled_server.new_stream(100, allow_direct=True)
    for batches in readers(filled_server):
        messages_reader = reader(pool, filled_server, stream, batches=batches)
        filled_server.raw.request(f"{stream}.late", b"")

        assert [m.seq async for m in messages_reader.read_forward(1)] == list(
            range(1, messages_reader.last + 1)
        )


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_the_first_message_since_a_time(
    filled_server: FilledServer, pool: Pool, storage: str, gaps: bool
) -> None:
    """The first message since a time is found with and without batches, gaps or not."""
    stream = filled_server.new_mirror("HOLED" if gaps else "ORIGIN", storage=storage)
    messages_reader = reader(pool, filled_server, stream, batches=False)
    messages = [m async for m in messages_reader.read_forward(1)]
    border = next(m for m in messages if m.seq > OLD)

    for by_time in readers(filled_server):
        for wanted in (messages[0], messages[1], messages[1_321], border, messages[-1]):
            since = parse_instant(wanted.time)
            same = [m for m in messages if parse_instant(m.time) == since]
            assert await messages_reader.find_first_since(since, by_time=by_time) == same[0]
        assert await messages_reader.find_first_since(YEAR_2001, by_time=by_time) == messages[0]
        assert await messages_reader.find_first_since(YEAR_2100, by_time=by_time) is None


@pytest.mark.parametrize("gaps", [False, True])
async def test_counting_from_a_sequence(
    filled_server: FilledServer, pool: Pool, gaps: bool
) -> None:
    """The deleted sequences and the server's own count agree; without both it is unknown."""
    stream = filled_server.new_stream(2_000, allow_direct=True)
    if gaps:
        filled_server.raw.delete(stream, *range(5, 2_000, 40))
    with_gap_list = reader(pool, filled_server, stream, batches=False)
    sequences = [m.seq async for m in with_gap_list.read_forward(1)]
    without_gap_list = reader(pool, filled_server, stream, batches=True)
    without_gap_list.gaps = None
    for seq in (1, 2, 5, 6, 1_000, 2_000, 2_001):
        wanted = sum(1 for other in sequences if other >= seq)
        assert await with_gap_list.count_from(seq) == wanted
        if filled_server.level:
            assert await without_gap_list.count_from(seq) == (wanted or None)
    without_gap_list.batches = False
    assert await without_gap_list.count_from(1_000) is None


async def test_a_budget_is_never_exceeded(filled_server: FilledServer, pool: Pool) -> None:
    """Reading ends at the limit of reads; large messages count as several."""
    for batches in readers(filled_server):
        messages_reader = reader(pool, filled_server, "ORIGIN", batches=batches, reads=2_500)
        with pytest.raises(ReadLimitExceeded):
            [m async for m in messages_reader.read_forward(1)]
        assert (
            len(
                [
                    m
                    async for m in reader(
                        pool, filled_server, "ORIGIN", batches=batches, reads=MESSAGES
                    ).read_forward(1)
                ]
            )
            == MESSAGES
        )

    stream = filled_server.new_stream(0, allow_direct=True)
    for _ in range(10):
        filled_server.raw.request(f"{stream}.x", b"x" * 100_000)
    for batches in readers(filled_server):
        with pytest.raises(ReadLimitExceeded):
            [
                m
                async for m in reader(
                    pool, filled_server, stream, batches=batches, reads=50
                ).read_forward(1)
            ]
        assert (
            len(
                [
                    m
                    async for m in reader(
                        pool, filled_server, stream, batches=batches, reads=70
                    ).read_forward(1)
                ]
            )
            == 10
        )


async def test_mirrors_that_answer_for_their_origin_do_not_mislead(
    filled_server: FilledServer, pool: Pool
) -> None:
    """Answers of a mirror with `mirror_direct` for its origin are not used."""
    stream = filled_server.new_stream(2_500, allow_direct=True)
    mirror = f"{stream}_MIRROR"
    filled_server.raw.create(mirror, mirror={"name": stream}, max_msgs=100)
    filled_server.server.wait_until(
        lambda: filled_server.raw.state(mirror)["last_seq"] == 2_500,
        "the mirror to be complete",
        20,
    )

    for _ in range(10):
        with_gap_list = reader(pool, filled_server, stream, batches=bool(filled_server.level))
        assert [m.seq async for m in with_gap_list.read_forward(1)] == list(range(1, 2_501))
        without_gap_list = reader(pool, filled_server, stream, batches=bool(filled_server.level))
        without_gap_list.gaps = None
        assert await without_gap_list.count_from(2_450) in (51, None)
        assert await without_gap_list.count_from(100) in (2_401, None)
