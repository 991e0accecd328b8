"""Read regular files of a bounded size, and write files that only their owner may read."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

MEGABYTE: Final = 1 << 20


def read_regular(path: Path, most: int, *, pipe: bool = False) -> bytes:
    """The bytes of a regular file of at most `most` bytes, or with `pipe` of a pipe too.

    Raises OSError for everything else: a device, a file below /proc, a file that is too large. Such a
    file could block, never end, or hold what no workspace means to name.
    """
    found = path.stat()
    is_pipe = pipe and stat.S_ISFIFO(found.st_mode)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not (is_pipe or stat.S_ISREG(found.st_mode)):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    content = bytearray()
    with path.open("rb") as file:
        while found.st_size <= most and len(content) <= most and (some := file.read(MEGABYTE)):
            content += some
    if max(len(content), found.st_size) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most // MEGABYTE} MiB", str(path))
    if content and not found.st_size and not is_pipe and not path.stat().st_size:  # as files below /proc
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
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666), "wb") as file:
            file.write(content)
        with suppress(FileNotFoundError):
            fresh.chmod(stat.S_IMODE(path.stat().st_mode))
        fresh.replace(path)
    finally:
        with suppress(OSError):
            fresh.unlink()
