"""Escaping of foreign text, such as names and descriptions from servers, for terminals."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING

from jsplan.invisible_characters import INVISIBLE

if TYPE_CHECKING:
    from jsplan.diagnostics import SourceRange


def safe(text: str) -> str:
    """Return one line in which every character is visible; others are shown as escapes.

    So two names that differ also look different. GitHub runners take lines that begin with `::`,
    and `##[` anywhere, for commands: both are escaped.
    """
    text = INVISIBLE.sub(lambda match: _escape_character(match[0]), text).replace("##[", "\\x23#[")
    return text.replace(":", "\\x3a", 1) if text.lstrip().startswith("::") else text


def safe_html(text: str) -> str:
    """Escape for XML and HTML, as content or as a quoted attribute."""
    return escape(safe(text), quote=True)


def _escape_character(character: str) -> str:
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character)
    code = ord(character)
    return named or (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def safe_lines(text: str) -> list[str]:
    """Return the lines of a longer text, each made safe, without empty lines at the end."""
    return [safe(line) for line in text.rstrip().split("\n")] if text.strip() else []


def quote_json(value: object) -> str:
    """Return a value as JSON on one line; letters of every script are unchanged."""
    return safe(json.dumps(value, ensure_ascii=False, default=str))


def workflow_command(level: str, title: str, message: str, place: SourceRange | None) -> str:
    """Return a workflow command of GitHub, which shows the message at the line of the place."""
    properties = {"title": title}
    if place is not None:
        where = {"file": place.file, "line": str(place.line), "col": str(place.column)}
        properties = where | properties
    shown = ",".join(f"{name}={_escape_signs(value, ':,')}" for name, value in properties.items())
    return f"::{level} {shown}::{_escape_signs(message)}"


def _escape_signs(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
