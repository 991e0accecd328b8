"""The small parts that the schema of workspace files is made of.

Null is as good as a key left out, and `${…}` may stand for a value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Schema = dict[str, Any]


def closed_object(
    properties: dict[str, Schema], required: Iterable[str] = (), description: str = ""
) -> Schema:
    """Return the schema of a mapping with these keys and no others."""
    out: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if names := sorted(required):
        out["required"] = names
    return {"description": description} | out if description else out


def ref(name: str, description: str = "") -> Schema:
    """Return a reference to a definition of the same schema."""
    return {"$ref": f"#/$defs/{name}"} | ({"description": description} if description else {})


def text(description: str = "") -> Schema:
    """Return the schema of text."""
    return ref("text", description)


def any_of(*schemas: Schema, description: str = "") -> Schema:
    """Return the schema of a value that fits one of these."""
    return ({"description": description} if description else {}) | {"anyOf": list(schemas)}


def or_reference(schema: Schema, description: str = "") -> Schema:
    """Return the schema, a `${…}` in its place, or null."""
    return any_of(schema, ref("reference"), {"type": "null"}, description=description)


def choice(*values: str, description: str = "") -> Schema:
    """Return the schema of one of these values."""
    return or_reference({"enum": list(values)}, description)


def flag(description: str = "") -> Schema:
    """Return the schema of true or false."""
    return ref("flag", description)


def list_of(items: Schema, description: str = "") -> Schema:
    """Return the schema of a list."""
    return ({"description": description} if description else {}) | {
        "type": ["array", "null"],
        "items": items,
    }


def map_of(values: Schema, description: str = "") -> Schema:
    """Return the schema of a mapping with any keys."""
    return ({"description": description} if description else {}) | {
        "type": ["object", "null"],
        "additionalProperties": values,
    }


def texts(description: str = "") -> Schema:
    """Return the schema of a list of text; one text alone is a list of one."""
    return any_of(
        {"type": ["string", "null"]},
        {"type": "array", "items": {"type": "string"}},
        description=description,
    )
