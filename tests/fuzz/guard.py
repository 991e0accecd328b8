"""A guard for a process that reads hostile documents: files, processes, CPU and memory.

The guard is permanent. Only a process that was forked for it may call `install`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import selectors
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from jsplan.state import lease
from tests.fuzz import hostile_values

#: Bytes that the process may use in addition to those at its begin.
MEMORY: Final = 512 << 20
#: Seconds of wall time after which a document counts as waiting for ever, also on a busy machine.
WALL: Final = 180
_PROCESSES: Final = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.forkpty",
    "os.spawn",
    "pty.spawn",
)
#: Arguments of each call: the path that it changes, and the folder of a relative path.
_CHANGES: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.mkdir": ((0, 2),),
    "os.rmdir": ((0, 1),),
    "os.remove": ((0, 1),),
    "os.truncate": ((0, 9),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
}
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class StoppedDocument(BaseException):
    """The document made the process do something forbidden; no `except Exception` catches it."""


class Guard:
    """The permissions of the current document. `seen` are its forbidden actions."""

    def __init__(self) -> None:
        self.folders: tuple[str, ...] = ()
        self.temporary = ""
        self.pipes: tuple[str, ...] = ()
        self.seen: list[str] = []
        self.active = False

    @contextlib.contextmanager
    def watching(
        self,
        folders: tuple[Path, ...],
        temporary: Path,
        seconds: float,
        pipes: tuple[Path, ...] = (),
    ) -> Iterator[None]:
        """Allow writes only in `folders` and in new folders of `temporary`, for `seconds` of CPU.

        `pipes` are files that may be pipes, since the user named them. They end with an error.
        """
        self.pipes = tuple(map(os.path.realpath, pipes))
        self.folders, self.temporary = (
            tuple(map(os.path.realpath, folders)),
            os.path.realpath(temporary),
        )
        self.seen, self.active = [], True
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        resource.setrlimit(
            resource.RLIMIT_CPU, (int(used + 4 * seconds + 20), resource.RLIM_INFINITY)
        )
        signal.setitimer(signal.ITIMER_PROF, seconds, 0.5)
        signal.setitimer(signal.ITIMER_REAL, WALL, 1.0)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.active = False

    def stop(self, what: str) -> None:
        """Record a forbidden action and stop."""
        self.seen.append(what)
        raise StoppedDocument(what)

    def audit_hook(self, event: str, args: tuple[Any, ...]) -> None:
        """Check an event of the interpreter before it happens."""
        if not self.active:
            return
        if event == "open":
            self._check_open(*args)
        elif event in _CHANGES:
            for at, folder in _CHANGES[event]:
                # A path relative to an open folder is below it.
                if folder >= len(args) or args[folder] in (None, -1):
                    self._check_change(event, args[at])
        elif event in ("socket.connect", "socket.bind", "socket.sendto"):
            raise ConnectionRefusedError(111, "Connection refused")
        elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
            raise socket.gaierror(-2, "Name or service not known")
        elif event in _PROCESSES:
            self.stop(f"starts a process: {event} {args!r}"[:300])
        elif event == "compile" and hostile_values.CODE in str(args[0]):
            self.stop("compiles text of the document")

    def _check_open(self, path: Any, _: Any, flags: Any) -> None:
        if isinstance(path, int):
            return
        if isinstance(flags, int) and flags & _WRITING and os.fsdecode(path) != os.devnull:
            self._check_change("open", path)
        if not flags & os.O_NONBLOCK and _is_pipe(path):
            if os.path.realpath(path) in self.pipes:
                raise OSError(errno.EIO, "Input/output error")
            self.stop("waits for the other end of a pipe")

    def _check_change(self, event: str, path: Any) -> None:
        if isinstance(path, int):
            return
        whole = Path(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100 - resolve() would follow links
        real = str(whole.resolve() if event == "open" else whole.parent.resolve() / whole.name)
        inside = any(real == folder or real.startswith(f"{folder}/") for folder in self.folders)
        below = (
            real.removeprefix(f"{self.temporary}/") if real.startswith(f"{self.temporary}/") else ""
        )
        if not inside and not ("/" in below or (below and event in ("os.mkdir", "os.rmdir"))):
            self.stop(f"changes {whole} with {event}")


def _is_pipe(path: Any) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)  # noqa: PTH116 - no Path for each file that is opened
    except (OSError, ValueError):
        return False


GUARD: Final = Guard()


def _cpu_alarm(*_: object) -> None:
    if GUARD.active:
        GUARD.stop("computes too long")


def _wall_alarm(*_: object) -> None:
    if GUARD.active:
        GUARD.stop("waits for ever")


def install() -> None:
    """Guard this process from now on, skip its waiting, and bound its memory."""
    sys.dont_write_bytecode = True  # an import would write it, which is no action of jsplan
    sys.addaudithook(GUARD.audit_hook)
    signal.signal(signal.SIGPROF, _cpu_alarm)
    signal.signal(signal.SIGALRM, _wall_alarm)
    _skip_waiting()
    os.fsync = _nothing  # the disk is not tested
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        pages = int(file.read().split()[0])
    resource.setrlimit(
        resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, resource.RLIM_INFINITY)
    )
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _nothing(fd: Any) -> None:
    """Skip a wait for the disk."""


def _skip_waiting() -> None:
    """Replace each wait by a step of the clock."""
    real, ahead = time.monotonic, [0.0]

    def monotonic() -> float:
        return real() + ahead[0]

    def sleep(seconds: Any, /) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        ahead[0] += seconds

    select = selectors.DefaultSelector.select

    def quick_select(self: Any, timeout: float | None = None) -> list[Any]:
        found = select(self, timeout if timeout is None or timeout <= 0 else min(timeout, 0.002))
        if not found and timeout is not None and timeout > 0:
            ahead[0] += timeout
        return found

    time.monotonic = monotonic
    time.sleep = sleep
    lease.clock = monotonic
    selectors.DefaultSelector.select = quick_select  # type: ignore[method-assign]
    asyncio.base_events.time.monotonic = monotonic  # type: ignore[attr-defined]
