"""Read regular files of a bounded size, and write files that only their owner may read."""

from __future__ import annotations

import errno
import os
import stat
from functools import cache
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


def leads_out(path: Path, root: Path) -> bool:
    """Check whether a path below a folder leads out of it by a link."""
    named, folder = os.path.abspath(path), os.path.abspath(root)  # noqa: PTH100 - they follow no link
    return Path(named).is_relative_to(folder) and not path.resolve().is_relative_to(root.resolve())


def find_repository(folder: Path) -> Path:
    """Return the folder of the git repository that holds a folder, or the folder itself."""
    folder = folder.resolve()
    return next((each for each in (folder, *folder.parents) if exists(each / ".git")), folder)


def open_regular(path: Path, *, pipe: bool = False, root: Path | None = None) -> BinaryIO:
    """Open a regular file for reading, or with `pipe` a pipe too.

    Raises OSError for everything else: a pipe blocks until it has a writer, a device may never
    end, and some texts are no file name. That includes the files of the kernel below /proc and
    /sys, which hold the environment of processes. With `root`, the folder of the workspace that
    names the file, a link out of it is refused too.
    """
    try:
        found = path.stat()
    except ValueError:  # a NUL, or half a character
        raise OSError(errno.EINVAL, "no file has such a name", str(path)) from None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    is_pipe = pipe and stat.S_ISFIFO(found.st_mode)
    if not (stat.S_ISREG(found.st_mode) or is_pipe) or (
        not is_pipe and found.st_dev in _kernel_devices()
    ):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if root is not None and leads_out(path, root):
        raise OSError(errno.EINVAL, "it is a link to a file outside of the workspace", str(path))
    return path.open("rb")


@cache
def _kernel_devices() -> frozenset[int]:
    """Return the devices of the file systems in which the kernel shows itself."""
    return frozenset(
        Path(name).stat().st_dev for name in ("/proc", "/sys") if Path(name).is_mount()
    )


def read_regular(
    path: Path, max_bytes: int, *, pipe: bool = False, root: Path | None = None
) -> bytes:
    """Read a file that `open_regular` opens, of at most `max_bytes` bytes.

    Raises OSError as that does, and for a larger file.
    """
    content = bytearray()
    with open_regular(path, pipe=pipe, root=root) as file:
        found = os.fstat(file.fileno())
        while (
            found.st_size <= max_bytes
            and len(content) <= max_bytes
            and (some := file.read(MEGABYTE))
        ):
            content += some
    if max(len(content), found.st_size) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes // MEGABYTE} MiB", str(path))
    return bytes(content)


#: Folders of the system with links that lead where they say, such as /dev/stdout and /dev/fd/3.
_SYSTEM_FOLDERS: Final = (Path("/dev"), Path("/dev/fd"))


def open_private(path: Path, flags: int = os.O_TRUNC) -> BinaryIO:
    """Open a file for writing. Only its owner can read a new one; another keeps its permissions.

    Raises OSError, also for a link: its author chose what is overwritten. Links of the system
    such as /dev/stdout are followed.
    """
    if path.parent not in _SYSTEM_FOLDERS:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600), "wb")
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "it is a link; name the file itself", str(path)) from None
        raise


def write_private(path: Path, content: bytes) -> None:
    """Write a file that `open_private` opens."""
    with open_private(path) as file:
        file.write(content)


def display_path(path: Path) -> str:
    """Return the path for a message: relative if it is below the folder of the command."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
