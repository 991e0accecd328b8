"""The document of `jsplan lint`: findings, and ignored findings with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from jsplan.diagnostics import Diagnostic
from jsplan.documents.explanation import Explanation

FORMAT: Final = "1.0"


class Lint(Struct):
    """The whole document. `live` is true if the servers were asked.

    Places in files are relative to `root`. `rules` are those that were run on `resources`
    resources.
    """

    jsplan_version: str
    workspace: str
    environment: str | None
    live: bool
    root: Path
    resources: int
    rules: list[Explanation]
    findings: list[Diagnostic] = field(default_factory=list)
    ignored: list[tuple[Diagnostic, str]] = field(default_factory=list)

    @property
    def summary(self) -> dict[str, int]:
        """Counts by severity; `notes` are the findings whose severity is `info`."""
        count = [d.severity for d in self.findings].count
        return {
            "errors": count("error"),
            "warnings": count("warning"),
            "notes": count("info"),
            "ignored": len(self.ignored),
        }

    def to_json(self) -> dict[str, Any]:
        """The document that `lint --json` prints."""
        return {
            "format_version": FORMAT,
            "kind": "lint",
            "jsplan_version": self.jsplan_version,
            "workspace": self.workspace,
            "environment": self.environment,
            "live": self.live,
            "findings": [d.to_json() for d in self.findings],
            "ignored": [d.to_json() | {"reason": reason} for d, reason in self.ignored],
            "resources": self.resources,
            "summary": self.summary,
        }
