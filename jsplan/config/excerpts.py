"""The lines of workspace files that a finding may show: none that can hold a secret."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import lru_cache
from typing import Final

from msgspec import Struct

from jsplan.config.findings import LOGIN
from jsplan.config.node import Node, Place
from jsplan.diagnostics import SourceRange

#: The sections whose lines may be shown, except what is below a key of `_HIDDEN`.
_SECTIONS: Final = frozenset((
    "jsplan", "workspace", "streams", "consumers", "kv", "object_stores", "domains", "imports",
    "defaults", "overrides", "apps", "accounts", "account_files", "backfills", "moved", "relocate",
    "removed", "lint", "ownership",
))  # fmt: skip
_HIDDEN: Final = re.compile(
    r".*(pass|pwd|secret|token|key|cred|auth|seed|jwt|url|header|webhook|sensitive).*"
    r"|values?|payload|entries|schedules|contents?|parquet|vars|x_raw",
    re.IGNORECASE,
)
_SECRETS: Final = ("password", "token", "secret", "credentials", "headers", "payload", "entries")
_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


class _File(Struct):
    data: bytes
    document: Node
    lines: dict[int, str] | None = None


_files: dict[str, _File] = {}


def remember(shown: str, data: bytes, document: Node) -> None:
    """Let findings show lines of a file of the workspace, under its name in findings."""
    _files[shown] = _File(data, document)


def forget_all() -> None:
    """Forget the files of the workspace that was read before."""
    _files.clear()


def read_line(place: SourceRange) -> str | None:
    """Return the line of a finding; None where it may not be shown."""
    file = _files.get(place.file)
    if file is None:
        return None
    if file.lines is None:
        file.lines = _choose_lines(file)
    return file.lines.get(place.line)


def _choose_lines(file: _File) -> dict[int, str]:
    """Return the lines that may be shown by number: those where no value begins that may not."""
    lines = _BREAK.split(file.data.decode("utf-8-sig"))
    shown, hidden, unfinished = set[int](), set[int](), False
    for (line, column, raw), is_shown in sorted(_starts(file.document).items()):
        if unfinished:  # a hidden text of several lines may end in this one
            hidden.add(line)
        (shown if is_shown else hidden).add(line)
        unfinished = not is_shown and raw not in lines[line][column:]
    return {line + 1: lines[line] for line in shown - hidden if not LOGIN.search(lines[line])}


def _starts(document: Node) -> dict[tuple[int, int, str], bool]:
    """Return where keys and values begin, with their text and whether it may be shown."""
    found: dict[tuple[int, int, str], bool] = {}
    seen = set[tuple[int, bool]]()  # aliases may repeat a value
    waiting = [(document, True)]
    while waiting:
        node, shown = waiting.pop()
        if (id(node), shown) in seen:
            continue
        seen.add((id(node), shown))
        _add(found, node.place, node.raw, shown=shown)
        if isinstance(node.value, list):
            waiting += [(item, shown) for item in node.value]
        elif isinstance(node.value, dict):
            for key, item in node.value.items():
                below = shown and (key in _SECTIONS if node is document else not _is_hidden(key))
                _add(found, node.key_place(key), key, shown=below)
                waiting.append((item, below))
    return found


def _add(
    found: dict[tuple[int, int, str], bool], place: Place, raw: str | None, *, shown: bool
) -> None:
    start = (place[1], place[2], raw or "")
    found[start] = found.get(start, True) and shown


@lru_cache
def _is_hidden(key: str) -> bool:
    """Check whether a key may name a secret, also a misspelt one."""
    return bool(_HIDDEN.fullmatch(key) or get_close_matches(key.lower(), _SECRETS, cutoff=0.7))
