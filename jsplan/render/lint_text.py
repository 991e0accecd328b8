"""The findings of `jsplan lint` as text, as SARIF 2.1.0, and as annotations on GitHub."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from msgspec.structs import replace

from jsplan.codes import CODES
from jsplan.render import diagnostics_text
from jsplan.render.escape import safe, workflow_command
from jsplan.render.lines import Lines
from jsplan.units import count_text

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.diagnostics import Diagnostic, SourceRange
    from jsplan.documents.lint import Explanation, Ignored, Lint


SCHEMA: Final = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS: Final[Mapping[str, str]] = {"error": "error", "warning": "warning", "info": "note"}
_COMMANDS: Final[Mapping[str, str]] = {"error": "error", "warning": "warning", "info": "notice"}


def render(found: Lint, console: Console, *, verbose: bool = False) -> None:
    """Render the findings, with `verbose` also the ignored ones, and a line with their counts."""
    diagnostics_text.render(found.findings, console, after=True, verbose=verbose)
    lines = Lines()
    for diagnostic in found.ignored if verbose else ():
        lines.add(
            0,
            (
                (
                    f"Ignored: {safe(diagnostic.address or '')}: {safe(diagnostic.summary)} "
                    f"[{diagnostic.code}]"
                ),
                "dim",
            ),
        )
        lines.add(2, (f"reason: {safe(diagnostic.reason)}", "dim"))
    lines.add(
        0,
        (
            summary_line(found),
            "bad" if found.summary["errors"] else "warn" if found.summary["warnings"] else "good",
        ),
    )
    if codes := sorted({d.code for d in found.findings if d.code.startswith("JS2")}):
        lines.add(0, f"Why, and what to do: jsplan lint --explain {codes[0]}")
    lines.print(console)


def summary_line(found: Lint) -> str:
    """Return `Lint: 1 error, 2 warnings, 3 notes, 1 ignored.`; zero parts are left out."""
    numbers = found.summary
    parts = [
        count_text(numbers[name], name[:-1])
        for name in ("errors", "warnings", "notes")
        if numbers[name]
    ]
    parts += [f"{numbers['ignored']:,} ignored"] if numbers["ignored"] else []
    if not parts:
        return (
            f"Lint: nothing found by {len(found.rules)} rules in "
            f"{count_text(found.resources, 'resource')}."
        )
    return f"Lint: {', '.join(parts)}."


def overview(rules: Iterable[Explanation], console: Console) -> None:
    """Render all rules, a line each."""
    lines = Lines()
    for rule in rules:
        lines.add(0, (rule.code, "strong"), f"  {rule.level:<8} {rule.title}")
    lines.print(console)


def render_sarif(
    findings: Sequence[Diagnostic],
    ignored: Sequence[Ignored],
    rules: Iterable[Explanation],
    root: Path,
    version: str,
) -> dict[str, Any]:
    """Return one SARIF run with all findings; ignored ones are suppressed, with their reason.

    Paths are relative to the current folder, which in a pipeline is that of the repository; `root`
    is the workspace's.
    """
    known = {rule.code: _rule(rule) for rule in rules}
    for diagnostic in [*findings, *ignored]:
        known.setdefault(diagnostic.code, _code_rule(diagnostic))
    index = {code: number for number, code in enumerate(known)}
    results = [_result(d, index, root) for d in findings]
    results += [
        _result(d, index, root)
        | {"suppressions": [{"kind": "inSource", "justification": d.reason}]}
        for d in ignored
    ]
    driver = {
        "name": "jsplan",
        "version": version,
        "semanticVersion": version,
        "rules": list(known.values()),
    }
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "utf16CodeUnits", "results": results}],
    }


def _rule(rule: Explanation) -> dict[str, Any]:
    text = f"{rule.why}\n\n{rule.fix}"
    return {
        "id": rule.code,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": text, "markdown": text},
        "defaultConfiguration": {"level": rule.level},
    }


def _code_rule(diagnostic: Diagnostic) -> dict[str, Any]:
    text = CODES.get(diagnostic.code, diagnostic.summary)
    return {
        "id": diagnostic.code,
        "shortDescription": {"text": text},
        "defaultConfiguration": {"level": _LEVELS[diagnostic.severity]},
    }


def _result(diagnostic: Diagnostic, index: Mapping[str, int], root: Path) -> dict[str, Any]:
    location: dict[str, Any] = {}
    if diagnostic.range is not None:
        region = {"startLine": diagnostic.range.line, "startColumn": diagnostic.range.column}
        location["physicalLocation"] = {
            "artifactLocation": {"uri": _uri(diagnostic.range, root)},
            "region": region,
        }
    if diagnostic.address is not None:
        location["logicalLocations"] = [
            {"fullyQualifiedName": diagnostic.address, "kind": "resource"}
        ]
    return {
        "ruleId": diagnostic.code,
        "ruleIndex": index[diagnostic.code],
        "level": _LEVELS[diagnostic.severity],
        "message": {"text": finding_text(diagnostic)},
        "locations": [location] if location else [],
        "partialFingerprints": {"jsplan/v1": _fingerprint(diagnostic)},
    }


def finding_text(diagnostic: Diagnostic) -> str:
    """Return a finding in one paragraph."""
    about = f"{diagnostic.address}: " if diagnostic.address else ""
    return f"{about}{diagnostic.summary}. {diagnostic.detail}".strip()


def _fingerprint(diagnostic: Diagnostic) -> str:
    """Return a fingerprint that does not change when the line of the finding moves."""
    return hashlib.sha256(
        f"{diagnostic.code}\0{diagnostic.address}\0{diagnostic.summary}".encode()
    ).hexdigest()[:32]


def relative_file(place: SourceRange, root: Path) -> str:
    """Return the file of a finding, relative to the current folder, with forward slashes."""
    return Path(os.path.relpath(root / place.file)).as_posix()


def _uri(place: SourceRange, root: Path) -> str:
    return quote(relative_file(place, root), errors="surrogateescape")


def workflow_commands(findings: Iterable[Diagnostic], root: Path) -> str:
    """Return one workflow command for each finding: GitHub shows it at its line."""
    return "\n".join(_command(diagnostic, root) for diagnostic in findings)


def _command(found: Diagnostic, root: Path) -> str:
    place = found.range
    if place is not None:
        place = replace(place, file=relative_file(place, root))
    return workflow_command(_COMMANDS[found.severity], found.code, finding_text(found), place)
