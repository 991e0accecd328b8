"""A backend in its own process, because locks need more than one process.

The program reads `{"kind", …}` (which backend), then one command per line, and answers each with
one line.
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
from jsplan.state import LocalBackend, LockInfo
from jsplan.state.kv import KvBackend
from jsplan.units import SECOND

if TYPE_CHECKING:
    from jsplan.state import Backend, State

ROOT = Path(__file__).parents[2]
LOCK_TIMEOUT = 120 * SECOND


def backend_from(where: dict[str, Any]) -> Backend:
    """Open the backend of a description: a path, or a bucket."""
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
    """The other process, as the test sees it."""

    def __init__(self, where: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "tests.support.remote"]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._send_line(json.dumps(where))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()

    def do(self, command: str) -> str:
        """Run one command and return `ok`, a result, or the class and text of an error."""
        self.begin(command)
        return self.end()

    def begin(self, command: str) -> None:
        """Send a command without waiting for its end."""
        self._send_line(command)

    def end(self) -> str:
        """Wait for the command that was sent before."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Send SIGSTOP, and wait until the process is stopped."""
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Send SIGCONT."""
        os.kill(self.process.pid, signal.SIGCONT)

    def _send_line(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


class RemoteWorker:
    """The commands, as the other process runs them."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.lock_stack = AsyncExitStack()
        self.state: State | None = None

    async def run_command(self, command: str) -> str:
        """Run one command."""
        word, _, rest = command.partition(" ")
        try:
            return await getattr(self, word)(rest) or "ok"
        except JsplanError as error:
            return f"{type(error).__name__}: {error}"

    async def lock(self, timeout: str) -> None:
        """Take the lock; wait at most `timeout` ns."""
        await self.lock_stack.enter_async_context(
            self.backend.lock(LockInfo.for_this_process("apply"), int(timeout or 0))
        )

    async def unlock(self, _: str) -> None:
        """Release the lock."""
        await self.lock_stack.aclose()

    async def start(self, _: str) -> None:
        """Begin a session."""
        self.state = await self.backend.read()
        await self.backend.start(self.state)

    async def append(self, line: str) -> None:
        """Append a line to the journal, and wait until it is stored."""
        assert self.state is not None
        self.backend.append(self.state, json.loads(line))
        await self.backend.sync()

    async def finish(self, _: str) -> None:
        """End the session."""
        assert self.state is not None
        await self.backend.finish(self.state)

    async def serial(self, _: str) -> str:
        """Return the serial of the state."""
        return str((await self.backend.read()).serial)

    async def names(self, _: str) -> str:
        """Return the name of the server in the state."""
        return str((await self.backend.read()).domains["hub"]["name"])

    async def holder(self, _: str) -> str:
        """Read the operation of the holder; `none` without one."""
        found = await self.backend.read_holder()
        return found.operation if found is not None else "none"

    async def break_lock(self, lock_id: str) -> None:
        """Break the lock with this id, which another process holds."""
        await self.backend.unlock(lock_id)

    async def may_write(self, seconds: str) -> str:
        """Return the answer of `may_write` for `seconds`."""
        return str(self.backend.may_write(float(seconds)))

    async def take_often(self, arguments: str) -> str:
        """Take the lock `rounds` times, and write a session in each.

        A file that must not exist is created while the lock is held.
        """
        rounds, path = arguments.split(" ", 1)
        for number in range(int(rounds)):
            async with self.backend.lock(LockInfo.for_this_process("apply"), LOCK_TIMEOUT):
                inside = os.open(path, os.O_CREAT | os.O_EXCL)
                os.close(inside)
                await self._write_session(number)
                os.unlink(path)  # noqa: PTH108 - the test does not wait for it
        return f"won {rounds}"

    async def _write_session(self, number: int) -> None:
        state = await self.backend.read()
        await self.backend.start(state)
        self.backend.append(
            state, {"domain": {"key": f"{os.getpid()}", "server": {"name": str(number)}}}
        )
        await self.backend.finish(state)


async def main() -> None:
    """Run commands until the end of the input."""
    where = await asyncio.to_thread(sys.stdin.readline)
    worker = RemoteWorker(backend_from(json.loads(where)))
    while command := (await asyncio.to_thread(sys.stdin.readline)).strip():
        sys.stdout.write(await worker.run_command(command) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
