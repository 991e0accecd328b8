"""The schema of streams, consumers, buckets and what they contain, from the field tables."""

from __future__ import annotations

from typing import Final

from jsplan.address import Kind
from jsplan.config.field_schema import field_schema
from jsplan.config.kv_entries import ENTRY_KEYS, OBJECT_KEYS
from jsplan.config.schema_parts import (
    Schema,
    any_of,
    closed_object,
    list_of,
    map_of,
    ref,
    text,
    texts,
)
from jsplan.config.sections import Section
from jsplan.config.tables.resources import (
    KV_FOLDER,
    OBJECT_FOLDER,
    POSITION,
    STORED_OBJECT,
    long_form,
)
from jsplan.resources import CONSUMER, TABLES, Table


def resource_definitions() -> dict[str, Schema]:
    """Return the definitions that entries of resources refer to, by name."""
    return {
        "stream": _entry("stream", TABLES["stream"]),
        "consumer": _entry("consumer", CONSUMER),
        "nested_consumer": _nested_consumer(),
        "kv": _with_contents("kv", ENTRY_KEYS, long_form(), KV_FOLDER),
        "object_store": _with_contents(
            "object_store", OBJECT_KEYS, ref(STORED_OBJECT.id), OBJECT_FOLDER
        ),
    }


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
    properties |= {"stream": text("The stream that it belongs to."), POSITION.id: ref(POSITION.id)}
    return closed_object(properties, ("stream",)) | _NAMED


def _with_contents(kind: Kind, keys: tuple[str, ...], value: Schema, table: Section) -> Schema:
    found, (inline, folders) = _entry(kind, TABLES[kind]), keys
    own, folder = map_of(value, f"The {inline} that the files own, by name."), ref(table.id)
    found["properties"][inline] = any_of(own, {"type": "null"})
    found["properties"][folders] = any_of(
        folder, {"type": "array", "items": folder}, {"type": "null"}
    )
    return found


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
