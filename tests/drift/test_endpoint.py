from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest

from jsplan.drift.service import endpoint
from jsplan.drift.service.endpoint import MAX_CONNECTIONS, serve, text_answer
from jsplan.drift.service.outputs import JobHealth
from jsplan.errors import JsplanError

if TYPE_CHECKING:
    from jsplan.drift.service.endpoint import Routes

ROUTES: Routes = {"/healthz": lambda: text_answer(HTTPStatus.OK, "alive")}
#: Seconds: far more than a probe waits, and far less than the test may take.
LONG = 20.0


async def send_request(
    port: int, request: bytes = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", host: str = "127.0.0.1"
) -> bytes:
    """Send a request and return the whole answer."""
    async with asyncio.timeout(LONG):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer


async def test_idle_connections_delay_no_request() -> None:
    """Idle connections delay no request of others."""
    idle: list[asyncio.StreamWriter] = []
    async with serve("127.0.0.1:0", ROUTES) as port:
        for _ in range(5):
            idle += [
                (await asyncio.open_connection("127.0.0.1", port))[1]
                for _ in range(3 * MAX_CONNECTIONS)
            ]
            assert (await send_request(port)).endswith(b"alive\n")
        tasks = [task for task in asyncio.all_tasks() if "_serve" in repr(task.get_coro())]

        assert len(tasks) <= MAX_CONNECTIONS
    for writer in idle:
        writer.close()


async def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that sends nothing, or a byte at a time, is closed at its deadline."""
    monkeypatch.setattr(endpoint, "REQUEST_TIMEOUT", 0.05)
    async with serve("127.0.0.1:0", ROUTES) as port:
        assert await send_request(port, b"") == b""
        assert await send_request(port, b"GET /hea") == b""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"X-A: a\r\n" * 10_000)
        async with asyncio.timeout(LONG):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()


async def test_without_descriptors_it_waits_and_continues(caplog: pytest.LogCaptureFixture) -> None:
    """A process without free descriptors logs no traceback and answers again later."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    async with serve("127.0.0.1:0", ROUTES) as port:
        with ExitStack() as held:
            connection = held.enter_context(socket.socket())
            highest = connection.fileno()
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
            try:
                connection.connect(("127.0.0.1", port))
                connection.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
                for _ in range(3):
                    await asyncio.sleep(endpoint.ACCEPT_RETRY)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert (await send_request(port)).endswith(b"alive\n")

    assert (failed, [record.getMessage() for record in caplog.records]) == ([], [])


async def test_listen_addresses() -> None:
    """`:PORT` means every interface; an address that cannot be used is refused."""
    async with serve("127.0.0.1:0", ROUTES) as port:
        assert (await send_request(port)).startswith(b"HTTP/1.1 200 OK")
        for address in (f"127.0.0.1:{port}", "192.0.2.1:0", "no-such-host.invalid:0"):
            with pytest.raises(JsplanError, match="cannot serve metrics and health at"):
                async with serve(address, ROUTES):
                    pass
    async with serve(":0", ROUTES) as port:
        assert (await send_request(port)).startswith(b"HTTP/1.1 200 OK")
    async with serve("localhost:0", ROUTES) as port:
        assert (await send_request(port, host="localhost")).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /healthz HTTP/1.1\r\n\r\n", b"405"), (b"GET /other HTTP/1.1\r\n\r\n", b"404"), (b"\xff\xfe\r\n\r\n", b"405"),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", b"200"), (b"GET /healthz?x=1 HTTP/1.1\r\n\r\n", b"200"),
    ],
)  # fmt: skip
async def test_answers_by_method_and_path(request_: bytes, status: bytes) -> None:
    """GET and HEAD of known paths are answered; anything else gets 404 or 405."""
    async with serve("127.0.0.1:0", ROUTES) as port:
        assert (await send_request(port, request_)).split(b" ")[1] == status


def test_readiness_gives_no_reasons() -> None:
    """The readiness answer holds no name of a server and no text of an error."""
    health = JobHealth(period=10, grace=1)
    first = health.answer_readiness()
    health.failing = True
    second = health.answer_readiness()
    health.last_checked = health.last_beat - 1000
    third = health.answer_readiness()

    assert [answer[0] for answer in (first, second, third)] == [HTTPStatus.SERVICE_UNAVAILABLE] * 3
    assert [first[2], second[2]] == [
        b"the first check is under way\n",
        b"no full check has succeeded yet; the log says why\n",
    ]
    assert third[2].startswith(b"the last full check was 1")
