from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import nats
import pytest

from jsplan.config.model import Domain
from jsplan.errors import (
    ApiError,
    ApiTimeoutError,
    NoRespondersError,
    NotPermittedError,
    ServerRefusedError,
)
from jsplan.jetstream import DomainApi
from jsplan.jetstream.s2_frames import S2Frames
from jsplan.jetstream.snapshots import (
    CHUNK_BYTES,
    NAME_IN_USE,
    OWN_CHUNK_BYTES,
    Snapshot,
    is_memory_stream,
    open_snapshot,
    repeat_restore,
    restore_stream,
)
from jsplan.resources.error_codes import RESTORE_FAILED
from tests.support.links import open_link
from tests.support.raw import Raw, encode
from tests.support.stream_content import read_each
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from jsplan.jetstream.connection import NatsConnection
    from jsplan.sandbox import Sandbox, Server
    from tests.conftest import MakeServer

PLAIN = Domain("main", "main", None, "$JS.API")
HUB = Domain("hub", "main", "hub", "$JS.hub.API")
LEAF = Domain("leaf", "main", "leaf", "$JS.leaf.API")

TIME = "2026-01-01T00:00:00Z"
STATE = {
    "messages": 0,
    "bytes": 0,
    "first_seq": 0,
    "last_seq": 0,
    "first_ts": TIME,
    "last_ts": TIME,
}
CONFIG = {"name": "S", "retention": "limits", "storage": "file", "num_replicas": 1}
ANSWER = json.dumps({"config": CONFIG, "state": STATE}).encode()
#: A user without credentials that may send API requests alone, and one for the test.
API_USER = """
no_auth_user: a
authorization { users: [
    {user: a, password: a, permissions: {publish: {allow: "$JS.API.>"}}}, {user: all, password: all}
] }
"""
BEGIN = b"\xff\x06\x00\x00S2sTwO"


def frame(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + len(body).to_bytes(3, "little") + body


def api_of(link: NatsConnection, domain: Domain = PLAIN, *, read_only: bool = False) -> DomainApi:
    return DomainApi(domain, link, read_only=read_only)


def fill(
    raw: Raw,
    name: str = "S",
    *,
    messages: int = 50,
    size: int = 200,
    prefix: str = "$JS.API",
    **config: Any,
) -> None:
    """Create a stream with a gap, headers, and two consumers.

    One of them has pending, acked and redelivered messages.
    """
    raw.api_ok(
        f"{prefix}.STREAM.CREATE.{name}",
        {"name": name, "subjects": [f"{name}.*"], "allow_direct": True, **config},
    )
    noise = random.Random(7)
    raw.publish_all(
        encode(f"{name}.{number % 5}", noise.randbytes(size), {"Number": str(number)})
        for number in range(messages)
    )
    info = f"{prefix}.STREAM.INFO.{name}"
    wait_until(lambda: raw.api_ok(info)["state"]["messages"] == messages, "all messages")
    while not raw.api_ok(info)["state"].get("num_deleted"):
        raw.api(
            f"{prefix}.STREAM.MSG.DELETE.{name}", {"seq": 7}
        )  # a slow disk: now and then it is not found, deleted now or not
    for consumer in ("C", "OTHER"):
        body = {
            "durable_name": consumer,
            "name": consumer,
            "ack_policy": "explicit",
            "ack_wait": 3600 * 10**9,
        }
        raw.api_ok(
            f"{prefix}.CONSUMER.CREATE.{name}.{consumer}", {"stream_name": name, "config": body}
        )


def all_messages(raw: Raw, name: str, prefix: str = "$JS.API") -> list[dict[str, Any]]:
    """Return every message with sequence, time, subject, headers and payload."""
    return [
        one.get("message", {"gone": one.get("error", {}).get("err_code")})
        for one in read_each(raw, name, prefix)
    ]


async def read_snapshot(snap: Snapshot) -> bytes:
    return b"".join([chunk async for chunk in snap.chunks])


async def sent_snapshot(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def archive(api: DomainApi, name: str = "S", **options: Any) -> tuple[Snapshot, bytes]:
    async with open_snapshot(api, name, **options) as snap:
        return snap, await read_snapshot(snap)


@pytest.mark.matrix
@pytest.mark.parametrize(("messages", "size"), [(0, 0), (1, 1), (30, 90_000), (3000, 300)])
async def test_a_deleted_stream_is_restored_equal(server: Server, messages: int, size: int) -> None:
    """A stream of any size is the same after snapshot, deletion and restore."""
    async with open_link(server) as link:
        api = api_of(link)
        with Raw(server.url) as raw:
            raw.create("S")
            noise = random.Random(1)
            for _ in range(messages):
                raw.request("S", noise.randbytes(size))
            before = all_messages(raw, "S")[:50]
            state = raw.state("S")

            snap, data = await archive(api)
            raw.api_ok("$JS.API.STREAM.DELETE.S")
            seen: list[int] = []
            answer = await restore_stream(
                api, snap.config, snap.state, sent_snapshot(data), on_progress=seen.append
            )

            assert answer["config"]["name"] == "S"
            assert all_messages(raw, "S")[:50] == before
            after = raw.state("S")
    assert after == state | (
        {"first_seq": after["first_seq"]} if not messages else {}
    )  # 0 or 1 where nothing ever was
    assert snap.state["last_seq"] == messages
    assert snap.frames.bytes == len(data)
    assert (
        0.9 * snap.state["bytes"]
        <= snap.frames.uncompressed_bytes
        <= 1.1 * snap.state["bytes"] + 10_000
    )
    assert seen == sorted(seen)
    assert seen[-1] == len(data)


@pytest.mark.matrix
async def test_from_one_domain_into_another_without_a_file(
    clean_hub_leaf: Sandbox, server_version: tuple[int, ...]
) -> None:
    """A snapshot of the hub is restored in the leaf over one connection, without a file."""
    hub = clean_hub_leaf["hub"]
    async with open_link(hub, user=hub.user, password=hub.password) as link:
        with Raw(hub.url, hub.user, hub.password) as raw:
            fill(raw, messages=400, size=20_000, prefix="$JS.hub.API")
            before = all_messages(raw, "S", "$JS.hub.API")

            async with open_snapshot(api_of(link, HUB, read_only=True), "S") as snap:
                config = {**snap.config, "subjects": ["elsewhere.*"]}
                answer = await restore_stream(api_of(link, LEAF), config, snap.state, snap.chunks)

            assert all_messages(raw, "S", "$JS.leaf.API") == before
            assert sorted(raw.api_ok("$JS.leaf.API.CONSUMER.NAMES.S")["consumers"]) == [
                "C",
                "OTHER",
            ]
    assert answer["config"]["subjects"] == ["elsewhere.*"]
    assert snap.frames.archive_format == ("natsarc1" if server_version >= (2, 15) else "tar")
    assert snap.frames.bytes > 7_000_000


@pytest.mark.matrix
async def test_only_the_domain_of_the_server_gets_large_chunks(clean_hub_leaf: Sandbox) -> None:
    """Chunks are larger where no leafnode link is between the server and the stream."""
    hub, largest = clean_hub_leaf["hub"], {}
    async with open_link(hub, user=hub.user, password=hub.password) as link:
        with Raw(hub.url, hub.user, hub.password) as raw:
            for domain in (HUB, LEAF):
                fill(raw, messages=100, size=20_000, prefix=domain.api_prefix)
                async with open_snapshot(api_of(link, domain), "S") as snap:
                    largest[domain.key] = max([len(chunk) async for chunk in snap.chunks])

    assert largest["leaf"] <= CHUNK_BYTES < largest["hub"] <= OWN_CHUNK_BYTES


@pytest.mark.matrix
async def test_without_its_consumers(server: Server) -> None:
    """A snapshot without consumers restores a stream without consumers."""
    async with open_link(server) as link:
        api = api_of(link)
        with Raw(server.url) as raw:
            fill(raw)
            snap, data = await archive(api, consumers=False)
            raw.api_ok("$JS.API.STREAM.DELETE.S")
            await restore_stream(api, snap.config, snap.state, sent_snapshot(data))
            info = raw.state("S")
    assert (info["consumer_count"], info["messages"]) == (0, 49)


@pytest.mark.matrix
async def test_memory_streams_before_2_15(server: Server, server_version: tuple[int, ...]) -> None:
    """A memory stream is refused before 2.15, and restored unchanged from then on."""
    async with open_link(server) as link:
        api = api_of(link)
        with Raw(server.url) as raw:
            fill(raw, storage="memory")
            if server_version < (2, 15):
                with pytest.raises(ServerRefusedError) as caught:
                    await archive(api)
                assert is_memory_stream(caught.value)
                return
            before = all_messages(raw, "S")
            snap, data = await archive(api)
            raw.api_ok("$JS.API.STREAM.DELETE.S")
            await restore_stream(api, snap.config, snap.state, sent_snapshot(data))
            assert all_messages(raw, "S") == before


@pytest.mark.matrix
async def test_an_existing_stream_stays_unchanged(server: Server) -> None:
    """A restore onto a stream that exists is refused and leaves that stream alone."""
    async with open_link(server) as link:
        api = api_of(link)
        with Raw(server.url) as raw:
            fill(raw)
            before = all_messages(raw, "S")
            snap, data = await archive(api)
            with pytest.raises(ServerRefusedError) as caught:
                await restore_stream(api, snap.config, snap.state, sent_snapshot(data))
            assert caught.value.err_code in NAME_IN_USE
            assert all_messages(raw, "S") == before


@pytest.mark.matrix
@pytest.mark.parametrize("harm", ["cut", "flipped", "not compressed", "consumer", "source fails"])
async def test_a_failed_restore_leaves_nothing(server: Server, harm: str) -> None:
    """A restore that fails leaves no part of the stream, and its name is free for the next one."""
    async with open_link(server) as link:
        api = api_of(link)
        with Raw(server.url) as raw:
            fill(raw, messages=200, size=3000)
            body = {
                "durable_name": "FREE",
                "name": "FREE",
                "ack_policy": "none",
            }  # a work queue does not take that
            raw.api_ok("$JS.API.CONSUMER.CREATE.S.FREE", {"stream_name": "S", "config": body})
            snap, data = await archive(api)
            raw.api_ok("$JS.API.STREAM.DELETE.S")
            config = (
                {**snap.config, "retention": "workqueue"} if harm == "consumer" else snap.config
            )

            async def source() -> AsyncIterator[bytes]:
                half = len(data) // 2
                yield data[:half] if harm != "not compressed" else b"x" * 2000
                if harm == "flipped":
                    yield bytes([data[half] ^ 255]) + data[half + 1 :]
                elif harm == "source fails":
                    yield data[half:]
                    raise OSError("the disk is gone")
                elif harm == "consumer":
                    yield data[half:]

            with pytest.raises(OSError if harm == "source fails" else ServerRefusedError) as caught:
                await restore_stream(api, config, snap.state, source())
            if isinstance(caught.value, ServerRefusedError):
                assert caught.value.err_code == RESTORE_FAILED
            assert await api.stream_info("S") is None
            await restore_stream(api, snap.config, snap.state, sent_snapshot(data))
            assert raw.state("S")["messages"] == 199


@pytest.mark.matrix
async def test_a_cancelled_restore_leaves_nothing(server: Server) -> None:
    """A cancelled restore removes its stream at once."""
    async with open_link(server) as link:
        api = api_of(link)
        with Raw(server.url) as raw:
            fill(raw)
            snap, data = await archive(api)
            raw.api_ok("$JS.API.STREAM.DELETE.S")
            waiting = asyncio.Event()

            async def source() -> AsyncIterator[bytes]:
                yield data
                waiting.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(restore_stream(api, snap.config, snap.state, source()))
            await waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await api.stream_info("S") is None
            # It is the second deletion under this name.
            await repeat_restore(
                api, lambda: restore_stream(api, snap.config, snap.state, sent_snapshot(data))
            )


@pytest.mark.matrix
async def test_a_snapshot_without_a_reader_ends(server: Server) -> None:
    """A snapshot whose reader stops leaves no trace: the next one is whole."""
    async with open_link(server) as link:
        api = api_of(link, read_only=True)
        with Raw(server.url) as raw:
            fill(raw, messages=100, size=50_000)
            async with open_snapshot(api, "S") as snap:
                async for _ in snap.chunks:
                    break
            assert not snap.frames.is_complete or snap.frames.bytes < 1_000_000
            again, data = await archive(api)
    assert again.frames.is_complete
    assert len(data) > 4_000_000


async def test_a_stalled_reader_gets_an_error(server: Server) -> None:
    """A reader that takes nothing for too long gets the server's 408, in words."""
    async with open_link(server) as link:
        with Raw(server.url) as raw:
            fill(raw, messages=200, size=50_000)

        async def dawdle() -> None:
            async with open_snapshot(api_of(link), "S") as snap:
                await anext(snap.chunks)
                await asyncio.sleep(7)
                await read_snapshot(snap)

        with pytest.raises(
            ApiError,
            match=r"snapshot of stream S in domain main was ended by the server after \d+ bytes: 408",
        ):
            await dawdle()


async def answered_by(server: Server, *messages: tuple[str, str, bytes]) -> Snapshot:
    """Take a snapshot that a client at `FAKE` delivers.

    It sends messages with their reply subject, status and payload.
    """
    player = await nats.connect(server.url)

    async def play(request: Msg) -> None:
        await request.respond(ANSWER)
        for reply, status, data in messages:
            headers = {"Status": status} if status else None
            await player.publish(
                json.loads(request.data)["deliver_subject"], data, reply=reply, headers=headers
            )

    await player.subscribe("FAKE.STREAM.SNAPSHOT.S", cb=play)
    await player.flush()
    try:
        async with open_link(server) as link:
            return (
                await archive(
                    api_of(link, Domain("fake", "main", None, "FAKE"), read_only=True), idle=0.3
                )
            )[0]
    finally:
        await player.close()


async def test_a_lost_chunk_is_noticed(server: Server) -> None:
    """A lost chunk is an error, since chunks are numbered."""
    with pytest.raises(
        ApiError,
        match=r"snapshot of stream S in domain fake lost a chunk on the way, after 10 bytes",
    ):
        await answered_by(server, ("ack.10.1", "", bytes(10)), ("ack.10.3", "", bytes(10)))


async def test_an_archive_that_is_cut_off(server: Server) -> None:
    """An archive that ends within a frame is an error, whatever the server says of it."""
    for status in ("", "204"):
        with pytest.raises(
            ApiError,
            match=r"snapshot of stream S in domain fake ended in the middle, after 7 bytes",
        ):
            await answered_by(server, ("", "", BEGIN[:7]), ("", status, b""))
    assert (await answered_by(server, ("", "", BEGIN), ("", "204", b""))).frames.is_complete


async def test_silence_is_an_error(server: Server) -> None:
    """A snapshot without any chunk points to the missing import; one that stops, to the link."""
    with pytest.raises(ApiTimeoutError, match="nothing came") as caught:
        await answered_by(server)
    assert "an import of another account" in str(caught.value.hint)
    with pytest.raises(ApiTimeoutError, match="nothing came") as caught:
        await answered_by(server, ("ack.10.1", "", BEGIN))
    assert "the network to it" in str(caught.value.hint)


async def test_a_restore_that_the_server_gave_up(server: Server) -> None:
    """A restore whose chunks no server takes is an error, and leaves nothing."""
    async with open_link(server) as link:
        api = api_of(link)
        with Raw(server.url) as raw:
            fill(raw, messages=100, size=3000)
            snap, data = await archive(api)
            raw.api_ok("$JS.API.STREAM.DELETE.S")

            async def slow() -> AsyncIterator[bytes]:
                yield data[:100_000]
                await asyncio.sleep(7)
                yield data[100_000:]

            with pytest.raises(NoRespondersError, match="the server no longer takes its chunks"):
                await restore_stream(api, snap.config, snap.state, slow())
            assert await api.stream_info("S") is None


def test_frames_in_pieces_of_any_size() -> None:
    """The frames of a snapshot are the same however their chunks arrive."""
    stream = (
        BEGIN
        + frame(0x00, b"crc." + b"\x80\x02" + b"\x1cNATSARC1" + bytes(50))
        + frame(0x01, b"crc." + bytes(100))
        + frame(0xFE, bytes(9))
    )
    for size in (1, 2, 3, 7, 20, 1000):
        frames = S2Frames()
        for start in range(0, len(stream), size):
            assert not frames.is_complete or start in (10, len(BEGIN) + 69, len(BEGIN) + 69 + 108)
            frames.feed(stream[start : start + size])
        assert (
            frames.is_complete,
            frames.bytes,
            frames.uncompressed_bytes,
            frames.archive_format,
        ) == (True, len(stream), 256 + 100, "natsarc1")


def test_other_data_are_never_a_whole_stream() -> None:
    """Data that are no whole snapshot of a stream are not taken for one."""
    for data in (
        b"",
        b"hello world, this is text" * 9,
        frame(0x01, b"crc." + bytes(10)),
        BEGIN[:3],
    ):
        frames = S2Frames()
        frames.feed(data)
        assert not frames.is_complete


@pytest.mark.timeout(60)  # a wait for what never comes takes 120 s
async def test_a_user_that_may_not_send_acknowledgements(make_server: MakeServer) -> None:
    """A transfer whose acknowledgements or chunks the server denies ends at once and says so."""
    server = make_server(extra=API_USER)
    with Raw(server.url, "all", "all") as raw:
        fill(raw, messages=400, size=32 * 1024)

    async def chunks() -> AsyncIterator[bytes]:
        yield BEGIN

    async with open_link(server) as link:
        api = api_of(link)
        with pytest.raises(NotPermittedError, match=r"publish to \$JS\.SNAPSHOT\.ACK\.S"):
            await archive(api)
        with pytest.raises(NotPermittedError, match=r"publish to \$JS\.SNAPSHOT\.RESTORE"):
            await restore_stream(api, CONFIG | {"name": "NEW"}, STATE, chunks())
