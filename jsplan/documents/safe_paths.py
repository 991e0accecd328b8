"""File names from a document, which must not lead out of the folder of the document."""

from __future__ import annotations

import os
from pathlib import Path


def resolve_inside(folder: Path, *names: object) -> Path:
    """Return the path of nested names below a folder.

    Raises ValueError for an invalid name, for one that leads out of the folder, and for a path with
    a symbolic link.
    """
    path = folder
    for name in names:
        for part in name.split("/") if isinstance(name, str) else [""]:
            if part in ("", ".", "..") or "\\" in part or not part.isprintable():
                raise ValueError(f"{name!r} is not a file name below {folder}")
            path = path / part
            if os.path.islink(path):  # noqa: PTH114 - Path.is_symlink raises for a name that is too long
                raise ValueError(f"{path} is a symbolic link")
    return path
