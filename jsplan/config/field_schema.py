"""The schema of one field of a resource, from its row in a field table."""

from __future__ import annotations

from jsplan.config.schema_parts import (
    Schema,
    any_of,
    closed_object,
    or_reference,
    ref,
    text,
    texts,
)
from jsplan.resources import ABSENT, Field, Table
from jsplan.resources.fields import PERCENT_PATTERN
from jsplan.resources.nested import ORIGIN
from jsplan.resources.server_features import SERVER_VERSIONS


def field_schema(row: Field) -> Schema:
    """Return the schema of one field as the files may write it.

    Units are text or integers, `${…}` is a reference, null is the server's default.
    """
    schema = or_reference(_typed(row), _described(row))
    default = row.default
    if default is not ABSENT and default is not None and default not in ("", {}, []):
        schema["default"] = default
    return schema


def _described(row: Field) -> str:
    return row.doc + (f" Needs nats-server {SERVER_VERSIONS[row.level]}." if row.level else "")


def _typed(row: Field) -> Schema:
    if row.table is not None:
        return (
            _nested(row.table)
            if row.type == "object"
            else {"type": "array", "items": _nested(row.table)}
        )
    match row.type:
        case "string":
            limits = {
                "maxLength": row.max_length,
                "pattern": f"^({row.pattern})$" if row.pattern else None,
            }
            return {"type": "string"} | {
                key: value for key, value in limits.items() if value is not None
            }
        case "bool":
            return {"type": "boolean"}
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


def _nested(table: Table) -> Schema:
    properties = {row.name: field_schema(row) for row in table.rows}
    if table is ORIGIN:
        properties["domain"] = texts(
            "The domain of the origin: a name, or for sources also a list, a glob or label:edge."
        )
        properties["deliver"] = text(
            "The prefix under which the origin's account delivers; requires `domain`."
        )
    return closed_object(properties, (row.name for row in table.rows if row.required))
