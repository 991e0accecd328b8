"""Read regular files of a bounded size, and write files that only their owner may read."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import BinaryIO

MEGABYTE: Final = 1 << 20


def is_file(path: Path) -> bool:
    """Check whether a file exists; a path that the system refuses (too long) has no file."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises for such a path


def is_folder(path: Path) -> bool:
    """Check whether a folder exists, with the rule of `is_file`."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises for such a path


def exists(path: Path) -> bool:
    """Check whether anything exists, with the rule of `is_file`."""
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises for such a path


def expand_user(path: str) -> Path:
    """Replace a leading `~` with the home folder; without such a user the path is unchanged."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises where there is no such user


def open_regular(path: Path, *, pipe: bool = False) -> BinaryIO:
    """Open a regular file for reading, or with `pipe` a pipe too.

    Raises OSError for everything else: a pipe blocks until it has a writer, a device may never
    end, and some texts are no file name.
    """
    try:
        mode = path.stat().st_mode
    except ValueError:  # a NUL, or half a character
        raise OSError(errno.EINVAL, "no file has such a name", str(path)) from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not (stat.S_ISREG(mode) or (pipe and stat.S_ISFIFO(mode))):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return path.open("rb")


def read_regular(path: Path, max_bytes: int, *, pipe: bool = False) -> bytes:
    """Read a file that `open_regular` opens, of at most `max_bytes` bytes.

    Raises OSError for a larger file, and for a file below /proc: no workspace may read those.
    """
    content = bytearray()
    with open_regular(path, pipe=pipe) as file:
        found = os.fstat(file.fileno())
        is_pipe = stat.S_ISFIFO(found.st_mode)
        while (
            found.st_size <= max_bytes
            and len(content) <= max_bytes
            and (some := file.read(MEGABYTE))
        ):
            content += some
    if max(len(content), found.st_size) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes // MEGABYTE} MiB", str(path))
    if (
        content and not found.st_size and not is_pipe and not path.stat().st_size
    ):  # as files below /proc
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return bytes(content)


def write_private(path: Path, content: bytes) -> None:
    """Write a file. Only the owner can read a new one; an existing one keeps its permissions."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)


def replace_file(path: Path, content: bytes, *, private: bool = True) -> None:
    """Write a file so that readers see the old or the new content, never a part.

    With `private`, only the owner can read a new one, as with `write_private`.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with suppress(FileNotFoundError):
            fresh.unlink()
        with os.fdopen(
            os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666), "wb"
        ) as file:
            file.write(content)
        with suppress(FileNotFoundError):
            fresh.chmod(stat.S_IMODE(path.stat().st_mode))
        fresh.replace(path)
    finally:
        with suppress(OSError):
            fresh.unlink()


def display_path(path: Path) -> str:
    """Return the path for a message: relative if it is below the folder of the command."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
