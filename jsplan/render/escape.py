"""Foreign text made harmless for a terminal: names and descriptions come from servers. Layout is left to the views."""

from __future__ import annotations

import json
from html import escape

from jsplan.invisible_characters import INVISIBLE


def safe(text: str) -> str:
    """One line in which every character is seen as it is; others are shown as escapes, so that two names that differ look different.

    A runner of GitHub takes lines that begin with `::`, and `##[` anywhere, for commands: neither is left.
    """
    text = INVISIBLE.sub(lambda match: _escape_character(match[0]), text).replace("##[", "\\x23#[")
    return text.replace(":", "\\x3a", 1) if text.lstrip().startswith("::") else text


def safe_html(text: str) -> str:
    """The same for XML and HTML, as content or as a quoted attribute."""
    return escape(safe(text), quote=True)


def _escape_character(character: str) -> str:
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character)
    code = ord(character)
    return named or (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def safe_lines(text: str) -> list[str]:
    """The lines of a longer text, each made safe; empty lines at the end are dropped."""
    return [safe(line) for line in text.rstrip().split("\n")] if text.strip() else []


def quote_json(value: object) -> str:
    """A value as JSON on one line, letters of every script kept."""
    return safe(json.dumps(value, ensure_ascii=False, default=str))
