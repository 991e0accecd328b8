"""The local file backend: a document, a journal beside it, a backup of the serial before, and an OS lock.

The document is replaced atomically; each step of an apply appends one line to the journal, which is folded into
the document when the apply ends or by whoever reads next. kill -9 at any moment leaves a readable pair.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import filelock
import orjson

from jsplan.documents.base import dumps
from jsplan.errors import StateError, StateLockedError
from jsplan.state.document import DAMAGED, State
from jsplan.state.locks import LockInfo

SECOND = 1_000_000_000


class LocalBackend:
    """State of one workspace and environment in `path`, mode 0600.

    Beside it: `.journal` (steps since the document), `.backup` (the serial before), `.lock` and `.lock.info`.
    """

    def __init__(self, path: Path, workspace: str, environment: str | None) -> None:
        self.path = path
        self._workspace = workspace
        self._environment = environment
        self._journal: IO[bytes] | None = None
        self._appended = self._synced = 0
        self._syncing = asyncio.Lock()

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def read(self) -> State:
        """The state with its journal carried out; an empty one if there is no file.

        Raises StateError for a damaged or foreign file: it is never taken for an empty state.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            state = State(self._workspace, self._environment)
        except OSError as error:
            raise StateError(f"cannot read the state {self.path}: {error.strerror}") from None
        else:
            state = State.from_json(self._parsed(data), str(self.path))
            self._check_ours(state)
        for number, change in self._journal_lines(state):
            try:
                state.apply(change)
            except (KeyError, TypeError, ValueError, AttributeError):
                raise self._damaged(number) from None
        return state

    def _parsed(self, data: bytes) -> Any:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise StateError(f"the state {self.path} is damaged: {error}", hint=DAMAGED) from None

    def _check_ours(self, state: State) -> None:
        if (state.workspace, state.environment) != (self._workspace, self._environment):
            theirs = f"{state.workspace}, environment {state.environment or 'none'}"
            raise StateError(
                f"the state {self.path} belongs to workspace {theirs}, not to {self._workspace}, environment {self._environment or 'none'}",
                hint="Give each workspace and environment a path of its own under backend.local.path.",
            )

    def _journal_lines(self, state: State) -> Iterator[tuple[int, dict[str, Any]]]:
        """The lines that are not in the document yet. A torn last line is a step whose end was never recorded."""
        try:
            lines = self._beside(".journal").read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            raise StateError(f"cannot read {self._beside('.journal')}: {error.strerror}") from None
        for number, line in enumerate(lines, 1):
            try:
                change = orjson.loads(line) if line else {}
            except orjson.JSONDecodeError:
                if number == len(lines):
                    return
                raise self._damaged(number) from None
            match change:
                case {"session": {"serial": int(serial)}} if serial <= state.serial:
                    return  # folded already: the document was replaced, then the process died
                case dict():
                    yield number, change
                case _:
                    raise self._damaged(number)

    def _damaged(self, number: int) -> StateError:
        return StateError(f"{self._beside('.journal')}:{number} is damaged", hint=DAMAGED)

    def start(self, state: State) -> None:
        """Open a writing session under the lock: fold what a dead process left, then begin a new serial."""
        self._make_folder()
        if self._beside(".journal").exists():
            self.write(state)
        state.begin()
        try:
            self._journal = self._open_private(self._beside(".journal"), "wb")
        except OSError as error:
            raise self._cannot_record(error) from None
        self.append(state, {"session": {"lineage": state.lineage, "serial": state.serial}})

    def append(self, state: State, *changes: dict[str, Any]) -> None:
        """Carry out changes on the document in memory and in the journal. A power failure may lose what was not `sync`ed."""
        assert self._journal is not None, "start() comes first"
        for change in changes:
            state.apply(change)
        try:
            self._journal.write(b"".join(dumps(change, pretty=False) + b"\n" for change in changes))
            self._journal.flush()
        except OSError as error:
            raise self._cannot_record(error) from None
        self._appended += 1

    async def sync(self) -> None:
        """Wait until everything appended so far is on the disk. Steps that end at the same time share one wait."""
        mine = self._appended
        async with self._syncing:
            if self._synced >= mine or self._journal is None:
                return
            upto = self._appended
            try:
                await asyncio.to_thread(os.fsync, self._journal.fileno())
            except OSError as error:
                raise self._cannot_record(error) from None
            self._synced = upto

    def _cannot_record(self, error: OSError) -> StateError:
        message = f"cannot write {self._beside('.journal')}: {error.strerror}"
        return StateError(message, hint="Make room on the disk, then plan again.")

    def finish(self, state: State) -> None:
        """End the session: fold the journal into the document."""
        self.write(state)

    def write(self, state: State) -> None:
        """Replace the document atomically and durably; the one before stays as `.backup`. Raises StateError."""
        temporary = self._beside(".tmp")
        try:
            self._make_folder()
            with self._open_private(temporary, "wb") as file:
                file.write(dumps(state.to_json()))
                file.flush()
                os.fsync(file.fileno())
            if self.path.exists():
                self._keep_backup()
            temporary.replace(self.path)
            self._sync_folder()
        except OSError as error:
            raise StateError(
                f"cannot write the state {self.path}: {error.strerror}", hint="The steps done so far are in its journal."
            ) from None
        self.close()
        self._beside(".journal").unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of an open session as it is; the next reader finds its journal."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _keep_backup(self) -> None:
        backup = self._beside(".backup.tmp")
        backup.unlink(missing_ok=True)
        os.link(self.path, backup)
        backup.replace(self._beside(".backup"))

    def _make_folder(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"cannot make the folder {self.path.parent}: {error.strerror}") from None

    @staticmethod
    def _open_private(path: Path, mode: str) -> IO[bytes]:
        """A file that only its owner can read from its first byte on."""
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if mode == "wb" else os.O_APPEND)
        return os.fdopen(os.open(path, flags, 0o600), mode)

    def _sync_folder(self) -> None:
        if os.name == "posix":
            handle = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    @contextlib.contextmanager
    def lock(self, info: LockInfo, timeout: int) -> Iterator[None]:
        """Hold the OS lock for one operation; `timeout` is ns to wait for somebody else.

        Raises StateLockedError that says who holds it. The system frees the lock when its holder dies.
        """
        self._make_folder()
        lock = filelock.FileLock(self._beside(".lock"), mode=0o600)
        try:
            lock.acquire(timeout=timeout / SECOND, poll_interval=0.05)
        except filelock.Timeout:
            raise self._locked() from None
        except OSError as error:
            raise StateError(
                f"cannot lock the state: {self._beside('.lock')}: {error.strerror}", hint="Make the folder writable."
            ) from None
        try:
            self._say_who(info)
            yield
        finally:
            with contextlib.suppress(OSError):
                self._beside(".lock.info").unlink(missing_ok=True)
            lock.release()

    def _say_who(self, info: LockInfo) -> None:
        try:
            with self._open_private(self._beside(".lock.info"), "wb") as file:
                file.write(dumps(info.to_json()))
        except OSError as error:
            raise StateError(f"cannot write {self._beside('.lock.info')}: {error.strerror}", hint="Make the folder writable.") from None

    def _locked(self) -> StateLockedError:
        who = "somebody else"
        for _ in range(2):  # the holder may be between taking the lock and saying who it is
            try:
                who = LockInfo.from_json(orjson.loads(self._beside(".lock.info").read_bytes())).describe()
                break
            except (OSError, ValueError, KeyError, TypeError):
                time.sleep(0.05)
        return StateLockedError(
            f"the state {self.path} is locked by {who}",
            hint="Wait for it with --lock-timeout 5m. The lock goes away by itself when that process ends.",
        )
