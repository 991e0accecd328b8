"""The schema of a field of a resource, and of a mapping in one, from the field tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jsplan.config.schema_parts import (
    Schema,
    any_of,
    closed_object,
    or_reference,
    ref,
    texts,
)
from jsplan.resources import ABSENT, TABLES, Field, Table
from jsplan.resources.fields import PERCENT_PATTERN
from jsplan.resources.nested import ORIGIN
from jsplan.resources.server_features import SERVER_VERSIONS

#: The definitions of types without limits: with references, and null.
_SHARED: Final = {
    "bool": "flag", "duration": "duration_or_reference", "size": "size_or_reference",
}  # fmt: skip


def field_schema(row: Field) -> Schema:
    """Return the schema of one field as the files may write it.

    Units are text or integers, `${…}` is a reference, null is the server's default.
    """
    described = _described(row)
    shared = _SHARED.get(row.type)
    schema = ref(shared, described) if shared else or_reference(_typed(row), described)
    default = row.default
    if default is not ABSENT and default is not None and default not in ("", {}, []):
        schema["default"] = default
    return schema


def _described(row: Field) -> str:
    return row.doc + (f" Needs nats-server {SERVER_VERSIONS[row.level]}." if row.level else "")


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
