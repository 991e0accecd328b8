"""The local file backend: a document, its journal, earlier serials and an OS lock.

The document is replaced atomically. Each step of an apply appends one line to the journal, which is
folded into the document when the apply ends, or at the next read. kill -9 at any moment leaves a
readable pair.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import AsyncIterator, Callable, Collection
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from jsplan.disk import open_regular
from jsplan.documents.base import DocumentError, dumps, parse, plain
from jsplan.documents.lock import LockInfo
from jsplan.documents.reading import decode
from jsplan.errors import StateError, StateLockedError
from jsplan.state import document, files
from jsplan.state.backend import WaitReporter, is_holder_dead
from jsplan.state.document import DAMAGED_HINT, State
from jsplan.units import SECOND

if TYPE_CHECKING:
    import filelock

#: Largest size in bytes of the file that names the holder.
MAX_HOLDER_BYTES = 64 * 1024
#: Previous documents that are kept.
MAX_BACKUPS = 9
#: Retries of a reader that overlaps with the end of a session.
MAX_READ_ATTEMPTS = 20
#: The pause after an fsync: so many times its own duration, and so many seconds at most.
SYNC_PAUSE = 4
MAX_SYNC_PAUSE = 0.05
#: Seconds between two attempts to take a lock that another process holds.
POLL_INTERVAL = 0.05


class LocalBackend:
    """State of one workspace and environment in `path`, mode 0600. Symbolic links are followed.

    Beside it: `.journal` (steps since the document), `.backup` (the previous serial), `.lock` and
    `.lock.info`.
    """

    def __init__(self, path: Path, workspace: str, environment: str | None) -> None:
        self.path = Path(os.path.realpath(path))
        self._workspace = workspace
        self._environment = environment
        self._journal: IO[bytes] | None = None
        self._appended = self._synced = 0
        self._next_sync = 0.0
        self._syncing = asyncio.Lock()

    @property
    def location(self) -> str:
        """The path, for messages."""
        return f"the state {self.path}"

    def _path_with_suffix(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    async def read(self, without: Collection[str] = ()) -> State:
        """Read the state and apply its journal. An empty state if there is no file.

        Raises StateError for a damaged or foreign file, which is never taken for an empty state.
        """
        for _ in range(MAX_READ_ATTEMPTS):
            seen = self._document_identity()
            state, lines = self._read_document(without), self._read_journal()
            if self._document_identity() == seen:
                where = str(self._path_with_suffix(".journal"))
                document.replay(state, lines, where, DAMAGED_HINT, without)
                return state
        raise StateError(
            f"{self.location} changes faster than it can be read",
            hint="Run the command again when fewer processes write it.",
        )

    def _document_identity(self) -> tuple[int, int, int] | None:
        """Identify the document file: the end of a session replaces it and removes its journal."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _read_document(self, without: Collection[str]) -> State:
        try:
            data = files.read_file(self.path, self.location)
        except FileNotFoundError:
            return State(self._workspace, self._environment)
        except OSError as error:
            raise StateError(
                f"cannot read the state {self.path}: {error.strerror}",
                hint=_error_hint(error, reading=True),
            ) from None
        return self._parse_document(data, self.path, without)

    def _read_journal(self) -> bytes:
        try:
            return files.read_file(
                self._path_with_suffix(".journal"), str(self._path_with_suffix(".journal"))
            )
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StateError(
                f"cannot read {self._path_with_suffix('.journal')}: {error.strerror}",
                hint=_error_hint(error, reading=True),
            ) from None

    def _parse_document(self, data: bytes, path: Path, without: Collection[str] = ()) -> State:
        state = State.parse(data, f"the state {path}", without=without)
        state.require_owner(
            self._workspace,
            self._environment,
            self.location,
            "Give each workspace and environment its own path under backend.local.path.",
        )
        return state

    async def start(self, state: State) -> None:
        """Begin a session under the lock: fold an unfinished journal, take a new serial."""
        state.require_writable(self.location)
        self._create_folder()
        if self._path_with_suffix(".journal").exists():
            await self.replace(state)
        state.begin_session()
        try:
            self._journal = files.create_private(self._path_with_suffix(".journal"))
        except OSError as error:
            raise self._journal_error(error) from None
        self.append(state, document.session_line(state))

    def append(self, state: State, *changes: dict[str, Any]) -> None:
        """Apply changes in memory and in the journal. Only `sync` makes them durable."""
        assert self._journal is not None, "start() comes first"
        lines = document.encode_lines(changes)
        for change in changes:
            state.apply_change(change)
        try:
            self._journal.write(lines)
            self._journal.flush()
        except OSError as error:
            raise self._journal_error(error) from None
        self._appended += 1

    async def flush(self) -> None:
        """Do nothing: what the system received survives the end of the process."""

    async def sync(self) -> None:
        """Wait until everything appended so far is on the disk. Concurrent calls share one wait.

        A server on the same disk waits for each fsync too. So there are pauses, in which more is
        appended that the next one covers.
        """
        mine = self._appended
        async with self._syncing:
            if self._synced >= mine:
                return
            await asyncio.sleep(self._next_sync - time.monotonic())
            if self._journal is None:
                return
            upto, begun = self._appended, time.monotonic()
            try:
                await asyncio.to_thread(os.fsync, self._journal.fileno())
            except OSError as error:
                raise self._journal_error(error) from None
            self._synced, ended = upto, time.monotonic()
            self._next_sync = ended + min(MAX_SYNC_PAUSE, SYNC_PAUSE * (ended - begun))

    def _journal_error(self, error: OSError) -> StateError:
        message = f"cannot write {self._path_with_suffix('.journal')}: {error.strerror}"
        return StateError(message, hint=f"{_error_hint(error)} Then plan again.")

    def may_write(self, seconds: float) -> float:
        """Return `seconds`: the lock of a living process never expires."""
        return seconds

    async def finish(self, state: State) -> None:
        """End the session: fold the journal into the document."""
        await self.replace(state)

    async def replace(self, state: State) -> None:
        """Replace the document atomically and durably; keep backups. Raises StateError."""
        state.require_writable(self.location)
        self._create_folder()
        try:
            with files.write_temporary(
                self._path_with_suffix(".tmp"), dumps(state.encode())
            ) as written:
                if self.path.exists():
                    self._rotate_backups()
                self._drop_journal_after(state)
                written.replace(self.path)
            self._sync_folder()
        except OSError as error:
            raise StateError(
                f"cannot write the state {self.path}: {error.strerror}",
                hint=f"{_error_hint(error)} The steps done so far are in its journal.",
            ) from None
        self._close_journal()
        self._path_with_suffix(".journal").unlink(missing_ok=True)

    def _drop_journal_after(self, state: State) -> None:
        """Remove a journal that was written for a later document."""
        with contextlib.suppress(FileNotFoundError):
            with open_regular(self._path_with_suffix(".journal")) as file:
                first = document.parse_serial(file.readline())
            if first is None or first > state.serial:
                self._path_with_suffix(".journal").unlink()

    async def close(self) -> None:
        """Close an open session without folding; the next reader finds its journal."""
        self._close_journal()

    def _close_journal(self) -> None:
        if self._journal is not None:
            # A line that did not fit on the disk was reported when it was appended.
            with contextlib.suppress(OSError):
                self._journal.close()
            self._journal = None

    def _backup_paths(self) -> list[Path]:
        """Paths of the previous documents, the newest first. They need not exist."""
        return [
            self._path_with_suffix(".backup" if number == 1 else f".backup.{number}")
            for number in range(1, MAX_BACKUPS + 1)
        ]

    def _rotate_backups(self) -> None:
        """Rename each backup to the next older. An interruption loses at most the oldest."""
        names = self._backup_paths()
        for newer, older in reversed(list(pairwise(names))):
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)
        copy = self._path_with_suffix(".backup.tmp")
        files.link_or_copy(self.path, copy)
        copy.replace(names[0])

    async def read_previous(self, serial: int) -> State:
        """Read the document of a kept serial. Raises StateError that names the kept serials."""
        previous: dict[int, State] = {}
        for path in [*reversed(self._backup_paths()), self.path]:
            with contextlib.suppress(StateError, OSError):
                state = self._parse_document(files.read_file(path, str(path)), path)
                previous[state.serial] = state
        if serial not in previous:
            raise StateError(
                f"serial {serial} of {self.location} is not kept",
                hint=f"Kept are: {', '.join(map(str, previous)) or 'none'}.",
            )
        return previous[serial]

    def _create_folder(self) -> None:
        if self.path.exists() and not self.path.is_file():
            raise StateError(
                f"{self.location} is not a regular file",
                hint="Move it, or name another path under backend.local.path.",
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(
                f"cannot create the folder {self.path.parent}: {error.strerror}",
                hint=_error_hint(error),
            ) from None

    def _sync_folder(self) -> None:
        if os.name == "posix":
            handle = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    @contextlib.asynccontextmanager
    async def lock(
        self, info: LockInfo, timeout: int, tell: Callable[[LockInfo], None] | None = None
    ) -> AsyncIterator[None]:
        """Hold the OS lock for one operation; wait at most `timeout` ns for another process.

        `tell` is called with the holder. Raises StateLockedError that names it. The system frees
        the lock when its holder dies.
        """
        import filelock  # noqa: PLC0415 - slow to import, and most commands take no lock

        self._create_folder()
        lock = filelock.FileLock(self._path_with_suffix(".lock"), mode=0o600)
        await self._acquire_lock(lock, time.monotonic() + timeout / SECOND, WaitReporter(tell))
        try:
            self._write_holder(info)
            yield
        finally:
            with contextlib.suppress(OSError):
                self._path_with_suffix(".lock.info").unlink(missing_ok=True)
            lock.release()

    async def _acquire_lock(
        self, lock: filelock.BaseFileLock, end: float, waiting: WaitReporter
    ) -> None:
        """Try until `end`, on the clock of `time.monotonic`, without blocking other tasks."""
        import filelock  # noqa: PLC0415 - as above

        while True:
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                if time.monotonic() >= end:
                    raise await self._locked_error() from None
                waiting.report(self._read_holder_file())
                await asyncio.sleep(POLL_INTERVAL)
            except OSError as error:
                where = self._path_with_suffix(".lock")
                raise StateError(
                    f"cannot lock the state: {where}: {error.strerror}", hint=_error_hint(error)
                ) from None
            else:
                return

    def _write_holder(self, info: LockInfo) -> None:
        try:
            with files.create_private(self._path_with_suffix(".lock.info")) as file:
                file.write(dumps(plain(info)))
        except OSError as error:
            raise StateError(
                f"cannot write {self._path_with_suffix('.lock.info')}: {error.strerror}",
                hint=_error_hint(error),
            ) from None

    async def read_holder(self) -> LockInfo | None:
        """Read the holder beside the lock; None if its process on this machine is dead."""
        info = self._read_holder_file()
        return None if info is None or is_holder_dead(info) else info

    async def unlock(self, lock_id: str) -> LockInfo | None:
        """Remove what a dead holder left; the system freed the lock itself.

        Raises StateLockedError for the lock of a living process, which is never broken.
        """
        import filelock  # noqa: PLC0415 - as above

        if not self._path_with_suffix(".lock").exists():
            return None
        lock = filelock.FileLock(self._path_with_suffix(".lock"), mode=0o600)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            error = await self._locked_error()
            hint = "That process is alive and its lock cannot be removed. End the process."
            raise StateLockedError(str(error), hint=hint) from None
        try:
            info = self._read_holder_file()
            if info is None or info.id != lock_id:
                return None
            self._path_with_suffix(".lock.info").unlink(missing_ok=True)
            return info
        finally:
            lock.release()

    def _read_holder_file(self) -> LockInfo | None:
        try:
            info = self._path_with_suffix(".lock.info")
            raw = parse(files.read_file(info, str(info), MAX_HOLDER_BYTES), "it", "")
            return decode(LockInfo, raw, "it", "")
        except (OSError, StateError, DocumentError):
            return None

    async def _locked_error(self) -> StateLockedError:
        info = self._read_holder_file()
        if info is None:  # the holder may have the lock and not have written its name yet
            await asyncio.sleep(POLL_INTERVAL)
            info = self._read_holder_file()
        return StateLockedError(
            f"{self.location} is locked by {info.describe() if info else 'another process'}",
            hint="Wait for it with --lock-timeout 5m. The lock is released when that process ends.",
        )


def _error_hint(error: OSError, *, reading: bool = False) -> str:
    """Return a hint for a file that cannot be read or written."""
    if not reading and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "Free space on the disk."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Run it as a user who may read and write there."
    return "Move it, or name another place under backend.local.path."
