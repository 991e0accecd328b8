"""Markdown that foreign words cannot get out of, and what fits into a comment. What is said is left to the views."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Characters of a page at most (contract, section 4: under 65,000; GitHub takes 65,536).
MAX_LENGTH = 64_000
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&])")


def escape_text(words: str) -> str:
    """Foreign words without a character that markdown or HTML would act on; nobody is notified by an @."""
    return _SPECIAL.sub(r"\\\1", words).replace("@", "@\u200b")


def code_span(words: str) -> str:
    """A code span that holds exactly these words, backticks included."""
    fence = "`" * (max((len(run) for run in re.findall("`+", words)), default=0) + 1)
    return (
        f"{fence} {words} {fence}"
        if words.startswith("`") or words.endswith("`")
        else f"{fence}{words}{fence}"
    )


def fenced_block(lines: Sequence[str], language: str = "", *, indent: str = "") -> list[str]:
    """A fenced block that none of its lines can end."""
    fence = "~" * max(3, *(len(run) + 1 for line in lines for run in re.findall("~{3,}", line)), 3)
    return [
        f"{indent}{fence}{language}",
        *(f"{indent}{line}" for line in lines),
        f"{indent}{fence}",
    ]


def diff_block(lines: Iterable[str], *, indent: str = "") -> list[str]:
    """A block that is coloured by the first character of each line; `~` is not among those, `!` is."""
    return fenced_block(
        [f"!{line[1:]}" if line.startswith("~") else line for line in lines], "diff", indent=indent
    )


@dataclass(frozen=True, slots=True)
class PageItem:
    """Something to say at length, or in fewer words where there is no room. `weight` is how many things it speaks of."""

    brief: str
    full: str
    weight: int = 1


@dataclass(frozen=True, slots=True)
class FitResult:
    """What found room: `texts` in order, `shortened` things said in fewer words, `omitted` pieces not at all."""

    texts: list[str]
    shortened: int
    omitted: list[PageItem]


def fit_items(pieces: Sequence[PageItem], room: int) -> FitResult:
    """As much as fits into so many characters: what comes first at length, then as many as possible in few words.

    Where all of them fit in few words, none is left out for another one's details; else a third of the room is for details.
    """
    shown = _fitting_prefix(pieces, room)
    if len(shown) < len(pieces):
        shown = _fitting_prefix(pieces, room * 2 // 3)
    spare = room - sum(len(piece.brief) for piece in shown)
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


def _fitting_prefix(pieces: Sequence[PageItem], room: int) -> Sequence[PageItem]:
    used = 0
    for index, piece in enumerate(pieces):
        used += len(piece.brief)
        if used > room:
            return pieces[:index]
    return pieces
