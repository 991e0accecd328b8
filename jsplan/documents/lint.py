"""The documents of `jsplan lint` and `jsplan explain`: findings, and codes in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from msgspec import field

from jsplan.diagnostics import Diagnostic
from jsplan.documents.base import Document
from jsplan.documents.types import Count

if TYPE_CHECKING:
    from collections.abc import Iterable


class Ignored(Diagnostic, frozen=True, kw_only=True):
    """A finding that the files ignore, with their reason."""

    reason: str


class LintSummary(TypedDict):
    """Counts by severity; `notes` are the findings whose severity is `info`."""

    errors: Count
    warnings: Count
    notes: Count
    ignored: Count


class Lint(Document, tag="lint"):
    """The findings in a workspace. `live` is true if the servers were asked.

    The rules were run on `resources` resources.
    """

    COMPUTED = ("summary",)
    LOCAL = ("root", "rules")

    jsplan_version: str
    workspace: str
    environment: str | None
    live: bool
    #: The folder to which places in files are relative.
    root: str
    resources: Count
    #: Those that were run.
    rules: list[Any]
    findings: list[Diagnostic] = field(default_factory=list)
    ignored: list[Ignored] = field(default_factory=list)

    @property
    def summary(self) -> LintSummary:
        """The counts."""
        count = [d.severity for d in self.findings].count
        return {
            "errors": count("error"),
            "warnings": count("warning"),
            "notes": count("info"),
            "ignored": len(self.ignored),
        }


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
