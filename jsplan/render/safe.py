"""Foreign text made harmless for a terminal: names and descriptions come from servers. Layout is left to the views."""

from __future__ import annotations

import json
import re

#: C0 and C1 controls, line separators, what turns the direction of text, and lone surrogates.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def safe(text: str) -> str:
    """One line without a character that moves the cursor, colours or reorders; such are shown as escapes."""
    return _CONTROL.sub(lambda match: _escape(match[0]), text)


def _escape(character: str) -> str:
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character)
    code = ord(character)
    return named or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def safe_lines(text: str) -> list[str]:
    """The lines of a longer text, each made safe; empty lines at the end are dropped."""
    return [safe(line) for line in text.rstrip().split("\n")] if text.strip() else []


def quoted(value: object) -> str:
    """A value as JSON on one line, letters of every script kept."""
    return safe(json.dumps(value, ensure_ascii=False, default=str))
