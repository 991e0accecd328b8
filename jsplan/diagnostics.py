"""Findings as data, shared by config, topology, lint and planning."""

from __future__ import annotations

import re
import shlex
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from jsplan.secrets import conceal

if TYPE_CHECKING:
    from collections.abc import Iterable

_GLOB = re.compile(r"[A-Za-z0-9_./:,+@%=*-]+")
Severity = Literal["error", "warning", "info"]


class SourceRange(Struct, frozen=True):
    """A place in a file; `line` and `column` count from 1, as editors do."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


#: The place of a declaration that is in no file. Findings about it have no place.
NO_LOCATION: Final = SourceRange("", 0, 0)


class Diagnostic(Struct, frozen=True):
    """One finding: `code` is stable (`JS1xx`), `summary` one line, `detail` says what to do.

    `address` is the affected resource as text, `range` the place in the files. Both may be absent.
    """

    severity: Severity
    code: str
    summary: str
    detail: str = ""
    address: str | None = None
    range: SourceRange | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "summary", conceal(self.summary))
        force_setattr(self, "detail", conceal(self.detail))
        if self.range == NO_LOCATION:
            force_setattr(self, "range", None)


def quote_shell(text: object) -> str:
    """Quote text as one word of a command line that a user may paste; a glob stays readable."""
    word = str(text)
    return word if _GLOB.fullmatch(word) else shlex.quote(word)


def list_known(what: str, names: Iterable[str], asked: str = "") -> str:
    """Return `Known domains: a, b.`, with the closest name to the one that was `asked` for."""
    listed = list(names)
    return f"Known {what}: {', '.join(listed)}.{did_you_mean(asked, listed) if asked else ''}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean "x"?` with a leading blank, or nothing when no known word is close."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f' Did you mean "{near[0]}"?' if near else ""
