"""Paths of files that a workspace names, and which of these files a plan may show.

The content of a file in place of its path is refused. Plans end up on pull requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jsplan.config import parsing
from jsplan.config.findings import Findings
from jsplan.config.node import Node
from jsplan.config.secret_fields import describe, is_content
from jsplan.disk import exists, find_repository, read_regular

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


def resolve_file_path(
    node: Node | None,
    what: str,
    environ: Mapping[str, str],
    findings: Findings,
    base: Path | None = None,
) -> Path | None:
    """Return a path as absolute, relative to `base` or to the file that names it; `~` is HOME."""
    if is_file_content(node, what, findings):
        return None
    value = parsing.read_path(node, what, findings)
    if value is None or node is None:
        return None
    return _make_absolute(value, node, environ, base)


def is_file_content(node: Node | None, what: str, findings: Findings) -> bool:
    """Report text that should be a path and is what a file of credentials holds."""
    if node is None or not isinstance(node.value, str) or not is_content(node.value):
        return False
    findings.error(
        "JS120",
        node,
        f"{what} must be a path,"
        f" and {describe(node) if node.references else 'this'} is the content of a file",
        "Put the content into a file that only you can read, and give its path.",
    )
    return True


def _make_absolute(value: str, node: Node, environ: Mapping[str, str], base: Path | None) -> Path:
    if value.startswith("~/") and environ.get("HOME"):
        return Path(environ["HOME"]) / value[2:]
    return (base or node.place[0].path.parent).absolute() / value


# --- content that a plan may show -----------------------------------------------------------------

#: A longer file, or a pattern with more wildcards, takes too much time; it hides everything.
MAX_BYTES: Final = 64 << 10
MAX_LINES: Final = 1000
_SLOW: Final = re.compile(r"[^/]*(\*[^/*]*){4}|(.*\*\*){4}")


class ShownFiles:
    """Knows the files of a workspace that are neither hidden nor ignored by git.

    Others may hold secrets: `.env`, `.git/config`, a file with the values of one machine.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._specs: dict[Path, GitIgnoreSpec | None] = {}

    def may_show(self, path: Path) -> bool:
        """Check whether a file is below the workspace, not hidden, and not ignored."""
        path = path.resolve()
        if not path.is_relative_to(self.root):
            return False
        hidden = any(part.startswith(".") for part in path.relative_to(self.root).parts)
        return not hidden and not any(
            (spec := self._spec_of(folder)) is not None
            and spec.match_file(path.relative_to(folder))
            for folder in path.parents
            if folder.is_relative_to(self._repository)
        )

    @cached_property
    def _repository(self) -> Path:
        return find_repository(self.root)

    def _spec_of(self, folder: Path) -> GitIgnoreSpec | None:
        """Return the patterns of the `.gitignore` of a folder; None without one."""
        if folder not in self._specs:
            path = folder / ".gitignore"
            self._specs[folder] = _read_patterns(path) if exists(path) else None
        return self._specs[folder]


def _read_patterns(path: Path) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 - most workspaces name no files of values

    try:
        lines = read_regular(path, MAX_BYTES).decode(errors="replace").splitlines()
        slow = len(lines) > MAX_LINES or any(map(_SLOW.match, lines))
        return GitIgnoreSpec.from_lines(["*"] if slow else lines)
    except (OSError, ValueError):  # too large, no file, or no pattern
        return GitIgnoreSpec.from_lines(["*"])
