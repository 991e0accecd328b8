"""A code in words."""

from __future__ import annotations

from typing import NamedTuple


class CodeText(NamedTuple):
    """One code in words: `meaning` is a sentence, `cause` the reason, `fix` the remedy."""

    meaning: str
    cause: str
    fix: str
