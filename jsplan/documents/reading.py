"""Convert plain data to structs, such as those of documents; a flaw names its place.

Each struct is prepared when the first data of its kind is read, so that a command prepares only
what it reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from threading import RLock
from typing import Any, Final, TypeVar

import msgspec
import orjson
from msgspec import Struct

from jsplan.disk import display_path, read_regular
from jsplan.documents.base import Document, DocumentError, check_format
from jsplan.documents.types import PATTERNS
from jsplan.errors import JsplanError

T = TypeVar("T")
D = TypeVar("D", bound=Document)
#: Characters of a place or rule in a message. A value is never quoted: it may be secret.
MAX_QUOTE: Final = 200
#: msgspec 0.22 prepares a type at its first use, and a second thread that uses the half-prepared
#: type ends the process.
_ONE_THREAD: Final = RLock()
_WORDS: Final = {
    "str": "text", "int": "a whole number", "float": "a number", "bool": "true or false",
    "object": "an object", "array": "a list", "null": "null", "bytes": "base64",
}  # fmt: skip
_PLACE: Final = re.compile(r" - at (`key` in )?`\$([^`]*)`\Z")
_STEP: Final = re.compile(r"\[\.\.\.\]|\[(\d+)\]|([^.\[\]]+)")
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")
_PATTERN_NAMES: Final = re.compile(r"`str` matching regex (.*)", re.DOTALL)
_KINDS: Final = re.compile(r"`([a-z]+(?: \| [a-z]+)*)`")


class Flaw(Struct, frozen=True):
    """The first place where plain data does not fit a type, such as `$.steps[3].op`.

    `value` is what is there. `expected` is such as `a whole number`, `actual` the kind of the value
    if no value of that kind fits. `missing` is instead a field that an object lacks.
    """

    place: str
    value: Any
    expected: str = ""
    actual: str = ""
    missing: str = ""


def read_document(kind: type[D], raw: Any, where: str, hint: str) -> D:
    """Return the document.

    Raises DocumentError unless it has the kind and a known format and fits the struct.
    """
    name = str(kind.__struct_config__.tag)
    return decode(kind, check_format(raw, name, kind.FORMAT_VERSION, where), where, hint)


def read_file(kind: type[D], path: Path, most: int, hint: str) -> D | None:
    """Read the document in a file of at most `most` bytes; None where there is no file.

    Raises JsplanError, and DocumentError for another content.
    """
    where = display_path(path)
    try:
        raw = orjson.loads(read_regular(path, most))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JsplanError(f"cannot read {where}: {error.strerror}") from None
    except orjson.JSONDecodeError:
        raise DocumentError(f"{where} is no JSON", hint=hint) from None
    return read_document(kind, raw, where, hint)


def decode(kind: type[T], raw: Any, where: str, hint: str) -> T:
    """Convert plain data. Raises DocumentError that names the place where it does not fit."""
    try:
        found: T = convert(raw, kind)
    except msgspec.ValidationError as error:
        flaw = _describe(explain(error, raw, kind))
        raise DocumentError(f"{where} is damaged: {flaw}", hint=hint) from None
    return found


def find_flaw(raw: Any, kind: Any) -> str | None:
    """Describe where plain data does not fit and what is expected; None if it fits."""
    try:
        convert(raw, kind)
    except msgspec.ValidationError as error:
        return _describe(explain(error, raw, kind))
    return None


def fits(raw: Any, kind: Any) -> bool:
    """Check whether plain data fits a type in which nothing is `kept`. Quicker than `convert`."""
    try:
        with _ONE_THREAD:
            msgspec.convert(raw, kind)
    except msgspec.ValidationError:
        return False
    return True


def convert(raw: Any, kind: Any) -> Any:
    """Convert plain data. Raises msgspec.ValidationError, which `explain` puts into words."""
    with _ONE_THREAD:
        return msgspec.convert(raw, kind, dec_hook=_check_kept)


def _check_kept(kind: Any, value: Any) -> Any:
    """Check plain data that is kept unchanged, with the fields that its shape does not know."""
    if kind.values:
        if value not in kind.values:
            raise ValueError("Invalid list")
        return value
    has_choice = kind.choose is not None and isinstance(value, dict)
    shape = kind.choose(value) if has_choice else kind.shapes[0]
    try:
        msgspec.convert(value, shape, dec_hook=_check_kept)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    return value


def _describe(flaw: Flaw) -> str:
    """Return what is expected and where, such as `expected text, got null at $.steps[3].op`."""
    expected = f'the field "{flaw.missing}"' if flaw.missing else flaw.expected
    rule = f"expected {expected}" + (f", got {flaw.actual}" if flaw.actual else "")
    return f"{_truncate(rule)} at {_truncate(flaw.place)}"


def explain(error: msgspec.ValidationError, raw: Any, kind: Any) -> Flaw:
    """Return the flaw for which `convert` raised the error."""
    rest, place = str(error), ""
    while found := _PLACE.search(rest):
        rest = rest[: found.start()]
        place += found[2] + ("[...]" if found[1] else "")

    def fails_so(other: Any) -> bool:
        try:
            convert(other, kind)
        except msgspec.ValidationError as another:
            return str(another) == str(error)
        return False

    shown, value = _name_keys(raw, place, fails_so)
    if missing := _MISSING.fullmatch(rest):
        return Flaw(shown, value, missing=missing[1])
    expected, _, actual = _translate(rest).partition(", got ")
    return Flaw(shown, value, expected, actual)


def _translate(rule: str) -> str:
    if rule.startswith("Invalid base64"):
        return "base64"
    if rule.startswith("Invalid "):  # and the value
        return "one of the values that are allowed"
    if pattern := _PATTERN_NAMES.search(rule):
        names = {repr(known): what for known, what in PATTERNS.items()}
        return names.get(pattern[1], "another text")
    words = _KINDS.sub(
        lambda found: " or ".join(_WORDS.get(word, word) for word in found[1].split(" | ")), rule
    )
    return (
        words.removeprefix("Expected ")
        .replace("Object contains unknown", "no")
        .replace(" >= ", " of at least ")
    )


def _name_keys(raw: Any, place: str, fails_so: Callable[[Any], bool]) -> tuple[str, Any]:
    """Return the place with the key of each map, for which msgspec says `[...]`, and its value.

    The first wrong key is found by halves: the data fails in the same way with its half alone.
    """
    path, shown = list[Any](), "$"
    for step in _STEP.finditer(place):
        if step[1] or step[2]:
            path.append(int(step[1]) if step[1] else step[2])
            shown += step[0] if step[1] else f".{step[2]}"
            continue
        values = _look_up(raw, path)
        keys = [*values]
        while len(keys) > 1:
            half = keys[: len(keys) // 2]
            fails = fails_so(_replace(raw, path, {key: values[key] for key in half}))
            keys = half if fails else keys[len(half) :]
        raw = _replace(raw, path, {keys[0]: values[keys[0]]})
        path.append(keys[0])
        shown += f"[{keys[0]!r}]"
    return shown, _look_up(raw, path)


def _look_up(raw: Any, path: list[Any]) -> Any:
    for step in path:
        raw = raw[step]
    return raw


def _replace(raw: Any, path: list[Any], value: Any) -> Any:
    """Return a copy in which `value` is at the path."""
    if not path:
        return value
    copy = raw.copy()
    copy[path[0]] = _replace(raw[path[0]], path[1:], value)
    return copy


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_QUOTE else text[:MAX_QUOTE] + "…"
