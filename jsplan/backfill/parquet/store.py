"""Places of archives: what a place must offer, and folders of a file system."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from msgspec import Struct

from jsplan.disk import open_regular, read_regular
from jsplan.documents.safe_paths import resolve_inside
from jsplan.errors import JsplanError

if TYPE_CHECKING:
    from collections.abc import Mapping


class ArchiveError(JsplanError):
    """Error for a place that is not an archive, or does not match its manifest."""


class NewFile(Protocol):
    """File that is being written. `closed` is as in files of Python."""

    @property
    def closed(self) -> bool:
        """True after `close`."""

    def write(self, data: bytes) -> object:
        """Write data. Raises OSError."""

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
        """Make the place and its folder, with a file. Its name must be of this writer alone.

        Raises OSError where `link` would not be exclusive, as far as that can be found out.
        """

    def link(self, name: str, new: str) -> None:
        """Give a file a second name. Of several writers, only one gets the name.

        The content must be of this writer alone. Raises FileExistsError for all others.
        """

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""


class LocalFolder(Struct, frozen=True):
    """Folder of a file system."""

    root: Path

    def __str__(self) -> str:
        return str(self.root)

    @property
    def hint(self) -> str:
        """Correction when it cannot be read or written."""
        return "Use a folder that this machine and every worker of a cluster can read and write."

    @property
    def link_hint(self) -> str:
        """Correction when `link` fails."""
        return "Use a file system with hard links. A mounted object store has none."

    def locate(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.root / name)

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
                if not path.is_symlink():
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
        """Make the folder of a file, with that file."""
        self._path(name).parent.mkdir(parents=True, exist_ok=True)
        file = self.open_new(name)
        file.write(data)
        file.close()

    def link(self, name: str, new: str) -> None:
        """Give a file a second name, which fails where there is one: a rename would replace it."""
        path = self._path(new)
        os.link(self._path(name), path)
        _sync_folder(path.parent)

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str = "") -> Path:
        try:
            return resolve_inside(self.root, *([name] if name else []))
        except ValueError as error:
            raise ArchiveError(
                f"{error}, which an archive may not have",
                hint="Nothing was written there.",
            ) from None


class _NewFile(Struct, frozen=True):
    """File of a file system that is being written."""

    file: BinaryIO

    @property
    def closed(self) -> bool:
        return self.file.closed

    def write(self, data: bytes) -> object:
        return self.file.write(data)

    def close(self) -> None:
        if not self.closed:
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
