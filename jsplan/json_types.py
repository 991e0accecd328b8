"""Types of JSON values: msgspec checks a value in a fraction of the time of Python.

The answer is only yes or no: to say what is wrong, the caller looks at the value again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from threading import Lock
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta

_ONE_THREAD: Final = Lock()


def has_type(value: Any, expected: Any) -> bool:
    """Check whether a parsed JSON value has this type. A number with a fraction is no integer.

    One thread at a time: msgspec 0.22 prepares a type at its first use, and a second thread that
    uses the half-prepared type ends the process.
    """
    try:
        with _ONE_THREAD:
            msgspec.convert(value, expected)
    except msgspec.ValidationError:
        return False
    return True


def text_type(pattern: str) -> Any:
    """Return the type of the texts in which `pattern` is found."""
    return Annotated[str, Meta(pattern=pattern)]


def object_type(
    required: Mapping[str, Any], optional: Mapping[str, Any], *, may_have_others: bool
) -> Any:
    """Return the type of the objects with fields of these types, and with others or without."""
    names = {f"field_{number}": name for number, name in enumerate({**required, **optional})}
    fields = [
        (field, required[name]) if name in required else (field, optional[name], UNSET)
        for field, name in names.items()
    ]
    return msgspec.defstruct(
        "Object", fields, rename=names, forbid_unknown_fields=not may_have_others, gc=False
    )


def whole_text(pattern: re.Pattern[str]) -> str:
    """Return a pattern that is found only where `pattern` matches the whole text."""
    return rf"\A(?:{pattern.pattern})\Z"
