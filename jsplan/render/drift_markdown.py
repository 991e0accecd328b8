"""The drift document as Markdown for issues and comments, within GitHub's length limit."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from jsplan.render import drift_rows, summary
from jsplan.render.escape import safe
from jsplan.render.markdown import MAX_LENGTH, code_span, diff_block, escape_text
from jsplan.units import count_text

if TYPE_CHECKING:
    from jsplan.documents.drift import Drift
    from jsplan.render.drift_rows import Row


def render(drift: Drift) -> str:
    """Return the whole page."""
    found = drift_rows.rows(drift)
    where = f"{drift.workspace}, {drift.environment}" if drift.environment else drift.workspace
    head = [
        drift_rows.marker(drift, found),
        f"## Drift: {escape_text(where)}",
        "",
        f"**{drift_rows.summary_line(drift)}**",
        "",
    ]
    if not found:
        head += [summary.NO_DRIFT, ""]
    tail = [
        *_notes(drift),
        f"<sub>Looked at {drift.timestamp} by jsplan {drift.jsplan_version}.</sub>",
    ]
    return (
        "\n".join(
            [
                *head,
                *_fit_findings(found, MAX_LENGTH - sum(len(line) + 1 for line in [*head, *tail])),
                *tail,
            ]
        )
        + "\n"
    )


def _fit_findings(found: list[Row], limit: int) -> list[str]:
    """Return as many findings as fit, most severe first, and how many were cut off."""
    out: list[str] = []
    used = shown = 0
    for kind, members in groupby(found, key=lambda row: row.kind):
        listed = list(members)
        piece = ["", f"### {drift_rows.kind_title(kind)} ({len(listed)})", ""]
        for row in listed:
            piece += _item(row)
            cost = sum(len(line) + 1 for line in piece)
            if used + cost > limit - 200:
                return [
                    *out,
                    "",
                    (
                        f"_{len(found) - shown:,} more findings were cut off here; `jsplan "
                        "drift -v` lists all._"
                    ),
                    "",
                ]
            out += piece
            used, shown, piece = used + cost, shown + 1, []
    return [*out, ""] if out else []


def _item(row: Row) -> list[str]:
    line = f"- {code_span(row.address)} {escape_text(row.summary)} ({row.severity})"
    return [line, *(diff_block(row.details, indent="  ") if row.details else [])]


def _notes(drift: Drift) -> list[str]:
    lines = [
        f"- :warning: {escape_text(safe(d.summary))}. {escape_text(safe(d.detail))}"
        for d in drift.diagnostics
    ]
    counts = drift.summary
    lines += [f"- {count_text(counts['muted'], 'finding')} muted."] if counts["muted"] else []
    if counts["pending"]:
        lines.append(
            f"- {count_text(counts['pending'], 'resource')} pending in the files: see "
            "`jsplan plan`."
        )
    return [*lines, ""] if lines else []
