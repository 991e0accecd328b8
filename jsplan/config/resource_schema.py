"""The schema of streams, consumers, buckets and what they contain, from the field tables."""

from __future__ import annotations

from typing import Final

from jsplan.address import Kind
from jsplan.codes import HAZARDS
from jsplan.config.kv_entries import ENTRY_KEYS, OBJECT_KEYS
from jsplan.config.position import POSITION, position_schema
from jsplan.config.schedules import SCHEDULE_FIELDS
from jsplan.config.schema_parts import (
    Schema,
    any_of,
    choice,
    closed_object,
    flag,
    list_of,
    map_of,
    or_reference,
    ref,
    text,
    texts,
)
from jsplan.resources import ABSENT, CONSUMER, TABLES, Field, Table
from jsplan.resources.fields import PERCENT_PATTERN
from jsplan.resources.kv_entry import KV_ENTRY, TTL
from jsplan.resources.message_schedule import SCHEDULE
from jsplan.resources.nested import ORIGIN
from jsplan.resources.server_features import SERVER_VERSIONS


def resource_definitions() -> dict[str, Schema]:
    """Return the definitions that entries of resources refer to, by name."""
    return {
        "lifecycle": _lifecycle(),
        "resource_lint": closed_object(
            {
                "ignore": list_of(
                    closed_object({"code": text(), "reason": text()}, ("code", "reason"))
                )
            }
        ),
        POSITION: position_schema(),
        "stream": _entry("stream", TABLES["stream"]),
        "consumer": _entry("consumer", CONSUMER),
        "nested_consumer": _nested_consumer(),
        "kv": _with_contents("kv", ENTRY_KEYS, "kv_value", "kv_folder"),
        "kv_value": _kv_value(),
        "kv_folder": _kv_folder(),
        "object_store": _with_contents(
            "object_store", OBJECT_KEYS, "stored_object", "object_folder"
        ),
        "stored_object": _stored_object(),
        "schedule": _schedule(),
        "object_folder": _object_folder(),
    }


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


def fields_schema(table: Table) -> dict[str, Schema]:
    """Return the schemas of all fields of a table, by name."""
    return {row.name: field_schema(row) for row in table.rows}


def _entry(kind: str, table: Table) -> Schema:
    properties = (
        fields_schema(table)
        | settings_schema()
        | {
            "domain": ref("domains"),
            "environments": texts("Only in these environments."),
            "config_file": text(
                "A file with a configuration, or with the output of `nats … info --json`;"
                " keys beside it win."
            ),
        }
    )
    if kind == "stream":
        properties["consumers"] = list_of(ref("nested_consumer"), "Its consumers.")
        properties["schedules"] = any_of(
            map_of(ref("schedule"), "Message schedules that the files own, by subject."),
            {"type": "null"},
        )
        properties["copy_of"] = text(
            "The address of a declared stream whose fields are the base; keys beside it win."
        )
    if kind != "consumer":
        return closed_object(properties, ("name" if kind == "stream" else "bucket",))
    properties |= {"stream": text("The stream that it belongs to."), POSITION: ref(POSITION)}
    return closed_object(properties, ("stream",)) | _NAMED


def _with_contents(kind: Kind, keys: tuple[str, ...], value: str, folder: str) -> Schema:
    found, (inline, folders) = _entry(kind, TABLES[kind]), keys
    own = map_of(ref(value), f"The {inline} that the files own, by name.")
    found["properties"][inline] = any_of(own, {"type": "null"})
    found["properties"][folders] = any_of(
        ref(folder), {"type": "array", "items": ref(folder)}, {"type": "null"}
    )
    return found


def _stored_object() -> Schema:
    file = text("The file with its content, relative to this one.")
    return closed_object({"file": file, "lifecycle": _kv_settings()["lifecycle"]}, ("file",))


def _schedule() -> Schema:
    fields = {row.name: field_schema(row) for row in SCHEDULE.rows if row.name in SCHEDULE_FIELDS}
    keys: dict[str, Schema] = {
        "payload": {"description": "Text and numbers as written, anything else as JSON."},
        "file": text("A file whose content is the payload, relative to this one."),
    }
    return closed_object(fields | keys | _kv_settings(), ("target",))


def _object_folder() -> Schema:
    keys: dict[str, Schema] = {
        "dir": text("A folder: each file below it is an object, and its path the name."),
        "prefix": text("What each name begins with; it ends with a slash."),
        "prune": flag("Delete other objects that begin with the prefix."),
    }
    return closed_object(keys | {"lifecycle": _kv_settings()["lifecycle"]}, ("dir",))


def _kv_settings() -> dict[str, Schema]:
    return {
        "sensitive": flag("Show only the digest of the value."),
        "lifecycle": any_of(ref("lifecycle"), {"type": "null"}),
    }


def _kv_value() -> Schema:
    """A value, or the long form: a mapping with `value` or `file`."""
    value: Schema = {"description": "Text and numbers as written, anything else as JSON."}
    file = text("A file whose content is the value, relative to this one.")
    ttl = field_schema(KV_ENTRY.by_name[TTL])
    long_form = [
        closed_object({name: schema, "ttl": ttl} | _kv_settings(), (name,))
        for name, schema in (("value", value), ("file", file))
    ]
    return any_of(
        {"type": ["string", "number", "boolean", "array"]},
        *long_form,
        {"type": "object", "not": {"anyOf": [{"required": [n]} for n in ("value", "file")]}},
        description="The value of a key.",
    )


def _kv_folder() -> Schema:
    keys: dict[str, Schema] = {
        "dir": text("A folder: each file below it is a value, and its path the key."),
        "prefix": text("What each key begins with; it ends with a dot."),
        "prune": flag("Delete other keys that begin with the prefix."),
    }
    return closed_object(keys | _kv_settings(), ("dir",))


#: A consumer is named by either, which implies the other.
_NAMED: Final[Schema] = {"anyOf": [{"required": ["name"]}, {"required": ["durable_name"]}]}


def _nested_consumer() -> Schema:
    entry = _entry("consumer", CONSUMER)["properties"]
    return (
        closed_object(
            {name: schema for name, schema in entry.items() if name not in ("stream", "domain")}
        )
        | _NAMED
    )


def settings_schema() -> dict[str, Schema]:
    """Return the schemas of what an entry may have beside its fields."""
    return {
        "lifecycle": any_of(ref("lifecycle"), {"type": "null"}),
        "lint": any_of(ref("resource_lint"), {"type": "null"}),
        "depends_on": texts("Addresses, or globs over them, that must be there before."),
        "x_raw": map_of({}, "Fields of a server newer than this release, passed through."),
    }


def _lifecycle() -> Schema:
    allowed: dict[str, Schema] = {
        "code": {"enum": list(HAZARDS)},
        "reason": {"type": "string"},
        "until": ref("date"),
    }
    return closed_object(
        {
            "prevent_destroy": flag("Refuse to delete it, also once it has left the files."),
            "ignore_changes": texts("Fields that others change."),
            "on_replace": choice(
                "refuse",
                "recreate",
                "preserve",
                description="What to do when a change needs a new object.",
            ),
            "allow_hazards": list_of(
                closed_object(allowed, ("code", "reason")), "Hazards that are allowed."
            ),
        }
    )
