"""Foreign text made harmless for a terminal: names and descriptions come from servers. Layout is left to the views."""

from __future__ import annotations

import json
import re
from html import escape

#: What moves the cursor or colours (C0, C1), turns the direction of text, is not seen (Unicode's Default_Ignorable_Code_Point, the
#: blank of Braille), looks like a blank and is none, or is no character at all, which XML does not allow.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\xa0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800"
    "\u3000\u3164\ud800-\udfff\ufdd0-\ufdef\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    + "".join(f"{chr(plane * 0x10000 + 0xFFFE)}{chr(plane * 0x10000 + 0xFFFF)}" for plane in range(1, 17))
    + "\U000e0000-\U000e0fff]"
)


def safe(text: str) -> str:
    """One line in which every character is seen as it is; others are shown as escapes, so that two names that differ look different.

    A runner of GitHub takes lines that begin with `::`, and `##[` anywhere, for commands: neither is left.
    """
    text = _UNSEEN.sub(lambda match: _escape(match[0]), text).replace("##[", "\\x23#[")
    return text.replace(":", "\\x3a", 1) if text.lstrip().startswith("::") else text


def markup(text: str) -> str:
    """The same for XML and HTML, as content or as a quoted attribute."""
    return escape(safe(text), quote=True)


def _escape(character: str) -> str:
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character)
    code = ord(character)
    return named or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def safe_lines(text: str) -> list[str]:
    """The lines of a longer text, each made safe; empty lines at the end are dropped."""
    return [safe(line) for line in text.rstrip().split("\n")] if text.strip() else []


def quoted(value: object) -> str:
    """A value as JSON on one line, letters of every script kept."""
    return safe(json.dumps(value, ensure_ascii=False, default=str))
