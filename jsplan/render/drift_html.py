"""The drift document as one HTML file without external resources, most severe first."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from jsplan.render import drift_rows, html_page, summary
from jsplan.render.escape import safe, safe_html
from jsplan.units import count_text

if TYPE_CHECKING:
    from jsplan.documents.drift import Drift
    from jsplan.render.drift_rows import Row

_FORM = """<form><input id="words" type="search" placeholder="Filter" aria-label="Filter">
<select id="grade" aria-label="Severity"><option value="">every severity</option>
<option>destructive</option><option>functional</option><option>cosmetic</option></select></form>"""


def render(drift: Drift) -> str:
    """Return the whole file."""
    found = drift_rows.rows(drift)
    name = f"{drift.workspace}, {drift.environment}" if drift.environment else drift.workspace
    body = [
        f"<h1>Drift: {safe_html(name)}</h1>",
        (
            f'<p class="dim">Looked at {safe_html(drift.timestamp)} by jsplan '
            f"{safe_html(drift.jsplan_version)}.</p>"
        ),
        f'<p class="sum">{safe_html(drift_rows.summary_line(drift))}</p>',
        _FORM if found else f"<p>{safe_html(summary.NO_DRIFT)}</p>",
        *(
            _section(kind, list(members))
            for kind, members in groupby(found, key=lambda row: row.kind)
        ),
        *_notes(drift),
    ]
    return html_page.render_page(
        f"Drift: {name}",
        drift_rows.marker(drift, found),
        body,
        style="drift.css",
        script="drift.js" if found else "",
    )


def _section(kind: str, members: list[Row]) -> str:
    return (
        f"<section><h2>{safe_html(drift_rows.kind_title(kind))} ({len(members)})</h2>\n"
        + "\n".join(map(_article, members))
        + "</section>"
    )


def _article(row: Row) -> str:
    details = ""
    if row.details:
        details = f"<pre><code>{chr(10).join(map(safe_html, row.details))}</code></pre>"
    tag = f'<span class="tag">{safe_html(row.severity)}</span>'
    return (
        f'<article class="{safe_html(row.severity)}">{tag}<code>{safe_html(row.address)}</code> '
        f"{safe_html(row.summary)}{details}</article>"
    )


def _notes(drift: Drift) -> list[str]:
    lines = [f"{safe(d.summary)}. {safe(d.detail)}" for d in drift.diagnostics]
    lines += [
        (
            f"Muted: {safe(str(m['address']))} by {safe(str(m['owner']))} until "
            f"{m.get('until') or 'further notice'}: {safe(str(m['reason']))}"
        )
        for m in drift.mutes
    ]
    pending = drift.summary["pending"]
    if pending:
        lines.append(f"{count_text(pending, 'resource')} pending in the files (see jsplan plan).")
    return [f'<p class="dim">{safe_html(line)}</p>' for line in lines]
