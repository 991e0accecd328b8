"""The parts of which the schema of workspace files is made, and the schema of fields.

Null is as good as a key left out, and `${…}` may stand for a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from jsplan.resources import ABSENT, TABLES, Field, Table
from jsplan.resources.fields import PERCENT_PATTERN
from jsplan.resources.nested import ORIGIN
from jsplan.resources.server_features import SERVER_VERSIONS

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


# --- fields of resources --------------------------------------------------------------------------

#: The definitions of types without limits: with references, and null.
_SHARED: Final = {
    "bool": "flag", "duration": "duration_or_reference", "size": "size_or_reference",
}  # fmt: skip


def field_schema(row: Field) -> Schema:
    """Return the schema of one field as the files may write it.

    Units are text or integers, `${…}` is a reference, null is the server's default.
    """
    described = row.doc + (f" Needs nats-server {SERVER_VERSIONS[row.level]}." if row.level else "")
    shared = _SHARED.get(row.type)
    schema = ref(shared, described) if shared else or_reference(_typed(row), described)
    default = row.default
    if default is not ABSENT and default is not None and default not in ("", {}, []):
        schema["default"] = default
    return schema


def _typed(row: Field) -> Schema:
    if row.table is not None:
        nested = ref(row.table.kind)
        return nested if row.type == "object" else {"type": "array", "items": nested}
    match row.type:
        case "string":
            limits = {
                "maxLength": row.max_length,
                "pattern": f"^({row.pattern})$" if row.pattern else None,
            }
            return {"type": "string"} | {
                key: value for key, value in limits.items() if value is not None
            }
        case "int":
            limits = {"minimum": row.minimum, "maximum": row.maximum}
            return {"type": "integer"} | {
                key: value for key, value in limits.items() if value is not None
            }
        case "enum":
            return {"enum": list(row.values)}
        case "percent":
            return any_of(
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": f"^({PERCENT_PATTERN})?$"},
            )
        case "strings":
            return {"type": "array", "items": {"type": "string"}}
        case "durations":
            return {"type": "array", "items": any_of(ref("duration"), ref("reference"))}
        case "metadata":
            return {"type": "object", "additionalProperties": {"type": "string"}}
        case _:
            return ref(row.type)


def nested_tables() -> Iterator[Table]:
    """Yield the tables of the mappings in fields, each once."""
    waiting, found = list(TABLES.values()), set[str]()
    while waiting:
        for row in waiting.pop().rows:
            if row.table is not None and row.table.kind not in found:
                found.add(row.table.kind)
                waiting.append(row.table)
                yield row.table


def nested_schema(table: Table) -> Schema:
    """Return the schema of a mapping in a field."""
    properties = {row.name: field_schema(row) for row in table.rows}
    if table is ORIGIN:
        properties["domain"] = texts(
            "The domain of the origin: a name, or for sources also a list, a glob or label:edge."
        )
        properties["deliver"] = ref(
            "text", "The prefix under which the origin's account delivers; requires `domain`."
        )
    return closed_object(properties, (row.name for row in table.rows if row.required))
