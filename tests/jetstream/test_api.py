from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import nats
import pytest

from jsplan.config.model import Connection, Domain
from jsplan.errors import (
    ApiError,
    ApiTimeoutError,
    ConnectError,
    NoRespondersError,
    NotPermittedError,
    ServerRefusedError,
)
from jsplan.facts.refresh import read_live
from jsplan.jetstream import DomainApi, Pool
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.contexts import resolve_settings
from jsplan.resources.error_codes import STREAM_NOT_FOUND
from jsplan.units import SECOND
from tests.support.raw import Raw

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from jsplan.sandbox import Sandbox, Server
    from tests.conftest import MakeServer

PLAIN = Domain("main", "main", None, "$JS.API")


@asynccontextmanager
async def linked(
    server: Server, *, timeout: float = 5.0, **settings: str
) -> AsyncIterator[NatsConnection]:
    """Open a connection to a server."""
    entry: dict[str, Any] = {"url": server.url, "timeout": int(timeout * SECOND), **settings}
    link = NatsConnection(resolve_settings(Connection("main", **entry), {}))
    await link.open()
    try:
        yield link
    finally:
        await link.close()


async def test_answers_and_refusals(server: Server) -> None:
    """An answer is the server's JSON; a refusal has its err_code, the domain and the request."""
    async with linked(server) as link:
        api = DomainApi(PLAIN, link, read_only=False)
        assert (await api.request("INFO"))["type"].endswith("account_info_response")
        assert await api.stream_info("NOPE") is None
        assert await api.consumer_info("NOPE", "C") is None
        with pytest.raises(
            ServerRefusedError, match=r"domain main refused STREAM.DELETE.NOPE: stream not found"
        ) as caught:
            await api.request("STREAM.DELETE.NOPE")
        assert (caught.value.code, caught.value.err_code) == (404, STREAM_NOT_FOUND)


async def test_a_stream_that_was_not_stored_is_created_once_more(server: Server) -> None:
    """A stream that the server could not store is created once more; then it is an error."""
    refused = b'{"error": {"code": 500, "err_code": 10049, "description": "error creating store"}}'
    domain = Domain("main", "main", None, "$JS.played.API")
    connection = await nats.connect(server.url)
    created = await connection.request("$JS.API.STREAM.CREATE.S", b'{"name": "S"}')
    answers: list[bytes] = []

    async def answer(message: Msg) -> None:
        await message.respond(answers.pop(0))

    await connection.subscribe("$JS.played.API.>", cb=answer)
    await connection.flush()
    async with linked(server) as link:
        api = DomainApi(domain, link, read_only=False)
        answers[:] = [refused, created.data]
        assert (await api.request("STREAM.CREATE.S", {"name": "S"}))["config"]["name"] == "S"
        for verb, tries in (("STREAM.CREATE.S", 2), ("STREAM.UPDATE.S", 1)):
            answers[:] = [refused] * tries
            with pytest.raises(ServerRefusedError, match="10049"):
                await api.request(verb, {"name": "S"})
            assert answers == []
    await connection.close()


async def test_reading_only(server: Server) -> None:
    """A client that may only read refuses to send a writing request."""
    async with linked(server) as link:
        api = DomainApi(PLAIN, link, read_only=True)
        for request in (
            "STREAM.CREATE.A",
            "STREAM.UPDATE.A",
            "STREAM.DELETE.A",
            "STREAM.PURGE.A",
            "CONSUMER.CREATE.A.B",
            "META.LEADER.STEPDOWN",
        ):
            with pytest.raises(AssertionError, match="read-only"):
                await api.request(request, {})
        with pytest.raises(AssertionError, match="read-only"):
            await api.request("STREAM.SNAPSHOT.A", {})
        assert await api.stream_names() == []


async def test_names_page_by_page(server: Server) -> None:
    """More names than a page holds are all found, once each."""
    with Raw(server.url) as raw:
        for number in range(1030):
            raw.publish(
                f"$JS.API.STREAM.CREATE.P{number}", b'{"name": "P%d", "storage": "memory"}' % number
            )
        raw.api_ok("$JS.API.INFO")
        async with linked(server) as link:
            api = DomainApi(PLAIN, link, read_only=True)
            for _ in range(100):
                if len(found := await api.stream_names()) == 1030:
                    break
                await asyncio.sleep(0.05)
    assert sorted(found) == sorted(f"P{number}" for number in range(1030))


async def test_no_responder_and_no_answer(server: Server) -> None:
    """An unknown domain has no responder, a paused server times out, a killed one is lost."""
    async with linked(server, timeout=0.3) as link:
        with pytest.raises(NoRespondersError, match=r"domain other does not answer"):
            await DomainApi(
                Domain("other", "main", "other", "$JS.other.API"), link, read_only=True
            ).request("INFO")
        server.pause()
        started = time.monotonic()
        with pytest.raises(ApiTimeoutError, match=r"no answer to \$JS.API.INFO .* within 0.3 s"):
            await DomainApi(PLAIN, link, read_only=True).request("INFO")
        assert time.monotonic() - started > 0.2
        server.resume()


async def test_requests_during_the_election_of_a_leader(server: Server) -> None:
    """A request about one object is repeated while a cluster elects its leader.

    Only where no request is answered the domain is offline.
    """
    unheard = {"slow.API.CONSUMER.INFO.A.C": 1, "slow.API.STREAM.INFO.A": 10**6, "slow.API.INFO": 0}
    domain, between = Domain("main", "main", None, "slow.API"), await nats.connect(server.url)

    async def hand_on(message: Msg) -> None:
        if unheard[message.subject]:
            unheard[message.subject] -= 1
            return
        await between.publish(
            message.subject.replace("slow.", "$JS."), message.data, reply=message.reply
        )

    await between.subscribe("slow.API.>", cb=hand_on)
    await between.flush()
    with Raw(server.url) as raw:
        raw.create("A")
        raw.consumer("A", "C", ack_policy="none")
    async with linked(server, timeout=2.0) as link:
        assert (await DomainApi(domain, link, read_only=True).consumer_info("A", "C") or {})[
            "name"
        ] == "C"
    unheard["slow.API.INFO"] = 10**6
    async with linked(server, timeout=0.3) as link:
        with pytest.raises(ApiTimeoutError, match=r"no answer to slow\.API\.INFO"):
            await DomainApi(domain, link, read_only=True).stream_info("A")
    await between.close()
    assert unheard["slow.API.CONSUMER.INFO.A.C"] == 0


async def test_a_denied_request_ends_at_once(make_server: MakeServer) -> None:
    """A request that the server does not permit ends at once, and the others continue."""
    extra = 'no_auth_user: a\nauthorization {users: [{user: a, password: a, permissions: {publish: {deny: ["$JS.API.STREAM.CREATE.>"]}}}]}'
    async with linked(make_server(extra=extra), user="a", password="a") as link:
        api = DomainApi(PLAIN, link, read_only=False)
        started = time.monotonic()
        denied = [
            api.request(f"STREAM.CREATE.S{n}", {"name": f"S{n}"}, timeout=30) for n in range(5)
        ]
        answers = await asyncio.gather(*denied, api.request("INFO"), return_exceptions=True)

        assert [type(answer) for answer in answers] == [NotPermittedError] * 5 + [dict]
        assert "domain main" in str(answers[3])
        assert "publish to $JS.API.STREAM.CREATE.S3" in str(answers[3])
        assert time.monotonic() - started < 15, "the timeout is 30 s"


async def test_each_of_many_denials_is_one(make_server: MakeServer) -> None:
    """Of a hundred requests that are denied together, none counts as one without an answer."""
    extra = 'no_auth_user: a\nauthorization {users: [{user: a, password: a, permissions: {publish: {deny: ["$JS.API.STREAM.CREATE.>"]}}}]}'
    async with linked(make_server(extra=extra), user="a", password="a") as link:
        api = DomainApi(PLAIN, link, read_only=False)
        denied = [
            api.request(f"STREAM.CREATE.S{n}", {"name": f"S{n}"}, timeout=2) for n in range(100)
        ]
        answers = await asyncio.gather(*denied, return_exceptions=True)

    assert [type(answer) for answer in answers] == [NotPermittedError] * 100


async def test_a_denial_names_what_the_server_checks(make_server: MakeServer) -> None:
    """A denied request names the subject that the server checks.

    Permission for `$JS.main.API` is none for the server's own domain, which it checks as `$JS.API`.
    """
    extra = 'no_auth_user: a\nauthorization {users: [{user: a, password: a, permissions: {publish: {allow: ["$JS.main.API.>"]}}}]}'
    async with linked(
        make_server(domain="main", extra=extra), user="a", password="a", timeout=60
    ) as link:
        with pytest.raises(NotPermittedError, match=r"\$JS.main.API.INFO") as denied:
            await DomainApi(
                Domain("main", "main", "main", "$JS.main.API"), link, read_only=True
            ).request("INFO")
    assert "permission to publish to $JS.API.INFO" in str(denied.value.hint)


async def test_a_flush_comes_after_all_that_was_sent(make_server: MakeServer) -> None:
    """Each denial is known after the flush, although nats-py pings ahead of what waits."""
    extra = 'no_auth_user: a\nauthorization {users: [{user: a, password: a, permissions: {publish: {allow: ["b.*"]}, subscribe: {allow: ["_INBOX.>"]}}}]}'  # noqa: E501
    server = make_server(extra=extra)
    async with linked(server, user="a", password="a") as link:
        for number in range(200):
            assert await link.is_denied("publish", f"a.{number}")
            assert not await link.is_denied("publish", f"b.{number}")
            assert await link.is_denied("subscribe", f"c.{number}")


async def test_a_user_that_may_not_receive_answers(make_server: MakeServer) -> None:
    """A user without permission for its inbox is an error at once, and no offline domain."""
    extra = 'no_auth_user: b\nauthorization {users: [{user: b, password: b}, {user: a, password: a, permissions: {subscribe: {deny: [">"]}}}]}'  # noqa: E501
    async with linked(make_server(extra=extra), user="a", password="a", timeout=60) as link:
        with pytest.raises(NotPermittedError, match="may not receive answers") as denied:
            await DomainApi(PLAIN, link, read_only=True).request("INFO")
    assert "_INBOX.>" in str(denied.value.hint)


async def test_a_connection_that_is_lost(make_server: MakeServer) -> None:
    """A server that dies under a request is an ApiError, and closing afterwards is quiet."""
    server = make_server()
    async with linked(server, timeout=0.5) as link:
        api = DomainApi(PLAIN, link, read_only=True)
        await api.request("INFO")
        server.kill()
        with pytest.raises(ApiError):
            await api.request("INFO")


async def test_every_connection_is_asked_once(clean_hub_leaf: Sandbox) -> None:
    """Connections are opened once, in parallel; a failure is kept and disturbs no other."""
    hub = clean_hub_leaf["hub"]
    connections = {
        "hub": Connection("hub", url=hub.url, user=hub.user, password=hub.password),
        "down": Connection("down", url="nats://127.0.0.1:1"),
        "wrong": Connection("wrong", url=hub.url, user="acc", password="x"),
    }
    domains = {key: Domain(key, key, "hub", "$JS.hub.API") for key in connections}
    async with Pool(connections, {}, read_only=True) as pool:
        await pool.open(["hub", "down", "wrong", "hub"])
        assert list(pool.connections) == ["hub"]
        assert {key: error.is_offline for key, error in pool.failures.items()} == {
            "down": True,
            "wrong": False,
        }
        assert (await pool.api(domains["hub"]).request("INFO"))["domain"] == "hub"
        with pytest.raises(ConnectError, match="connection down"):
            pool.api(domains["down"])
        assert (await read_live(pool, domains, [])).domains == {}
