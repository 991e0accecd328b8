"""The JSON Schema of workspace files, for editors.

It is generated from the grammar and the field tables. It has the keys and their types, not the
rules between keys and files.
"""

from __future__ import annotations

import re
from typing import Final

from jsplan.config.files import TOP_LEVEL_KEYS
from jsplan.config.resource_schema import fields_schema, resource_definitions, settings_schema
from jsplan.config.schema_parts import (
    Schema,
    any_of,
    closed_object,
    list_of,
    map_of,
    or_reference,
    ref,
    texts,
)
from jsplan.config.sections import Key, Section, mapping
from jsplan.config.tables.changes import BACKFILL, MOVED, RELOCATE, REMOVED
from jsplan.config.tables.connectivity import BACKEND, CONNECTION, DOMAINS, IMPORT
from jsplan.config.tables.resources import (
    KV_FOLDER,
    KV_VALUE,
    LIFECYCLE,
    MESSAGE_SCHEDULE,
    OBJECT_FOLDER,
    POSITION,
    RESOURCE_LINT,
    STORED_OBJECT,
)
from jsplan.config.tables.settings import DRIFT, LEVEL, OWNERSHIP
from jsplan.documents.json_schema import DIALECT
from jsplan.resources import TABLES

_SECTIONS: Final = (
    CONNECTION, DOMAINS, IMPORT, BACKEND, BACKFILL, MOVED, RELOCATE, REMOVED, DRIFT, OWNERSHIP,
    LIFECYCLE, RESOURCE_LINT, POSITION, KV_VALUE, KV_FOLDER, STORED_OBJECT, OBJECT_FOLDER,
    MESSAGE_SCHEDULE,
)  # fmt: skip
_LINK: Final = re.compile(r"\[([^]]*)\]\([^)]*\)")
_NAME_KEYS: Final = ("name", "bucket", "durable_name")


def workspace_schema() -> Schema:
    """Return the schema of `jsplan.yaml` and of the files that it includes."""
    properties = _top_level()
    assert properties.keys() == set(TOP_LEVEL_KEYS), "every key of the grammar has its schema"
    return {
        "$schema": DIALECT,
        "$id": "urn:jsplan:schema:workspace-v1",
        "title": "jsplan workspace file, format 1",
        "$defs": _definitions(),
        **closed_object(properties),
        "patternProperties": {"^x-": {"description": "Ignored: a place for YAML anchors."}},
    }


def _definitions() -> dict[str, Schema]:
    duration = r"^\s*-?(0|(\d+(\.\d+)?(ms|us|µs|ns|[yMwdhms]))+)\s*$"
    size = r"^\s*-?\d+(\.\d+)?\s*([KMGTPEkmgtpe]([iI]?[bB])?|[bB])?\s*$"
    time = r"^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)$"
    return {
        "text": {"type": ["string", "null"]},
        "flag": or_reference({"type": "boolean"}),
        "duration_or_reference": or_reference(ref("duration")),
        "reference": {
            "description": "A value of ${var.x}, ${domain} or ${domain.key}.",
            "type": "string",
            "pattern": r"\$\{",
        },
        "duration": any_of(
            {"type": "integer"},
            {"type": "string", "pattern": duration},
            description="30d, 1h30m, 500ms (units y M w d h m s ms us ns); integers are ns.",
        ),
        "size": any_of(
            {"type": "integer"},
            {"type": "string", "pattern": size},
            description="10GiB, 512MB, 1024-based; integers are bytes.",
        ),
        "time": {"description": "2026-01-31T12:00:00Z", "type": "string", "pattern": time},
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
        **resource_definitions(),
        **{name: section_schema(section) for name, section in all_sections().items()},
    }


def all_sections() -> dict[str, Section]:
    """Return every table by its id."""
    found: dict[str, Section] = {}
    waiting = list(_SECTIONS)
    while waiting:
        section = waiting.pop()
        if found.setdefault(section.id, section) is section:
            waiting += [inner for key in section.keys for inner in key.type.sections]
    return found


def section_schema(section: Section) -> Schema:
    """Return the schema of a mapping from its table."""
    out = closed_object(
        {key.name: _key_schema(key) for key in section.keys},
        (key.name for key in section.keys if key.required),
    )
    return out | {"anyOf": [{"required": [n]} for n in section.one_of]} if section.one_of else out


def _key_schema(key: Key) -> Schema:
    schema = key.type.schema | {"description": _LINK.sub(r"\1", key.doc)}
    default = key.shown_default
    return schema if default in (None, ()) else schema | {"default": default}


def _top_level() -> dict[str, Schema]:
    return {
        "jsplan": {"description": "The format version.", "const": 1},
        "workspace": {
            "description": "The name of the workspace.",
            "type": "string",
            "pattern": "^[a-z0-9][a-z0-9_-]*$",
        },
        "include": texts("Files to read besides, relative to this one; globs work."),
        "vars": map_of({}, "Variables with their defaults; ~ is a variable that must be given."),
        "environments": map_of(
            any_of(closed_object(_environment_sections()), {"type": "null"}),
            "Laid over the sections of the same names with -e NAME.",
        ),
        **_environment_sections(),
        "imports": list_of(ref(IMPORT.id), "How one domain's account reaches another's JetStream."),
        "defaults": _defaults(),
        "streams": list_of(ref("stream"), "Streams with their consumers."),
        "overrides": list_of(
            _override(),
            "Fields for resources that an address or a glob names. They are applied last.",
        ),
        "consumers": list_of(ref("consumer"), "Consumers of streams that another team owns."),
        "kv": list_of(ref("kv"), "KV buckets."),
        "object_stores": list_of(ref("object_store"), "Object stores."),
        "backfills": list_of(ref(BACKFILL.id), "Ranges of one stream to copy into another."),
        "moved": list_of(
            ref(MOVED.id),
            "Addresses that changed while the resource did not.",
        ),
        "relocate": list_of(
            ref(RELOCATE.id),
            "Streams that move with their messages and consumers.",
        ),
        "removed": list_of(
            ref(REMOVED.id), "Resources that left the files: destroyed or forgotten."
        ),
        "drift": mapping(DRIFT).schema,
        "lint": map_of(LEVEL.schema, "The level of each finding."),
        "ownership": mapping(OWNERSHIP).schema,
    }


def _environment_sections() -> dict[str, Schema]:
    """Return the sections that an environment may overlay."""
    return {
        "vars": map_of({}, "Variables with their defaults; ~ is a variable that must be given."),
        "connections": map_of(
            any_of(ref(CONNECTION.id), {"type": "null"}), "How to reach NATS accounts."
        ),
        "domains": map_of(
            any_of(ref(DOMAINS.id), {"type": "null"}),
            "JetStreams by name; store-{001..200} is two hundred.",
        ),
        "backend": any_of(
            ref(BACKEND.id), {"type": "null"}, description="Where the state is kept."
        ),
    }


def _defaults() -> Schema:
    properties: dict[str, Schema] = {"domain": ref("domains")}
    for kind, table in TABLES.items():
        fields = {
            name: schema for name, schema in fields_schema(table).items() if name not in _NAME_KEYS
        }
        properties[kind] = any_of(
            closed_object(
                fields | {name: s for name, s in settings_schema().items() if name != "depends_on"}
            ),
            {"type": "null"},
            description=f"Fields of every {kind.replace('_', ' ')} that does not set them.",
        )
    return closed_object(properties)


def _override() -> Schema:
    """Return the schema of an override: the fields of all kinds, as addresses may be globs."""
    shapes: dict[str, list[Schema]] = {}
    for table in TABLES.values():
        for name, schema in fields_schema(table).items():
            if name not in _NAME_KEYS and schema not in shapes.setdefault(name, []):
                shapes[name].append(schema)
    fields = {
        name: found[0] if len(found) == 1 else any_of(*found)
        for name, found in shapes.items()
        if found
    }
    own = {"address": ref("address"), POSITION.id: ref(POSITION.id)}
    return closed_object(fields | settings_schema() | own, ("address",))
