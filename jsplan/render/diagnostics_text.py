"""Findings and errors as text: what happened, where, and what to do.

Interrupted replacements come first, since they reject publishers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

from jsplan import group_domains
from jsplan.render.escape import safe, safe_lines
from jsplan.render.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console

    from jsplan.diagnostics import Diagnostic


_COUNT = re.compile(r"\d+ errors?")
#: Warnings of one code that are written out without -v.
_MAX_SHOWN = 8
#: The columns of a line of a file, without the indentation.
_MAX_SOURCE = 75
#: Findings about a value in the wrong place, which may be a secret.
_NO_SOURCE = ("JS104", "JS120")
_HEADS = {"error": ("Error", "bad"), "warning": ("Warning", "warn"), "info": ("Note", "import")}


def render(
    diagnostics: Sequence[Diagnostic],
    console: Console,
    *,
    after: bool = False,
    verbose: bool = False,
) -> None:
    """Render all findings in their order, separated by an empty line.

    With `after`, an empty line also follows the last one. A finding that is alike in many domains
    is shown once. Without `verbose`, only the first warnings of each code are shown.
    """
    lines = Lines()
    shown, left = shortlist(diagnostics, verbose=verbose)
    for diagnostic, where in shown:
        if len(lines):
            lines.blank()
        _render_finding(lines, diagnostic, where)
    for code, number in left.items():
        lines.blank()
        lines.add(0, (f"and {number:,} more of {safe(code)}; -v lists all", "dim"))
    if after and len(lines):
        lines.blank()
    lines.print(console)


def shortlist(
    diagnostics: Sequence[Diagnostic], *, verbose: bool = False
) -> tuple[list[tuple[Diagnostic, str]], dict[str, int]]:
    """Return the findings to show, each with its domains, and by code how many are only counted."""
    if verbose:
        return [(diagnostic, "") for diagnostic in diagnostics], {}
    shown: list[tuple[Diagnostic, str]] = []
    seen, left = dict[str, int](), dict[str, int]()
    for diagnostic, where in _group_alike(diagnostics):
        seen[diagnostic.code] = seen.get(diagnostic.code, 0) + 1
        if diagnostic.severity != "error" and seen[diagnostic.code] > _MAX_SHOWN:
            left[diagnostic.code] = left.get(diagnostic.code, 0) + 1
        else:
            shown.append((diagnostic, where))
    return shown, left


def _group_alike(diagnostics: Sequence[Diagnostic]) -> Iterator[tuple[Diagnostic, str]]:
    """Yield each finding, or many alike ones as one, with its domains in words."""
    for found, members in group_domains.group_findings(diagnostics):
        domains = [(member.address or "").partition("/")[0] for member in members]
        where = f", {group_domains.format_domains(domains)}" if len(members) > 1 else ""
        yield found, where


def _render_finding(lines: Lines, diagnostic: Diagnostic, where: str) -> None:
    head, role = _HEADS[diagnostic.severity]
    subject = f"{safe(diagnostic.address)}: " if diagnostic.address else ""
    summary = (subject + safe(diagnostic.summary), "strong")
    lines.add(
        0,
        (f"{head}: ", role),
        summary,
        (safe(where), "strong"),
        (f" [{safe(diagnostic.code)}]", "dim"),
    )
    if diagnostic.range:
        lines.add(2, (f"at {safe(str(diagnostic.range))}", "import"))
        _render_source_line(lines, diagnostic)
    for line in safe_lines(diagnostic.detail):
        lines.add(2, line)


def _render_source_line(lines: Lines, diagnostic: Diagnostic) -> None:
    """Show the line of a finding with a caret below its column, cut to fit 80 columns."""
    from jsplan.config.excerpts import read_line  # noqa: PLC0415 - few commands read files

    place = diagnostic.range
    text = read_line(place) if place is not None and diagnostic.code not in _NO_SOURCE else None
    if place is None or text is None or "##[" in text:
        return
    text = text.rstrip()
    indent, at = len(text) - len(text.lstrip()), place.column - 1
    before, after = safe(text[indent:at]), safe(text[at:].partition(" #")[0].rstrip())
    if cell_len(before + after) > _MAX_SOURCE and cell_len(before) > _MAX_SOURCE // 2:
        before = f"…{set_cell_size(before[::-1], _MAX_SOURCE // 2)[::-1]}"
    if cell_len(before + after) > _MAX_SOURCE:
        after = f"{set_cell_size(after, _MAX_SOURCE - cell_len(before))}…"
    lines.add(4, before + after)
    lines.add(4, (f"{' ' * cell_len(before)}^", "bad"))


def render_error(message: str, hint: str, console: Console) -> None:
    """Render the error of a command that failed, then its hint.

    A message that only counts the findings above it is left out for one finding.
    """
    lines = Lines()
    first, *rest = safe_lines(message) or ["no reason was given"]
    if not _COUNT.fullmatch(first):
        lines.add(0, ("Error: ", "bad"), (first, "strong"))
    elif first != "1 error":
        lines.blank()
        lines.add(0, (f"{first}.", "bad"))
    for line in (*rest, *safe_lines(hint)):
        lines.add(2, line)
    lines.print(console)


def render_explain(diagnostics: Iterable[Diagnostic], console: Console) -> None:
    """Name the command that explains the first error."""
    code = next((d.code for d in diagnostics if d.severity == "error"), None)
    if code is not None:
        lines = Lines()
        lines.blank()
        lines.add(0, (f"To explain a code: jsplan explain {safe(code)}", "dim"))
        lines.print(console)


def render_interruptions(lines: Lines, found: Iterable[dict[str, Any]]) -> None:
    """Render two lines for each: what is wrong, and what ends it."""
    for item in found:
        lines.add(0, (safe(item["summary"]), "bad"))
        lines.add(2, (safe(item["address"]), "strong"), f": {safe(item['detail'])}")
        lines.blank()
