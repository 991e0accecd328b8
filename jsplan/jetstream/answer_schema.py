"""Checks that answers of servers have the shape that jsplan reads.

Only fields that jsplan uses are checked, and only for the kind of their value. Unknown fields pass,
and so do values that a newer server may add to a field. A null field is removed from the answer, as
if it was absent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, Final

import msgspec
import orjson
from msgspec import inspect

from jsplan.documents.base import MAX_DEPTH, is_deeper
from jsplan.documents.reading import convert, explain, fits
from jsplan.jetstream.answers import Refusal, answer_types

#: Levels of a configuration: its unknown fields are stored, compared and written again. A document
#: has some levels more around it.
MAX_CONFIG_DEPTH: Final = MAX_DEPTH // 2
#: Characters of a wrong value that an error shows.
_MAX_SHOWN: Final = 40
#: A verb of two words, with the dot before the names.
_VERB: Final = re.compile(r"\w+(\.\w+\.?)?")


class InvalidAnswer(Exception):
    """An answer does not have the expected shape. The text says where: `place` such as `a.b[5]`."""

    def __init__(self, place: str, value: Any, expected: str) -> None:
        shown = "missing" if value is None else repr(value)
        if len(shown) > _MAX_SHOWN:
            shown = shown[:_MAX_SHOWN] + "…"
        super().__init__(f"{place or 'the answer'} is {shown}, expected {expected}")


def parse_system_answer(kind: str, data: bytes) -> dict[str, Any]:
    """Parse an answer to a system request of the `answers`. Raises InvalidAnswer."""
    try:
        answer = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise InvalidAnswer("", data, "JSON") from None
    _check(kind, answer)
    return dict(answer)


def check_answer(api: str, answer: dict[str, Any]) -> None:
    """Raise InvalidAnswer if an answer to `api` lacks a field or has a wrong value.

    `api` is a verb with its names, such as `STREAM.INFO.ORDERS`.
    """
    match, closed = _VERB.match(api), answer_types(closed=True)
    verb = match[0] if match and match[0] in closed else _find_verb(api)
    if verb:
        if not fits(answer, closed[verb]):
            _check(verb, answer)
        _require_same_name(verb, api.removeprefix(verb), answer)


@lru_cache(maxsize=1024)
def _find_verb(api: str) -> str:
    """Return the verb of another length whose answer has a type; empty if there is none."""
    verbs = answer_types(closed=True)
    return next((verb for verb in verbs if verb.endswith(".") and api.startswith(verb)), "")


def check_refusal(answer: dict[str, Any]) -> None:
    """Raise InvalidAnswer if the error in an answer does not have the shape of a server's."""
    _require_fit(answer, Refusal)


def _check(verb: str, answer: Any) -> None:
    """Check an answer that has nulls, unknown fields in a configuration, or a flaw.

    Removes the nulls of known fields. Raises InvalidAnswer.
    """
    _require_fit(answer, answer_types(closed=False)[verb])
    parts = [("config", answer)]
    for name in ("streams", "consumers"):
        if isinstance(listed := answer.get(name), list):
            parts += [(f"{name}[{number}].config", each) for number, each in enumerate(listed)]
    for place, part in parts:
        if isinstance(part, dict) and is_deeper(part.get("config"), MAX_CONFIG_DEPTH):
            raise InvalidAnswer(place, "…", f"at most {MAX_CONFIG_DEPTH} levels")


def _require_same_name(verb: str, name: str, answer: Mapping[str, Any]) -> None:
    """Raise InvalidAnswer if the answer is about another stream or consumer."""
    if verb == "STREAM.INFO." and answer["config"]["name"] != name:
        raise InvalidAnswer("config.name", answer["config"]["name"], repr(name))
    if verb == "CONSUMER.INFO." and f"{answer['stream_name']}.{answer['name']}" != name:
        raise InvalidAnswer("name", f"{answer['stream_name']}.{answer['name']}", repr(name))


def _require_fit(answer: Any, kind: Any) -> None:
    """Remove the nulls of known fields. Raises InvalidAnswer for the first flaw."""
    try:
        convert(answer, kind)
    except msgspec.ValidationError:
        _remove_nulls(answer, _describe(kind))
    else:
        return
    try:
        convert(answer, kind)
    except msgspec.ValidationError as error:
        flaw = explain(error, answer, kind)
        if flaw.missing:
            place = f"{flaw.place}.{flaw.missing}".removeprefix("$.")
            raise InvalidAnswer(place, None, "a value") from None
        place = flaw.place.removeprefix("$").removeprefix(".")
        raise InvalidAnswer(place, flaw.value, flaw.expected) from None


@cache
def _describe(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _remove_nulls(value: Any, kind: inspect.Type) -> None:
    match kind:
        case inspect.CustomType():
            _remove_nulls(value, _describe(kind.cls.shapes[0]))  # type: ignore[attr-defined]
        case inspect.ListType() if isinstance(value, list):
            for each in value:
                _remove_nulls(each, kind.item_type)
        case inspect.DictType() if isinstance(value, dict):
            _remove_nulls_at(value, [(name, kind.value_type) for name in value])
        case inspect.StructType() if isinstance(value, dict):
            _remove_nulls_at(value, [(field.encode_name, field.type) for field in kind.fields])


def _remove_nulls_at(value: dict[str, Any], places: list[tuple[str, inspect.Type]]) -> None:
    for name, kind in places:
        match value.get(name, ""):
            case None:
                del value[name]
            case dict() | list() as nested:
                _remove_nulls(nested, kind)
