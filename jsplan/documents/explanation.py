"""The document of `jsplan explain`: one code in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT: Final = "1.0"


class Explanation(Struct, frozen=True):
    """One code in words: what it means, why it is reported, and what to do.

    `level` is the default of a lint rule (`note`, `warning`) or the effect of a hazard (`blocks`,
    `warns`), and empty for other codes.
    """

    group: str
    code: str
    level: str
    title: str
    why: str
    fix: str

    def to_json(self) -> dict[str, Any]:
        """The document of `explain CODE --json`."""
        return {
            "format_version": FORMAT,
            "kind": "explanation",
            "code": self.code,
            "group": self.group,
            "level": self.level or None,
            "title": self.title,
            "why": self.why,
            "fix": self.fix,
        }


def list_explanations(explanations: Iterable[Explanation]) -> dict[str, Any]:
    """The document of `explain --json` without a code."""
    codes = [explanation.to_json() for explanation in explanations]
    return {"format_version": FORMAT, "kind": "explanations", "codes": codes}
