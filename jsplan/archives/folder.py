"""The folder of a backup: archives that appear whole or not at all, and a manifest that never names one that is not there.

An archive is written under a temporary name, synced, renamed to a name that contains its checksum, and only then
named by the manifest, which is replaced atomically. What the manifest does not name any more is removed after that. What
a manifest means is left to `manifest`.
"""

from __future__ import annotations

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
from jsplan.archives.manifest import UNUSABLE, Archive, Manifest, Saved
from jsplan.disk import open_regular, read_regular
from jsplan.documents.base import LARGEST, dumps, parse
from jsplan.documents.places import inside
from jsplan.errors import JsplanError
from jsplan.units import stamp

MANIFEST = "manifest.json"
LOCK = ".lock"
#: Ends of the names of our files; anything else makes the folder somebody else's.
ARCHIVE, PART = ".snap", ".part"
#: Part of the time that may go into writing the manifest again and again.
SHARE = 0.05
READ = 1024 * 1024


class BackupError(JsplanError):
    """A backup's folder cannot be used, or what is in it is not what its manifest says."""


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a backup. Raises BackupError when there is none, DocumentError for a damaged or foreign one."""
    path = folder / MANIFEST
    try:
        data = read_regular(path, LARGEST)
    except FileNotFoundError:
        raise BackupError(f"{folder} is not a backup folder: it has no {MANIFEST}", hint=_nested(folder)) from None
    except OSError as error:
        raise BackupError(f"cannot read {path}: {error.strerror}") from None
    return Manifest.from_json(parse(data, str(path), UNUSABLE), str(path))


def _nested(folder: Path) -> str:
    inside = sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST}")) if folder.is_dir() else []
    return f"There are backups in it: {', '.join(inside[-3:])}." if inside else "Give the folder that jsplan backup wrote."


def damage(folder: Path, archive: Archive) -> str | None:
    """What is wrong with an archive, in words; None if it is as the manifest says."""
    digest, size = hashlib.sha256(), 0
    try:
        path = inside(folder, archive.file)
    except ValueError as error:
        return str(error)
    if path.parent != folder:
        return f"{archive.file} is not a plain file name"
    try:
        with open_regular(path) as file:
            while data := file.read(READ):
                digest.update(data)
                size += len(data)
    except OSError as error:
        return f"{archive.file} cannot be read: {error.strerror}"
    if size != archive.bytes:
        return f"{archive.file} has {size:,} bytes, its manifest says {archive.bytes:,}"
    return None if digest.hexdigest() == archive.sha256 else f"{archive.file} does not have the checksum that its manifest says"


class BackupFolder:
    """A backup that is being written; opened by `writing`."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.fresh: set[str] = set()  # archives that are there and not in the manifest yet
        self._written = self._cost = 0.0

    def begin(self, address: Address) -> Draft:
        """A file for an archive that is about to come."""
        return Draft(self, address)

    def add(self, saved: Saved) -> None:
        """Take in a stream whose archive is there. The manifest follows at once, or soon, where there are very many."""
        self.manifest.streams[saved.address] = saved
        self.fresh.discard(saved.archive.file)
        self.manifest.missing.pop(str(saved.address), None)
        if time.monotonic() - self._written >= self._cost / SHARE:
            self.write()

    def write(self) -> None:
        """Replace the manifest, then remove what it does not name. Raises BackupError."""
        started, temporary = time.monotonic(), self.path / f"{MANIFEST}{PART}"
        with _reported(temporary):
            with _private(temporary) as file:
                file.write(dumps(self.manifest.to_json()))
                _sync(file)
            temporary.rename(self.path / MANIFEST)
            _sync_folder(self.path)
            self._sweep()
        self._written = time.monotonic()
        self._cost = self._written - started

    def _sweep(self) -> None:
        """Archives that a newer one has replaced, or that nobody came to record."""
        named = {saved.archive.file for saved in self.manifest.streams.values()} | self.fresh
        for path in self.path.glob(f"*{ARCHIVE}"):
            if path.name not in named:
                path.unlink()


class Draft:
    """An archive on its way: `take` its bytes, then `finish`; left without that, nothing stays."""

    def __init__(self, folder: BackupFolder, address: Address) -> None:
        self._folder = folder
        self._stem = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in str(address).replace("/", "."))[:100]
        self._path = folder.path / f"{self._stem}.{uuid.uuid4().hex[:8]}{PART}"
        self._digest = hashlib.sha256()
        self._file: IO[bytes] | None = None
        self.bytes = 0

    def __enter__(self) -> Self:
        with _reported(self._path):
            self._file = _private(self._path)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()
        self._path.unlink(missing_ok=True)

    def take(self, chunk: bytes) -> None:
        """Append; raises BackupError when the disk does not take it."""
        assert self._file is not None
        with _reported(self._path):
            self._file.write(chunk)
        self._digest.update(chunk)
        self.bytes += len(chunk)

    def finish(self, form: str) -> Archive:
        """On the disk, under its own name. Waits for the disk, so call it from a thread. Raises BackupError."""
        assert self._file is not None
        archive = Archive(f"{self._stem}.{self._digest.hexdigest()[:12]}{ARCHIVE}", self._digest.hexdigest(), self.bytes, form)
        self._folder.fresh.add(archive.file)
        with _reported(self._path):
            _sync(self._file)
            self._path.rename(self._folder.path / archive.file)
        return archive


@contextlib.contextmanager
def writing(path: Path, workspace: str, environment: str | None) -> Iterator[BackupFolder]:
    """Make the folder, or go on in one that holds a backup of the same workspace. Nobody else writes there meanwhile.

    Raises BackupError for a folder that holds anything else, or that somebody else is writing to.
    """
    with _reported(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_ours(path)
        lock = filelock.FileLock(path / LOCK, mode=0o600)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise BackupError(f"another jsplan is writing a backup into {path}", hint="Wait for it, or give another folder.") from None
    try:
        yield _opened(path, workspace, environment)
    finally:
        lock.release()


def _opened(path: Path, workspace: str, environment: str | None) -> BackupFolder:
    manifest = Manifest(workspace, environment, str(uuid.uuid4()), stamp())
    if (path / MANIFEST).exists():
        manifest = read_manifest(path)
        if (manifest.workspace, manifest.environment) != (workspace, environment):
            theirs = f"{manifest.workspace}, environment {manifest.environment or 'none'}"
            raise BackupError(f"{path} holds a backup of workspace {theirs}", hint="Give this one a folder of its own.")
    manifest.complete, manifest.finished_at = False, None
    with _reported(path):
        for left in path.glob(f"*{PART}"):
            left.unlink()
    folder = BackupFolder(path, manifest)
    folder.write()
    return folder


def _check_ours(path: Path) -> None:
    names = {entry.name for entry in path.iterdir()}
    ours = {name for name in names if name in (MANIFEST, LOCK) or name.endswith((ARCHIVE, PART))}
    if names - ours or (ours and MANIFEST not in ours and not ours <= {LOCK, f"{MANIFEST}{PART}"}):
        strange = min(names - ours or ours)
        raise BackupError(f"{path} holds something else than a backup: {strange}", hint="Give a new or empty folder.")


def _private(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


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
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BackupError(
            f"cannot write {path}: {error.strerror or error}", hint="Is there room on the disk, and may you write there?"
        ) from None
