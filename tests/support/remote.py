"""A backend in a process of its own, told what to do line by line; what locks are for needs more than one process to be shown.

Run as a program it reads `{"kind", …}` (which backend) and then one command per line, and answers each with one line.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from jsplan.config.model import Connection, Domain
from jsplan.errors import JsplanError
from jsplan.state import KvBackend, LocalBackend, LockInfo
from jsplan.units import SECOND

if TYPE_CHECKING:
    from types import TracebackType

    from jsplan.state import Backend, State

ROOT = Path(__file__).parents[2]
PATIENCE = 120 * SECOND


def backend_from(where: dict[str, Any]) -> Backend:
    """The backend that a description names: a path, or a bucket."""
    if where["kind"] == "local":
        return LocalBackend(Path(where["path"]), "shop", None)
    domain = Domain("there", "way", None, "$JS.API")
    return KvBackend.open_bucket(
        where["bucket"],
        domain,
        Connection("way", url=where["url"]),
        {},
        of=("shop", None),
        lease=where["lease"],
    )


class RemoteBackend:
    """The other process, from the side of the test."""

    def __init__(self, where: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "tests.support.remote"]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._send_line(json.dumps(where))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()

    def do(self, command: str) -> str:
        """One command to its end: `ok`, a result, or the class and text of the error it raised."""
        self.begin(command)
        return self.end()

    def begin(self, command: str) -> None:
        """Tell it what to do without waiting for it."""
        self._send_line(command)

    def end(self) -> str:
        """Wait for what it was told before."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands still."""
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.process.pid, signal.SIGCONT)

    def _send_line(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


class RemoteWorker:
    """The side of the process that is told."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.lock_stack = AsyncExitStack()
        self.state: State | None = None

    async def obey(self, command: str) -> str:
        """Carry out one command."""
        word, _, rest = command.partition(" ")
        try:
            return await getattr(self, word)(rest) or "ok"
        except JsplanError as error:
            return f"{type(error).__name__}: {error}"

    async def lock(self, timeout: str) -> None:
        """Take the lock, waiting as many ns."""
        await self.lock_stack.enter_async_context(
            self.backend.lock(LockInfo.for_this_process("apply"), int(timeout or 0))
        )

    async def unlock(self, _: str) -> None:
        """Let it go."""
        await self.lock_stack.aclose()

    async def start(self, _: str) -> None:
        """Begin a session."""
        self.state = await self.backend.read()
        await self.backend.start(self.state)

    async def append(self, line: str) -> None:
        """Journal a line, and wait until it is kept."""
        assert self.state is not None
        self.backend.append(self.state, json.loads(line))
        await self.backend.sync()

    async def finish(self, _: str) -> None:
        """End the session."""
        assert self.state is not None
        await self.backend.finish(self.state)

    async def serial(self, _: str) -> str:
        """The serial of the state."""
        return str((await self.backend.read()).serial)

    async def names(self, _: str) -> str:
        """The name of the server that the state remembers."""
        return str((await self.backend.read()).domains["hub"]["name"])

    async def take_away(self, lock_id: str) -> None:
        """Take the lock with this id away from its holder."""
        await self.backend.unlock(lock_id)

    async def may_write(self, seconds: str) -> str:
        """Ask for so many seconds."""
        return str(self.backend.may_write(float(seconds)))

    async def fight(self, arguments: str) -> str:
        """Take the lock so many times. Inside it a file is made that must not be there, and in turn a session is written."""
        rounds, path = arguments.split(" ", 1)
        for number in range(int(rounds)):
            async with self.backend.lock(LockInfo.for_this_process("apply"), PATIENCE):
                inside = os.open(path, os.O_CREAT | os.O_EXCL)
                os.close(inside)
                await self._write_session(number)
                os.unlink(path)  # noqa: PTH108 - not blocking as far as a test is concerned
        return f"won {rounds}"

    async def _write_session(self, number: int) -> None:
        state = await self.backend.read()
        await self.backend.start(state)
        self.backend.append(
            state, {"domain": {"key": f"{os.getpid()}", "server": {"name": str(number)}}}
        )
        await self.backend.finish(state)


async def main() -> None:
    """Obey until nobody says anything more."""
    where = await asyncio.to_thread(sys.stdin.readline)
    puppet = RemoteWorker(backend_from(json.loads(where)))
    while command := (await asyncio.to_thread(sys.stdin.readline)).strip():
        sys.stdout.write(await puppet.obey(command) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
