"""A JetStream API that forwards to the real server and lets a test change the answers."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any, Self

import nats

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from jsplan.sandbox import Server

#: The domain whose API it answers.
DOMAIN = "fake"
_PREFIX = f"$JS.{DOMAIN}.API."


class FakeApi:
    """A responder for `$JS.fake.API.>`.

    `change_answer` returns what is answered, or None for no answer.
    """

    def __init__(self, server: Server) -> None:
        self.change_answer: Callable[[str, Any], Any] = lambda _, answer: answer
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._client: Client = asyncio.run_coroutine_threadsafe(self._connect(), self._loop).result(
            30
        )
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _connect(self) -> Client:
        client = await nats.connect(self._server.url)
        await client.subscribe(f"{_PREFIX}>", cb=self._answer)
        await client.flush()
        return client

    async def _answer(self, message: Msg) -> None:
        """Forward in a task: a request that the server leaves unanswered must not hold the others."""
        task = self._loop.create_task(self._forward(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, message: Msg) -> None:
        api = message.subject.removeprefix(_PREFIX)
        real = api if api.startswith("$KV.") else f"$JS.API.{api}"
        answer = await self._client.request(real, message.data, timeout=30, headers=message.headers)
        document = json.loads(answer.data)
        changed = self.change_answer(api, document)
        if changed is not None and message.reply:
            await message.respond(
                changed if isinstance(changed, bytes) else json.dumps(changed).encode()
            )
