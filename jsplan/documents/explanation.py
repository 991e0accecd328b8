"""The document of `jsplan explain`: one code in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsplan.documents.base import Document

if TYPE_CHECKING:
    from collections.abc import Iterable


class Explanation(Document, tag="explanation"):
    """One code in words: what it means, why it is reported, and what to do.

    `level` is the default of a lint rule (`note`, `warning`) or the effect of a hazard (`blocks`,
    `warns`), and null for other codes.
    """

    group: str
    code: str
    level: str | None
    title: str
    why: str
    fix: str


def list_explanations(explanations: Iterable[Explanation]) -> dict[str, Any]:
    """The document of `explain --json` without a code."""
    codes = [explanation.to_json() for explanation in explanations]
    return {"format_version": "1.0", "kind": "explanations", "codes": codes}
