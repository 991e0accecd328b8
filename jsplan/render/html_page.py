"""The frame of an HTML page without external resources: style, script, security policy."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from jsplan.render.escape import safe_html
from jsplan.render.lines import STYLES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.text import Text

_ASSETS = Path(__file__).parent / "assets"
#: The role of a style; the first one if two have the same style.
_ROLES = {style: role for role, style in reversed(STYLES.items())}


def render_page(title: str, mark: str, body: Iterable[str], *, style: str, script: str) -> str:
    """Return the whole file.

    `title` is plain text, `mark` a comment, `body` finished HTML; `style` and `script` are names of
    assets. The policy lets a browser run only this script and load nothing, even if foreign text
    was not escaped.
    """
    css, code = read_asset("page.css") + read_asset(style), read_asset(script) if script else ""
    policy = (
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(code)}'; base-uri "
        "'none'; form-action 'none'"
    )
    scripts = f"<script>{code}</script>\n" if code else ""
    return (
        f'<!doctype html>\n{mark}\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{safe_html(title)}</title>\n<style>{css}</style></head>\n"
        f"<body>\n{chr(10).join(body)}\n{scripts}</body></html>\n"
    )


@cache
def read_asset(name: str) -> str:
    """Return the text of a style or a script."""
    return (_ASSETS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def render_line(line: Text) -> str:
    """Return a line with its styles, as the terminal would colour it."""
    out, at = [], 0
    for span in sorted(line.spans, key=lambda span: span.start):
        role = _ROLES.get(str(span.style), "")
        piece = safe_html(line.plain[span.start : span.end])
        out += [
            safe_html(line.plain[at : span.start]),
            f'<i class="r-{role}">{piece}</i>' if role else piece,
        ]
        at = span.end
    return "".join([*out, safe_html(line.plain[at:])])


def render_block(lines: Iterable[Text]) -> str:
    """Return lines as a preformatted block; an empty text for none."""
    shown = "\n".join(map(render_line, lines))
    return f"<pre>{shown}</pre>" if shown else ""
