"""Check documents against their schema before a reader uses anything in them.

A schema is compiled when the first document of its kind is read, so that a command compiles only
the schemas that it needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from jsplan.documents.acceptance import compile_acceptance
from jsplan.documents.base import DocumentError

#: Characters of a path or rule in a message. A value is never quoted: it may be secret.
MAX_QUOTE: Final = 200
_TYPES: Final = {
    "string": "text", "integer": "a whole number", "number": "a number",
    "boolean": "true or false", "object": "an object", "array": "a list", "null": "null",
}  # fmt: skip
_LIBRARY_MESSAGE: Final = re.compile(
    r"data(?P<path>.*?) (?P<rule>must|cannot) (?P<rest>.*)\Z", re.DOTALL
)
_QUOTED: Final = re.compile(r"'([^']*)'")


def find_flaw(document: Any, name: str) -> str | None:
    """Describe where the document differs from its schema and what is expected; None if it fits."""
    if _compile_acceptance(name)(document):
        return None
    import fastjsonschema  # noqa: PLC0415 - a command that reads no damaged document need not load it

    empty = (
        frozenset(key for key, value in document.items() if value in ({}, []))
        if isinstance(document, dict)
        else frozenset()
    )
    try:
        _compile_check(name, empty)(document)
    except fastjsonschema.JsonSchemaValueException:
        pass
    else:
        return None
    try:
        _compile_check(name, empty, detailed=True)(document)
    except fastjsonschema.JsonSchemaValueException as error:
        return _translate_message(str(error))
    raise AssertionError("the same schema says two things of one document")


def require_valid(document: Any, name: str, where: str, hint: str) -> None:
    """Raise DocumentError with file, place and expectation unless the document fits its schema."""
    if (flaw := find_flaw(document, name)) is not None:
        raise DocumentError(f"{where} is damaged: {flaw}", hint=hint)


def _find_schema(name: str) -> dict[str, Any]:
    from jsplan.documents.schema import internal_schemas, schemas  # noqa: PLC0415 - as above

    return {**schemas(), **internal_schemas()}.get(name) or schemas()[f"{name}-v1.json"]


@cache
def _compile_acceptance(name: str) -> Callable[[Any], bool]:
    return compile_acceptance(_find_schema(name))


@cache
def _compile_check(
    name: str, empty: frozenset[str] = frozenset(), *, detailed: bool = False
) -> Callable[[Any], Any]:
    """Compile the check of one kind of document.

    The content of `empty` fields is not compiled: that is most of a state at rest. `detailed` takes
    three times as long; its errors name the missing keys.
    """
    import fastjsonschema  # noqa: PLC0415 - as above

    schema = _find_schema(name)
    rules = {key: value for key, value in schema.items() if key not in ("$schema", "$id", "title")}
    types = {
        key: {"type": field["type"]}
        for key, field in schema.get("properties", {}).items()
        if key in empty and _may_be_empty(field)
    }
    rules |= {"properties": schema["properties"] | types} if types else {}
    # In draft 4 a number with a fraction is no integer, not even 5.0: readers count with them.
    draft = {"$schema": "http://json-schema.org/draft-04/schema#"}
    compiled: Callable[[Any], Any] = fastjsonschema.compile(
        draft | rules, use_default=False, detailed_exceptions=detailed
    )
    return compiled


def _may_be_empty(schema: dict[str, Any]) -> bool:
    return "type" in schema and schema.keys().isdisjoint(("required", "minItems", "minProperties"))


def _translate_message(message: str) -> str:
    """Translate a message of the library: `steps[0].op must be one of …`."""
    match = _LIBRARY_MESSAGE.match(message)
    if match is None:
        return _truncate(message)
    path, rest = match["path"].removeprefix(".") or "the document", match["rest"]
    if match["rule"] == "cannot":
        words = "has none of the forms that the schema allows"
    elif rest.startswith("contain ["):
        words = "lacks " + ", ".join(_QUOTED.findall(rest))
    elif rest.startswith("be one of ["):
        words = "must be one of " + ", ".join(
            _QUOTED.findall(rest) or [rest.removeprefix("be one of ")]
        )
    elif (
        rest.startswith("be ")
        and set(types := rest.removeprefix("be ").split(" or ")) <= _TYPES.keys()
    ):
        words = "must be " + " or ".join(_TYPES[name] for name in types)
    else:
        words = f"must {rest}"
    return f"{_truncate(path)} {_truncate(words)}"


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_QUOTE else text[:MAX_QUOTE] + "…"
