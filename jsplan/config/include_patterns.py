"""Patterns of `include`: which files of a bounded search they match."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path


def find_matches(root: Path, pattern: str) -> list[Path] | None:
    """Return the files that a pattern matches, sorted; None for an endless search.

    Outside of the workspace `**` and more than one folder with a wildcard could lead through the
    whole machine. No wildcard matches a link to a folder, or a hidden name.
    """
    parts = Path(pattern).parts
    fixed = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    folder, rest = Path(os.path.normpath(root.joinpath(*parts[:fixed]))), parts[fixed:]
    is_inside = folder.is_relative_to(os.path.normpath(root)) and ".." not in rest
    folders = sum(map(glob.has_magic, rest[:-1]))
    if not is_inside and ("**" in rest or folders > 1):
        return None
    return sorted({Path(os.path.normpath(path)) for path in _match(folder, rest)})


def _match(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    part, *rest = parts
    if not glob.has_magic(part):
        names = [part]
    else:
        try:
            names = [entry.name for entry in os.scandir(folder)]
        except OSError:  # no folder, or none of ours
            return
    for name in names:
        path = folder / name
        if part == "**":
            if not name.startswith(".") and path.is_dir() and not path.is_symlink():
                yield from _match(path, parts)
        elif part != name and (name.startswith(".") or not fnmatch.fnmatchcase(name, part)):
            continue
        elif not rest:
            if os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises for a path that is too long
                yield path
        elif part == name or not path.is_symlink():
            yield from _match(path, rest)
    if part == "**" and rest:
        yield from _match(folder, rest)
