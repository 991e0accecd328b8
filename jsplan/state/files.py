"""Private files, written completely or not at all. Reads never block, no link is followed."""

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
#: Errors of a full or failing disk.
_DISK_FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_FILE_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def read_file(path: Path, what: str, most: int = MAX_BYTES) -> bytes:
    """Read a regular file of at most `most` bytes.

    Raises OSError, and StateError that names `what` for anything that is not a regular file.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = next((name for holds, name in _FILE_KINDS if holds(mode)), "no file")
        raise StateError(
            f"{what} is {kind}, not a file",
            hint="Move it, or name another place under backend.local.path.",
        )
    return read_regular(path, most)


def create_private(path: Path) -> IO[bytes]:
    """Create a private file, replacing the name. A link there is removed, never followed.

    Raises OSError.
    """
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, _CREATE_FLAGS, _PRIVATE), "wb")


@contextlib.contextmanager
def write_temporary(path: Path, content: bytes) -> Iterator[Path]:
    """Write a private file durably, for the caller to rename; remove it otherwise.

    Raises OSError.
    """
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
    """Create a hard link, or a private copy if links are unsupported. Raises OSError."""
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
