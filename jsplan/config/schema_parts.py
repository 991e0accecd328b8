"""The small parts that the schema of workspace files is made of.

Null is as good as a key left out, and `${…}` may stand for a value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

Schema = dict[str, Any]


def closed_object(properties: dict[str, Schema], required: Iterable[str] = ()) -> Schema:
    """Return the schema of a mapping with these keys and no others."""
    out: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if names := sorted(required):
        out["required"] = names
    return out


def ref(name: str, description: str = "") -> Schema:
    """Return a reference to a definition of the same schema."""
    return {"$ref": f"#/$defs/{name}"} | ({"description": description} if description else {})


def any_of(*schemas: Schema, description: str = "") -> Schema:
    """Return the schema of a value that fits one of these."""
    return ({"description": description} if description else {}) | {"anyOf": list(schemas)}


def or_reference(schema: Schema, description: str = "") -> Schema:
    """Return the schema, a `${…}` in its place, or null."""
    return any_of(schema, ref("reference"), {"type": "null"}, description=description)


def list_of(items: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": ["array", "null"], "items": items}


def map_of(values: Schema) -> Schema:
    """Return the schema of a mapping with any keys."""
    return {"type": ["object", "null"], "additionalProperties": values}


def texts(description: str = "") -> Schema:
    """Return the schema of a list of text; one text alone is a list of one."""
    return any_of(
        {"type": ["string", "null"]},
        {"type": "array", "items": {"type": "string"}},
        description=description,
    )


_DURATION: Final = r"^\s*-?(0|(\d+(\.\d+)?(ms|us|µs|ns|[yMwdhms]))+)\s*$"
_SIZE: Final = r"^\s*-?\d+(\.\d+)?\s*([KMGTPEkmgtpe]([iI]?[bB])?|[bB])?\s*$"
_TIME: Final = r"^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)$"
#: The definitions of the types of values.
VALUES: Final[dict[str, Schema]] = {
    "text": {"type": ["string", "null"]},
    "flag": or_reference({"type": "boolean"}),
    "reference": {
        "description": "A value of ${var.x}, ${domain} or ${domain.key}.",
        "type": "string",
        "pattern": r"\$\{",
    },
    "duration": any_of(
        {"type": "integer"},
        {"type": "string", "pattern": _DURATION},
        description="30d, 1h30m, 500ms (units y M w d h m s ms us ns); integers are ns.",
    ),
    "duration_or_reference": or_reference(ref("duration")),
    "size": any_of(
        {"type": "integer"},
        {"type": "string", "pattern": _SIZE},
        description="10GiB, 512MB, 1024-based; integers are bytes.",
    ),
    "size_or_reference": or_reference(ref("size")),
    "time": {"description": "2026-01-31T12:00:00Z", "type": "string", "pattern": _TIME},
    "date": {
        "description": "2026-12-31",
        "type": "string",
        "pattern": r"^\d{4}-\d\d-\d\d$|\$\{",
    },
    "address": {
        "description": "DOMAIN/KIND/NAME, such as hub/stream/ORDERS, or a glob: store-*/**.",
        "type": "string",
    },
    "domains": texts(
        'The domains: a name, a list, a glob, label:edge, or "!store-099" to leave one out.'
    ),
}
