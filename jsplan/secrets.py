"""Values that no message may show: what came from `${env.X}`, replaced by the name of its variable."""

from __future__ import annotations

import json
import re
from typing import Final

#: A shorter value is replaced where it is a word of its own, since it may be a part of many words.
LONG_LENGTH: Final = 8
#: A value this short is in nearly every text: it is no secret, and replacing it would spoil the text.
MIN_LENGTH: Final = 4
#: The shown text by value; one for the process, since messages are made where no workspace is known.
_known: dict[str, str] = {}


def register_secret(value: str, shown: str) -> None:
    """From now on `conceal` shows the value as `shown`."""
    if len(value) >= MIN_LENGTH:
        for text in _spellings(value):
            _known[text] = shown


def concealed_text(value: str) -> str | None:
    """The text that stands for the value; None for a value that is not concealed."""
    return _known.get(value)


def unregister_secret(value: str) -> None:
    """The value is public after all: the files have the same name in the open."""
    for text in _spellings(value):
        _known.pop(text, None)


def clear_secrets() -> None:
    """Forget everything: a new command begins."""
    _known.clear()


def conceal(text: str) -> str:
    """The text with every known value replaced, the longest first."""
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


def _spellings(value: str) -> set[str]:
    """The value, and its forms in a message that quotes it: with line breaks and the like escaped."""
    return {
        value,
        repr(value)[1:-1],
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
    }
