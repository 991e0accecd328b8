"""Plain scalars by the YAML 1.2 core schema, except that `010` stays text."""

from __future__ import annotations

import math
import re
from typing import Any, Final

#: The result of `resolve` for a number that no JetStream field and no JSON document can hold.
OUT_OF_RANGE: Final = object()
_WORDS: dict[str, Any] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_FIRST = frozenset("0123456789+-.~nNtTfF")
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


def resolve(text: str) -> Any:
    """Return None, bool, int, float or the text; OUT_OF_RANGE beyond 64 bits, for .inf and .nan."""
    if not text:
        return None
    if text[0] not in _FIRST:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return _check_bounds(int(text)) if len(text) < 24 else OUT_OF_RANGE
    if _OTHER_BASE.fullmatch(text):
        return _check_bounds(int(text, 0)) if len(text) < 28 else OUT_OF_RANGE
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else OUT_OF_RANGE
    return OUT_OF_RANGE if _NO_NUMBER.fullmatch(text) else text


def _check_bounds(number: int) -> Any:
    return number if -(2**63) <= number < 2**64 else OUT_OF_RANGE
