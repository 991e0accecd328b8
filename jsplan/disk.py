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
    """Whether there is a file. A path that the system refuses, such as one that is too long, names none."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises for such a path


def is_folder(path: Path) -> bool:
    """Whether there is a folder, as `is_file` finds out."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises for such a path


def exists(path: Path) -> bool:
    """Whether there is anything, as `is_file` finds out."""
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises for such a path


def expand_user(path: str) -> Path:
    """The path with a leading `~` as a home folder; it stays where there is no such user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises where there is no such user


def open_regular(path: Path, *, pipe: bool = False) -> BinaryIO:
    """Open a regular file for reading, or with `pipe` a pipe too.

    Raises OSError for everything else: a pipe waits for its other end, a device may never end, and some texts name no file.
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
    """The bytes of a file that `open_regular` opens, of at most `most` bytes.

    Raises OSError for what is larger, and for a file below /proc: it could hold what no workspace means to name.
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
    """Write a file. A new one may be read by its owner only; one that exists keeps its permissions."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)


def replace_file(path: Path, content: bytes, *, private: bool = True) -> None:
    """Write a file so that readers see the old content or the new; `private` as `write_private` does."""
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
