"""Markdown with escaped foreign text, fitted into the length of a comment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

#: Characters of a page at most, under 65,000: GitHub takes 65,536.
MAX_LENGTH = 64_000
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&])")


def escape_text(words: str) -> str:
    """Escape every character that Markdown or HTML would act on; an @ notifies no user."""
    return _SPECIAL.sub(r"\\\1", words).replace("@", "@\u200b")


def code_span(words: str) -> str:
    """Return a code span that holds exactly these words, including backticks."""
    fence = "`" * (max((len(run) for run in re.findall("`+", words)), default=0) + 1)
    if words.startswith("`") or words.endswith("`"):
        return f"{fence} {words} {fence}"
    return f"{fence}{words}{fence}"


def fenced_block(lines: Sequence[str], language: str = "", *, indent: str = "") -> list[str]:
    """Return a fenced block that none of its lines can end."""
    fence = "~" * max(3, *(len(run) + 1 for line in lines for run in re.findall("~{3,}", line)), 3)
    return [
        f"{indent}{fence}{language}",
        *(f"{indent}{line}" for line in lines),
        f"{indent}{fence}",
    ]


def diff_block(lines: Iterable[str], *, indent: str = "") -> list[str]:
    """Return a block coloured by the first character of each line; `~` becomes `!`."""
    return fenced_block(
        [f"!{line[1:]}" if line.startswith("~") else line for line in lines], "diff", indent=indent
    )


class PageItem(Struct, frozen=True):
    """A text in full and in brief; `weight` is how many things it covers."""

    brief: str
    full: str
    weight: int = 1


class FitResult(Struct, frozen=True):
    """The texts that fit, in order.

    `shortened` counts things in brief; `omitted` items are missing.
    """

    texts: list[str]
    shortened: int
    omitted: list[PageItem]


def fit_items(pieces: Sequence[PageItem], limit: int) -> FitResult:
    """Fit the items into `limit` characters: the first ones in full, the others in brief.

    If all of them fit in brief, none is omitted for the details of another. Otherwise a third of
    the space is for details.
    """
    shown = _fitting_prefix(pieces, limit)
    if len(shown) < len(pieces):
        shown = _fitting_prefix(pieces, limit * 2 // 3)
    spare = limit - sum(len(piece.brief) for piece in shown)
    texts, shortened = [], 0
    for piece in shown:
        more = len(piece.full) - len(piece.brief)
        if more <= spare:
            spare -= max(more, 0)
            texts.append(piece.full)
        else:
            shortened += piece.weight
            texts.append(piece.brief)
    return FitResult(texts, shortened, list(pieces[len(shown) :]))


def _fitting_prefix(pieces: Sequence[PageItem], limit: int) -> Sequence[PageItem]:
    used = 0
    for index, piece in enumerate(pieces):
        used += len(piece.brief)
        if used > limit:
            return pieces[:index]
    return pieces
