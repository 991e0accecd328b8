"""Places of archives: what a place must offer, and folders of a file system."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from msgspec import Struct
from msgspec.structs import replace

from jsplan.disk import open_regular, read_regular
from jsplan.documents.safe_paths import resolve_inside
from jsplan.errors import JsplanError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: End of the names of unfinished files. They are not listed.
_UNFINISHED = ".part"


class ArchiveError(JsplanError):
    """Error for a place that is not an archive, or does not match its log."""


class NewFile(Protocol):
    """File that is being written."""

    def write(self, data: bytes) -> int:
        """Write data, and return its number of bytes. Raises OSError."""

    def close(self) -> None:
        """Make the file durable and visible. Raises OSError."""


class ArchiveStore(Protocol):
    """Place with files. Their names are relative to it, with `/` between folders.

    Tasks take it along to workers, which open it themselves. So it can be pickled, and has no
    connection and no secret. Its methods raise OSError with a plain `strerror`: FileNotFoundError
    only for a missing file, FileExistsError only for a name that is taken; and ArchiveError for a
    name that leads out of the place.
    """

    @property
    def hint(self) -> str:
        """Correction when it cannot be read or written."""

    @property
    def link_hint(self) -> str:
        """Correction when `link` fails."""

    def below(self, name: str) -> ArchiveStore:
        """Return a folder of it as a place."""

    def locate(self, name: str) -> str:
        """Return the path or URL of a file, for messages."""

    def is_empty(self) -> bool:
        """Return True if it has no file, or does not exist."""

    def list(self) -> Mapping[str, int]:
        """Return all files, also those in folders, with their sizes."""

    def read(self, name: str, max_bytes: int) -> bytes:
        """Read a whole file of at most so many bytes."""

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""

    def open_new(self, name: str) -> NewFile:
        """Open a new file for writing. No other writer may use its name."""

    def begin(self, name: str, data: bytes) -> None:
        """Make the place, with its first file. Its name must be one that no other writer uses.

        Raises OSError where `link` would not be exclusive, as far as that can be found out.
        """

    def write(self, name: str, data: bytes) -> None:
        """Write a file, or replace it. Readers find the old or the new content."""

    def link(self, name: str, new: str) -> None:
        """Give a small file a second name. Of several writers, only one gets the name.

        The content must be of this writer alone. Raises FileExistsError for all others.
        """

    def move(self, name: str, new: str) -> None:
        """Give a file another name. A reader finds all of it under the new name, or nothing."""

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""

    def drop(self) -> None:
        """Delete the place with all files, as far as possible."""


class LocalFolder(Struct, frozen=True):
    """Folder of a file system. `prefix` is the part below the archive, without symbolic links."""

    root: Path
    prefix: str = ""

    def __str__(self) -> str:
        return str(self.root / self.prefix)

    @property
    def hint(self) -> str:
        """Correction when it cannot be read or written."""
        return "Use a folder that this machine and every worker of a cluster can read and write."

    @property
    def link_hint(self) -> str:
        """Correction when `link` fails."""
        return "Use a file system with hard links. A mounted object store has none."

    def below(self, name: str) -> LocalFolder:
        """Return a folder of it as a place."""
        return replace(self, prefix=f"{self.prefix}/{name}".lstrip("/"))

    def locate(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.root / self.prefix / name)

    def is_empty(self) -> bool:
        """Return True if it has no file, or does not exist."""
        folder = self._path()
        has_files = any(names for _, _, names in os.walk(folder))
        return not has_files and (folder.is_dir() or not folder.exists())

    def list(self) -> dict[str, int]:
        """Return all files with their sizes. Symbolic links are skipped."""
        found, folder = {}, self._path()
        for place, _, names in os.walk(folder):
            for name in names:
                path = Path(place, name)
                if path.suffix != _UNFINISHED and not path.is_symlink():
                    with contextlib.suppress(FileNotFoundError):  # another process moved it
                        found[path.relative_to(folder).as_posix()] = path.stat().st_size
        return found

    def read(self, name: str, max_bytes: int) -> bytes:
        """Read a whole file."""
        return read_regular(self._path(name), max_bytes)

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        return open_regular(self._path(name))

    def open_new(self, name: str) -> NewFile:
        """Open a new file for writing, in this folder or one below it."""
        path = self._path(name)
        path.parent.mkdir(exist_ok=True)
        return _NewFile(path.open("xb"))

    def begin(self, name: str, data: bytes) -> None:
        """Make the folder, with its first file."""
        self._path().mkdir(parents=True)
        self.write(name, data)

    def write(self, name: str, data: bytes) -> None:
        """Write a file, or replace it, durably."""
        path = self._path(name)
        unfinished = path.with_name(f"{path.name}{_UNFINISHED}")
        new = _NewFile(unfinished.open("wb"))
        new.write(data)
        new.close()
        unfinished.replace(path)
        _sync_folder(path.parent)

    def link(self, name: str, new: str) -> None:
        """Give a file a second name, which fails where there is one: a rename would replace it."""
        path = self._path(new)
        os.link(self._path(name), path)
        _sync_folder(path.parent)

    def move(self, name: str, new: str) -> None:
        """Rename a file, durably."""
        old, path = self._path(name), self._path(new)
        if old.exists():
            path.parent.mkdir(exist_ok=True)
        old.rename(path)
        _sync_folder(path.parent)

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        self._path(name).unlink(missing_ok=True)

    def drop(self) -> None:
        """Delete the folder with all files, as far as possible."""
        shutil.rmtree(self._path(), ignore_errors=True)

    def _path(self, name: str = "") -> Path:
        try:
            return resolve_inside(self.root, *(part for part in (self.prefix, name) if part))
        except ValueError as error:
            raise ArchiveError(
                f"{error}, which an archive may not have",
                hint="Nothing was moved or written there.",
            ) from None


class _NewFile(Struct, frozen=True):
    """File of a file system that is being written."""

    file: BinaryIO

    def write(self, data: bytes) -> int:
        return self.file.write(data)

    def close(self) -> None:
        if not self.file.closed:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()


def _sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
