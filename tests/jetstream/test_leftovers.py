"""Streams that are created over the messages of a deleted one (`jetstream.leftovers`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import ServerRefusedError
from jsplan.jetstream import DomainApi, leftovers
from tests.jetstream.test_api import PLAIN, linked
from tests.support import undeleted_folder
from tests.support.raw import Raw, streams

if TYPE_CHECKING:
    from jsplan.sandbox import Server
    from tests.conftest import MakeServer

pytestmark = pytest.mark.matrix
CONFIG: dict[str, Any] = {"name": "S", "subjects": ["s"]}


@pytest.fixture
def server(make_server: MakeServer) -> Server:
    """A server of its own: what it does not remove would be in the streams of later tests."""
    return make_server()


def make_old_stream(server: Server) -> None:
    """Create a stream with three messages and an unmanaged neighbour."""
    with Raw(server.url) as raw:
        raw.create("OTHER", subjects=["other"])
        raw.api_ok("$JS.API.STREAM.CREATE.S", CONFIG)
        raw.consumer("S", "C")
        for number in range(3):
            raw.request("s", b"old", {"Nats-Msg-Id": str(number)})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"first_seq": 2},
        {"subjects": [], "mirror": {"name": "OTHER"}, "mirror_direct": True},
        {"subjects": [], "sources": [{"name": "OTHER"}]},
        {"storage": "memory"},
    ],
    ids=["plain", "first-sequence", "mirror", "sources", "memory"],
)
async def test_it_is_empty_in_the_end(
    server: Server, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """The stream is deleted and created until nothing is left of the old one.

    Requests show it, not advisories: a stream sends its own, and may be deleted before it does.
    """
    make_old_stream(server)
    config, sent = CONFIG | changes, list[str]()
    with undeleted_folder.until_recreated(server, "S"):
        async with linked(server) as link:
            request = link.request

            async def record(subject: str, *rest: Any, **options: Any) -> bytes:
                sent.append(subject.removeprefix("$JS.API."))
                return await request(subject, *rest, **options)

            monkeypatch.setattr(link, "request", record)
            api = DomainApi(PLAIN, link, read_only=False)
            await api.request("STREAM.DELETE.S")
            answer = await api.request("STREAM.CREATE.S", config)
            first = config.get("first_seq", 1)
            state = answer["state"]
            assert (state["messages"], state["last_seq"]) == (0, first - 1)
            assert answer["config"].get("subjects", []) == config["subjects"]
            consumer = await api.request(
                "CONSUMER.CREATE.S.C",
                {"stream_name": "S", "config": {"durable_name": "C", "ack_policy": "explicit"}},
            )
            assert consumer["delivered"]["stream_seq"] in (0, first - 1)
        assert sent.count("STREAM.CREATE.S") >= (1 if "storage" in changes else 3)
        assert ("STREAM.UPDATE.S" in sent) == (not {"mirror", "storage"} & changes.keys())
    with Raw(server.url) as raw:
        assert streams(raw) == ["OTHER", "S"]


async def test_a_server_that_never_removes_them(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the timeout there is no stream, and the error says what helps."""
    monkeypatch.setattr(leftovers, "REMOVAL_TIMEOUT", 0.3)
    make_old_stream(server)
    undeleted_folder.place(server, "S")
    async with linked(server) as link:
        api = DomainApi(PLAIN, link, read_only=False)
        await api.request("STREAM.DELETE.S")
        with pytest.raises(
            ServerRefusedError, match="stream S has 3 messages of a deleted stream S, which"
        ) as refused:
            await api.request("STREAM.CREATE.S", CONFIG)
        assert "Restart the server" in str(refused.value.hint)
        assert await api.stream_names() == ["OTHER"]
    server.stop()
    server.start()
    async with linked(server) as link:
        api = DomainApi(PLAIN, link, read_only=False)
        assert (await api.request("STREAM.CREATE.S", CONFIG))["state"]["last_seq"] == 0


async def test_new_messages_are_not_deleted(server: Server) -> None:
    """A stream that has received messages is not deleted, and gets its subjects back."""
    make_old_stream(server)
    undeleted_folder.place(server, "S")
    async with linked(server) as link:
        api = DomainApi(PLAIN, link, read_only=False)
        await api.request("STREAM.DELETE.S")
        with Raw(server.url) as raw:

            async def send(api: str, payload: dict[str, Any] | None) -> dict[str, Any]:
                return raw.api_ok(f"$JS.API.{api}", payload)

            answer = await send("STREAM.CREATE.S", CONFIG)
            raw.request("s", b"new")
            with pytest.raises(ServerRefusedError, match="and has received new ones"):
                await leftovers.create_without_leftovers(send, CONFIG, answer)
        info = await api.request("STREAM.INFO.S")
        assert (info["state"]["messages"], info["config"]["subjects"]) == (4, ["s"])


async def test_an_existing_stream_may_have_older_messages(server: Server) -> None:
    """A creation that finds the same stream deletes nothing."""
    make_old_stream(server)
    async with linked(server) as link:
        api = DomainApi(PLAIN, link, read_only=False)
        answer = await api.request("STREAM.CREATE.S", CONFIG)
        assert answer["state"]["messages"] == 3
