"""Types, bounds, names, addresses and times for the schemas of the documents.

Bounds are part of a type: a reader may add such numbers, write them as JSON again and turn such
times into instants.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"

#: A name as servers accept it: no blank, and nothing with a meaning in subjects or paths.
_NAME = r"[^./\\*> \t\r\n\f]+"
_DOMAIN = r"[^/\r\n]+"
#: Python's `$` matches before a last newline, too.
_END = r"$(?!\n)"
_CONSUMER = rf"^{_DOMAIN}/consumer/{_NAME}/{_NAME}{_END}"
_STREAM = rf"^{_DOMAIN}/(stream|kv|object_store)/{_NAME}{_END}"
_KEY = r"[-/_=.a-zA-Z0-9]+"
_ENTRY = rf"^{_DOMAIN}/kv_entry/{_NAME}/{_KEY}{_END}"
#: Parts between slashes, without control characters and the signs of globs.
_OBJECT = rf"^{_DOMAIN}/object/{_NAME}(/[^/*?\x00-\x1f\x7f]+)+{_END}"
_SCHEDULE = rf"^{_DOMAIN}/schedule/{_NAME}/[^/*?> \x00-\x1f\x7f]+{_END}"
ADDRESS_PATTERN = f"{_STREAM}|{_CONSUMER}|{_ENTRY}|{_OBJECT}|{_SCHEDULE}"
#: In the first and the last year an offset could leave the range of dates.
_TIME = r"^(?!0000|(0001|9999)[^Z]*$)\d{4}-\d\d-\d\dT[0-2]\d:[0-5]\d:[0-5]\d(\.\d{1,9})?"

TEXT: Schema = {"type": "string"}
#: The id of an upload of an object (`resources.stored_object`): part of the filter of a purge.
UPLOAD_ID: Schema = {"type": "string", "pattern": rf"^[A-Za-z0-9_-]{{1,64}}{_END}"}
NAME: Schema = {"type": "string", "pattern": f"^{_NAME}{_END}"}
#: A count of jsplan: sums of many still fit into 64 bits.
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 2**53 - 1}
#: A number or count of the server.
UINT64: Schema = {"type": "integer", "minimum": 0}
#: A number in a column of Arrow.
INT63: Schema = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
#: The JSON parser has no integers of more than 64 bits.
INTEGER: Schema = {"type": "integer"}
SECONDS: Schema = {"type": "number", "minimum": 0, "maximum": 1e15}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
ANYTHING: Schema = {}
ADDRESS: Schema = {"type": "string", "pattern": ADDRESS_PATTERN}
STREAM_ADDRESS: Schema = {"type": "string", "pattern": _STREAM}
CONSUMER_ADDRESS: Schema = {"type": "string", "pattern": _CONSUMER}
TIME: Schema = {"type": "string", "pattern": rf"{_TIME}Z{_END}", "format": "date-time"}
#: A server's own: any offset.
INSTANT: Schema = {
    "type": "string",
    "pattern": rf"{_TIME}(Z|[+-]\d\d:\d\d){_END}",
    "format": "date-time",
}
SHA256: Schema = {"type": "string", "pattern": f"^[0-9a-f]{{64}}{_END}"}
FINGERPRINT: Schema = {"type": "string", "pattern": f"^(absent|sha256:[0-9a-f]{{64}}){_END}"}
VERSION: Schema = {"type": "string", "pattern": rf"^1\.\d{{1,9}}{_END}"}


def or_null(schema: Schema) -> Schema:
    """The schema or null, as one type list if possible, which errors can name."""
    if "enum" in schema:
        return schema | {"enum": [*schema["enum"], None]}
    if isinstance(schema.get("type"), str):
        return schema | {"type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def list_of(items: Schema, **more: Any) -> Schema:
    """An array; `more` are keywords such as `minItems`."""
    return {"type": "array", "items": items} | more


def one_of(*values: Any) -> Schema:
    """One of these values."""
    return {"enum": list(values)}


def map_of(values: Schema) -> Schema:
    """An object with any keys."""
    return {"type": "object", "additionalProperties": values}


def map_by_address(values: Schema) -> Schema:
    """An object whose keys are addresses."""
    return {
        "type": "object",
        "patternProperties": {ADDRESS_PATTERN: values},
        "additionalProperties": False,
    }


def object_of(
    required: dict[str, Schema], optional: dict[str, Schema] | None = None, description: str = ""
) -> Schema:
    """An object with these fields and any others, which a later minor version may add."""
    out: Schema = {
        "type": "object",
        "required": sorted(required),
        "properties": required | (optional or {}),
    }
    if not required:
        del out["required"]
    return {"description": description} | out if description else out


def object_of_counts(*names: str, of: Schema = COUNT) -> Schema:
    """An object of numbers."""
    return object_of(dict.fromkeys(names, of))


def ref(name: str) -> Schema:
    """A definition of the same document."""
    return {"$ref": f"#/$defs/{name}"}


def ref_or_null(name: str) -> Schema:
    """An `untyped` definition of the same document as an object, or null."""
    return {"type": ["object", "null"], "allOf": [ref(name)]}


def ref_to(name: str) -> Schema:
    """An `untyped` definition of the same document as an object."""
    return {"type": "object", "allOf": [ref(name)]}


def untyped(schema: Schema) -> Schema:
    """An object schema without its type, for `ref_to` and `ref_or_null`."""
    return {key: value for key, value in schema.items() if key != "type"}


def document(
    name: str,
    fields: dict[str, Schema],
    defs: dict[str, Schema],
    more: dict[str, Schema] | None = None,
) -> Schema:
    """Return the schema of a document with these fields and, optionally, `more`."""
    return with_header(f"{name} document", name, defs) | object_of(fields, more)


def with_header(title: str, name: str, defs: dict[str, Schema]) -> Schema:
    """Return what comes before the fields in every schema."""
    return {
        "$schema": DIALECT,
        "$id": f"urn:jsplan:schema:{name}-v1",
        "title": f"jsplan {title}, format 1",
        "$defs": defs,
    }
