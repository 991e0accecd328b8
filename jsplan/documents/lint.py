"""The document of `jsplan lint`: findings, and ignored findings with the reason."""

from __future__ import annotations

from typing import Any, TypedDict

from msgspec import field

from jsplan.diagnostics import Diagnostic
from jsplan.documents.base import Document
from jsplan.documents.types import Count


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
