from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest

from jsplan.drift import endpoint
from jsplan.drift.endpoint import MAX_CONNECTIONS, serve, text_answer
from jsplan.errors import JsplanError
from jsplan.workflows.drift_outputs import JobHealth

if TYPE_CHECKING:
    from jsplan.drift.endpoint import Routes

ROUTES: Routes = {"/healthz": lambda: text_answer(HTTPStatus.OK, "alive")}
#: Seconds; far more than a probe waits, and far less than the test may take.
LONG = 20.0


async def send_request(
    port: int, request: bytes = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", host: str = "127.0.0.1"
) -> bytes:
    """The whole answer."""
    async with asyncio.timeout(LONG):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer


async def test_idle_connections_take_nothing_from_others() -> None:
    """However many sit there without asking, whoever asks is answered at once; no request has to wait for theirs to time out."""
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


async def test_an_idle_connection_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that asks nothing, or a byte at a time, ends with its deadline; one that asks too much ends at once."""
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
    """A process that cannot open anything more logs no traceback, and answers again as soon as it can."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    async with serve("127.0.0.1:0", ROUTES) as port:
        with ExitStack() as held:
            one = held.enter_context(socket.socket())
            highest = one.fileno()
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
            try:
                one.connect(("127.0.0.1", port))
                one.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
                for _ in range(3):
                    await asyncio.sleep(endpoint.ACCEPT_RETRY)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert (await send_request(port)).endswith(b"alive\n")

    assert (failed, [record.getMessage() for record in caplog.records]) == ([], [])


async def test_where_it_listens() -> None:
    """`:PORT` is every interface, a host only its own; an address that is taken, or of another machine, is said in words."""
    async with serve("127.0.0.1:0", ROUTES) as port:
        assert (await send_request(port)).startswith(b"HTTP/1.1 200 OK")
        for place in (f"127.0.0.1:{port}", "192.0.2.1:0", "no-such-host.invalid:0"):
            with pytest.raises(JsplanError, match="cannot serve metrics and health at"):
                async with serve(place, ROUTES):
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
async def test_what_is_answered(request_: bytes, status: bytes) -> None:
    """GET and HEAD of what there is; anything else is refused in HTTP's own words."""
    async with serve("127.0.0.1:0", ROUTES) as port:
        assert (await send_request(port, request_)).split(b" ")[1] == status


def test_readiness_gives_no_reasons() -> None:
    """Whoever may reach the port learns whether checks succeed, and no name of a server or text of an error."""
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
