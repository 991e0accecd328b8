"""Private files that are whole or not there: reading without waiting, writing without following links. Pure file handling."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from jsplan.disk import read_regular
from jsplan.documents.base import MAX_BYTES
from jsplan.errors import StateError

_PRIVATE: Final = 0o600
_CREATE_FLAGS: Final = (
    os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
)
#: What a disk says that takes no more.
_DISK_FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_FILE_KINDS: Final = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)  # fmt: skip


def read_file(path: Path, what: str, most: int = MAX_BYTES) -> bytes:
    """The content of a regular file of at most `most` bytes.

    Raises OSError, and StateError that names `what` for anything that is no file.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = next((name for holds, name in _FILE_KINDS if holds(mode)), "no file")
        raise StateError(
            f"{what} is {kind}, not a file",
            hint="Move away what is there, or name another place under backend.local.path.",
        )
    return read_regular(path, most)


def create_private(path: Path) -> IO[bytes]:
    """A new private file in place of what has the name; a link there is removed, never followed. Raises OSError."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, _CREATE_FLAGS, _PRIVATE), "wb")


@contextlib.contextmanager
def write_temporary(path: Path, content: bytes) -> Iterator[Path]:
    """A private file with this content, safe on the disk, to be renamed by the caller; otherwise it is removed. Raises OSError."""
    try:
        with create_private(path) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def link_or_copy(path: Path, copy: Path) -> None:
    """Give the content a second name: a hard link, or where the file system has none, a private copy. Raises OSError."""
    copy.unlink(missing_ok=True)
    try:
        os.link(path, copy)
    except OSError as error:
        if error.errno in _DISK_FULL_ERRORS:
            raise
        _copy_content(path, copy)


def _copy_content(path: Path, copy: Path) -> None:
    try:
        with path.open("rb") as content, create_private(copy) as file:
            shutil.copyfileobj(content, file)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            copy.unlink(missing_ok=True)
        raise
