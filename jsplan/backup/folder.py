"""The folder of a backup: whole archives, and a manifest that names only existing ones.

An archive is written under a temporary name, synced, and renamed to a name that contains its
checksum. Then the manifest, which is replaced atomically, names it. Archives that it no longer
names are removed after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import filelock

from jsplan.address import Address
from jsplan.backup.manifest import UNUSABLE_HINT, Manifest, SavedStream, StreamSnapshot
from jsplan.disk import open_private, open_regular, read_regular
from jsplan.documents.base import MAX_BYTES, dumps, parse
from jsplan.documents.types import resolve_inside
from jsplan.errors import JsplanError
from jsplan.units import format_timestamp

MANIFEST = "manifest.json"
LOCK = ".lock"
#: Extensions of our files; any other file makes the folder foreign.
SNAPSHOT_SUFFIX, PARTIAL_SUFFIX = ".snap", ".part"
#: Maximal share of the time for writing the manifest again.
MANIFEST_TIME_SHARE = 0.05
READ_BYTES = 1024 * 1024


class BackupError(JsplanError):
    """A backup's folder cannot be used, or does not match its manifest."""


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a backup.

    Raises BackupError when there is none, DocumentError for a damaged or foreign one.
    """
    path = folder / MANIFEST
    try:
        data = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        raise BackupError(
            f"{folder} is not a backup folder: it has no {MANIFEST}",
            hint=_nested_backups_hint(folder),
        ) from None
    except OSError as error:
        raise BackupError(f"cannot read {path}: {error.strerror}") from None
    return Manifest.from_json(parse(data, str(path), UNUSABLE_HINT), str(path))


def _nested_backups_hint(folder: Path) -> str:
    inside = (
        sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST}")) if folder.is_dir() else []
    )
    if inside:
        return f"There are backups in it: {', '.join(inside[-3:])}."
    return "Give the folder that jsplan backup wrote."


def find_damage(folder: Path, archive: StreamSnapshot) -> str | None:
    """Describe the damage of an archive; None if it matches the manifest."""
    digest, size = hashlib.sha256(), 0
    try:
        path = resolve_inside(folder, archive.file)
    except ValueError as error:
        return str(error)
    if path.parent != folder:
        return f"{archive.file} is not a plain file name"
    try:
        with open_regular(path) as file:
            while data := file.read(READ_BYTES):
                digest.update(data)
                size += len(data)
    except OSError as error:
        return f"{archive.file} cannot be read: {error.strerror}"
    if size != archive.bytes:
        return f"{archive.file} has {size:,} bytes, its manifest says {archive.bytes:,}"
    if digest.hexdigest() == archive.sha256:
        return None
    return f"{archive.file} does not have the checksum that its manifest says"


class BackupFolder:
    """A backup that is being written; opened by `open_for_writing`."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.unrecorded: set[str] = set()  # archives that exist and are not in the manifest yet
        self._last_written = self._write_seconds = 0.0
        self._later: asyncio.TimerHandle | None = None

    def create_draft(self, address: Address) -> SnapshotDraft:
        """Create a file for a new archive."""
        return SnapshotDraft(self, address)

    def add(self, saved: SavedStream) -> None:
        """Add a stream whose archive exists; called in an event loop.

        The manifest follows at once, or soon if there are very many streams.
        """
        self.manifest.streams[Address.parse(saved.address)] = saved
        self.unrecorded.discard(saved.archive.file)
        self.manifest.missing.pop(saved.address, None)
        elapsed = time.monotonic() - self._last_written
        wait = self._write_seconds / MANIFEST_TIME_SHARE - elapsed
        if wait <= 0:
            self.write()
        elif self._later is None:  # also if the next stream takes hours
            self._later = asyncio.get_running_loop().call_later(wait, self._write_later)

    def _write_later(self) -> None:
        with contextlib.suppress(BackupError):  # the next write raises it
            self.write()

    def close(self) -> None:
        """Cancel a write that is due later."""
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def write(self) -> None:
        """Replace the manifest, then remove what it does not name. Raise BackupError."""
        self.close()
        started, temporary = time.monotonic(), self.path / f"{MANIFEST}{PARTIAL_SUFFIX}"
        with _raise_backup_error(temporary):
            with open_private(temporary) as file:
                file.write(dumps(self.manifest.to_json()))
                _sync(file)
            temporary.rename(self.path / MANIFEST)
            _sync_folder(self.path)
            self._remove_unnamed()
        self._last_written = time.monotonic()
        self._write_seconds = self._last_written - started

    def _remove_unnamed(self) -> None:
        """Remove archives that are replaced, or that were never recorded.

        Threads finish archives meanwhile, each of which has its name in `unrecorded` before it has
        its file. So the files are listed first.
        """
        files = list(self.path.glob(f"*{SNAPSHOT_SUFFIX}"))
        named = {saved.archive.file for saved in self.manifest.streams.values()} | self.unrecorded
        for path in files:
            if path.name not in named:
                path.unlink()


class SnapshotDraft:
    """A partial archive: `write` its bytes, then `finish`; without `finish` it is removed."""

    def __init__(self, folder: BackupFolder, address: Address) -> None:
        self._folder = folder
        self._stem = "".join(
            c if c.isascii() and (c.isalnum() or c in "-_") else "_"
            for c in str(address).replace("/", ".")
        )[:100]
        self._path = folder.path / f"{self._stem}.{uuid.uuid4().hex[:8]}{PARTIAL_SUFFIX}"
        self._digest = hashlib.sha256()
        self._file: IO[bytes] | None = None
        self.bytes = 0

    def __enter__(self) -> Self:
        with _raise_backup_error(self._path):
            self._file = open_private(self._path)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
        self._path.unlink(missing_ok=True)

    def write(self, chunk: bytes) -> None:
        """Append; raise BackupError when the disk refuses it."""
        assert self._file is not None
        with _raise_backup_error(self._path):
            self._file.write(chunk)
        self._digest.update(chunk)
        self.bytes += len(chunk)

    def finish(self, form: str) -> StreamSnapshot:
        """Sync the file and give it its name. Call it from a thread. Raises BackupError."""
        assert self._file is not None
        archive = StreamSnapshot(
            f"{self._stem}.{self._digest.hexdigest()[:12]}{SNAPSHOT_SUFFIX}",
            self._digest.hexdigest(),
            self.bytes,
            form,
        )
        self._folder.unrecorded.add(archive.file)
        with _raise_backup_error(self._path):
            _sync(self._file)
            self._path.rename(self._folder.path / archive.file)
        return archive


@contextlib.contextmanager
def open_for_writing(path: Path, workspace: str, environment: str | None) -> Iterator[BackupFolder]:
    """Create the folder, or continue the backup of the same workspace in it, under a lock.

    Raises BackupError for a folder that holds anything else, or while another process writes to it.
    """
    with _raise_backup_error(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_backup_folder(path)
        lock = filelock.FileLock(path / LOCK, mode=0o600)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise BackupError(
                f"another jsplan is writing a backup into {path}",
                hint="Wait for it, or give another folder.",
            ) from None
    try:
        with contextlib.closing(_open_folder(path, workspace, environment)) as folder:
            yield folder
    finally:
        lock.release()


def _open_folder(path: Path, workspace: str, environment: str | None) -> BackupFolder:
    manifest = Manifest(
        workspace, environment, str(uuid.uuid4()), format_timestamp(), None, False, {}, {}
    )
    if (path / MANIFEST).exists():
        manifest = read_manifest(path)
        if (manifest.workspace, manifest.environment) != (workspace, environment):
            theirs = f"{manifest.workspace}, environment {manifest.environment or 'none'}"
            raise BackupError(
                f"{path} holds a backup of workspace {theirs}",
                hint="Give this one a folder of its own.",
            )
    manifest.complete, manifest.finished_at = False, None
    with _raise_backup_error(path):
        for left in path.glob(f"*{PARTIAL_SUFFIX}"):
            left.unlink()
    folder = BackupFolder(path, manifest)
    folder.write()
    return folder


def _require_backup_folder(path: Path) -> None:
    names = {entry.name for entry in path.iterdir()}
    ours = {
        name
        for name in names
        if name in (MANIFEST, LOCK) or name.endswith((SNAPSHOT_SUFFIX, PARTIAL_SUFFIX))
    }
    if names - ours or (
        ours and MANIFEST not in ours and not ours <= {LOCK, f"{MANIFEST}{PARTIAL_SUFFIX}"}
    ):
        strange = min(names - ours or ours)
        raise BackupError(
            f"{path} holds something else than a backup: {strange}",
            hint="Give a new or empty folder.",
        )


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):
        return
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextlib.contextmanager
def _raise_backup_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BackupError(
            f"cannot write {path}: {error.strerror or error}",
            hint="Check the free space on the disk, and your permission to write there.",
        ) from None
