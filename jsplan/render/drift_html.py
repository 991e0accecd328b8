"""The drift document as one HTML file that needs no network: filter by words or severity, gravest first."""

from __future__ import annotations

from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from jsplan.render import drift_rows, summary
from jsplan.render.safe import safe

if TYPE_CHECKING:
    from jsplan.documents.drift import Drift
    from jsplan.render.drift_rows import Row

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #777; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p.sum { font-weight: 600; } p.dim, small { color: var(--dim); }
input, select { font: inherit; padding: .3rem .5rem; border: 1px solid var(--line); border-radius: 4px; }
article { border: 1px solid var(--line); border-left-width: 4px; border-radius: 4px; margin: .6rem 0; padding: .5rem .8rem; }
article.destructive { border-left-color: #c62828; } article.functional { border-left-color: #ef8f00; }
article.cosmetic { border-left-color: #5c8dbc; }
code { font: 13px/1.45 ui-monospace, monospace; } pre { margin: .4rem 0 0; overflow-x: auto; }
.tag { float: right; color: var(--dim); font-size: .85rem; }
@media print { form { display: none; } }
"""
_SCRIPT = """
const words = document.getElementById("words"), grade = document.getElementById("grade");
function show() {
  const wanted = words.value.toLowerCase();
  for (const one of document.querySelectorAll("article"))
    one.hidden = !(one.textContent.toLowerCase().includes(wanted) && (!grade.value || one.classList.contains(grade.value)));
  for (const part of document.querySelectorAll("section"))
    part.hidden = !part.querySelector("article:not([hidden])");
}
words.oninput = grade.onchange = show;
"""
_FORM = """<form onsubmit="return false"><input id="words" type="search" placeholder="Filter" aria-label="Filter">
<select id="grade" aria-label="Severity"><option value="">every severity</option><option>destructive</option><option>functional</option>
<option>cosmetic</option></select></form>"""


def render(drift: Drift) -> str:
    """The whole file."""
    found = drift_rows.rows(drift)
    where = escape(f"{drift.workspace}, {drift.environment}" if drift.environment else drift.workspace)
    body = [
        f"<h1>Drift: {where}</h1>",
        f'<p class="dim">Looked at {escape(drift.timestamp)} by jsplan {escape(drift.jsplan_version)}.</p>',
        f'<p class="sum">{escape(drift_rows.verdict(drift))}</p>',
        _FORM if found else f"<p>{escape(summary.NO_DRIFT)}</p>",
        *(_section(kind, list(members)) for kind, members in groupby(found, key=lambda row: row.kind)),
        *_notes(drift),
    ]
    script = f"<script>{_SCRIPT}</script>" if found else ""
    return (
        f'<!doctype html>\n{drift_rows.mark(drift, found)}\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>Drift: {where}</title><style>{_STYLE}</style></head>\n'
        f"<body>\n{chr(10).join(body)}\n{script}</body></html>\n"
    )


def _section(kind: str, members: list[Row]) -> str:
    return f"<section><h2>{escape(drift_rows.title(kind))} ({len(members)})</h2>\n" + "\n".join(map(_article, members)) + "</section>"


def _article(row: Row) -> str:
    details = f"<pre><code>{escape(chr(10).join(row.details))}</code></pre>" if row.details else ""
    tag = f'<span class="tag">{escape(row.severity)}</span>'
    return f'<article class="{escape(row.severity)}">{tag}<code>{escape(row.address)}</code> {escape(row.says)}{details}</article>'


def _notes(drift: Drift) -> list[str]:
    lines = [f"{safe(d.summary)}. {safe(d.detail)}" for d in drift.diagnostics]
    lines += [
        f"Muted: {safe(str(m['address']))} by {safe(str(m['owner']))} until {m.get('until') or 'further notice'}: {safe(str(m['reason']))}"
        for m in drift.mutes
    ]
    pending = drift.summary["pending"]
    lines += [f"{summary.count(pending, 'resource')} pending in the files (see jsplan plan)."] if pending else []
    return [f'<p class="dim">{escape(line)}</p>' for line in lines]
