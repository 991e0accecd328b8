"""Secrets that no message may show, each replaced by the `${env.X}` that it comes from."""

from __future__ import annotations

import json
import re
from typing import Final

#: A shorter value is only replaced where it is a whole word, since it may be part of many words.
LONG_LENGTH: Final = 8
#: A shorter value occurs in nearly every text: it is no secret, and replacing it garbles the text.
MIN_LENGTH: Final = 4
#: The shown text by value; one for the process, because messages are built without a workspace.
_known: dict[str, str] = {}


def register_secret(value: str, shown: str) -> None:
    """Make `conceal` show the value as `shown` from now on."""
    if len(value) >= MIN_LENGTH:
        for text in _spellings(value):
            _known[text] = shown


def clear_secrets() -> None:
    """Forget all values; for the beginning of a command."""
    _known.clear()


def conceal(text: str) -> str:
    """Replace every known value in the text, the longest first."""
    for value in sorted(_known, key=len, reverse=True) if _known else ():
        if value in text:
            pattern = re.escape(value)
            word = (
                pattern
                if len(value) >= LONG_LENGTH
                else rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])"
            )
            text = re.sub(word, lambda _, value=value: _known[value], text)  # type: ignore[misc]
    return text


def redact_url(url: str) -> str:
    """Return the URL, or several separated by commas, without user and password."""
    return ",".join(_without_userinfo(part.strip()) for part in url.split(","))


def _without_userinfo(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else url.rpartition("@")[2]


def _spellings(value: str) -> set[str]:
    """The value, and its escaped forms in a message that quotes it."""
    return {
        value,
        repr(value)[1:-1],
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
    }
