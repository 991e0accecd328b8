"""Names of files that a document gives: what is written elsewhere must not lead out of the document's folder."""

from __future__ import annotations

import os
from pathlib import Path


def resolve_inside(folder: Path, *names: object) -> Path:
    """Return the path of names below a folder, one below the other.

    Raises ValueError for a name that is none, that leads out of the folder, or on whose way there is a symbolic link.
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
