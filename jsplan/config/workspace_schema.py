"""The JSON Schema of workspace files, for editors.

It is generated from the grammar and the field tables. It has the keys and their types, not the
rules between keys and files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from jsplan.address import Kind
from jsplan.codes import HAZARDS
from jsplan.config.files import TOP_LEVEL_KEYS
from jsplan.config.kv_entries import ENTRY_KEYS, OBJECT_KEYS
from jsplan.config.position import POSITION, position_schema
from jsplan.config.schedules import SCHEDULE_FIELDS
from jsplan.documents.schema_types import DIALECT
from jsplan.resources import ABSENT, CONSUMER, TABLES, Field, Table
from jsplan.resources.fields import PERCENT_PATTERN
from jsplan.resources.kv_entry import KV_ENTRY, TTL
from jsplan.resources.message_schedule import SCHEDULE
from jsplan.resources.nested import ORIGIN
from jsplan.resources.server_features import SERVER_VERSIONS

Schema = dict[str, Any]

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
        **_object(properties),
        "patternProperties": {"^x-": {"description": "Ignored: a place for YAML anchors."}},
    }


# --- small parts ----------------------------------------------------------------------------------


def _object(
    properties: dict[str, Schema], required: Iterable[str] = (), description: str = ""
) -> Schema:
    out: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if names := sorted(required):
        out["required"] = names
    return {"description": description} | out if description else out


def _ref(name: str, description: str = "") -> Schema:
    return {"$ref": f"#/$defs/{name}"} | ({"description": description} if description else {})


def _text(description: str = "", **more: Any) -> Schema:
    return (
        ({"description": description} if description else {}) | {"type": ["string", "null"]} | more
    )


def _any(*schemas: Schema, description: str = "") -> Schema:
    return ({"description": description} if description else {}) | {"anyOf": list(schemas)}


def _or_reference(schema: Schema, description: str = "") -> Schema:
    """Return the schema, a `${…}` in its place, or null."""
    return _any(schema, _ref("reference"), {"type": "null"}, description=description)


def _choice(*values: str, description: str = "") -> Schema:
    return _or_reference({"enum": list(values)}, description)


def _flag(description: str = "") -> Schema:
    return _or_reference({"type": "boolean"}, description)


def _list(items: Schema, description: str = "") -> Schema:
    return ({"description": description} if description else {}) | {
        "type": ["array", "null"],
        "items": items,
    }


def _map(values: Schema, description: str = "") -> Schema:
    return ({"description": description} if description else {}) | {
        "type": ["object", "null"],
        "additionalProperties": values,
    }


def _texts(description: str = "") -> Schema:
    """Return the schema of a list of text; one text alone is a list of one."""
    return _any(
        {"type": ["string", "null"]},
        {"type": "array", "items": {"type": "string"}},
        description=description,
    )


def _definitions() -> dict[str, Schema]:
    duration = r"^\s*-?(0|(\d+(\.\d+)?(ms|us|µs|ns|[yMwdhms]))+)\s*$"
    size = r"^\s*-?\d+(\.\d+)?\s*([KMGTPEkmgtpe]([iI]?[bB])?|[bB])?\s*$"
    time = r"^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)$"
    return {
        "reference": {
            "description": "A value of ${var.x}, ${domain} or ${domain.key}.",
            "type": "string",
            "pattern": r"\$\{",
        },
        "duration": _any(
            {"type": "integer"},
            {"type": "string", "pattern": duration},
            description="30d, 1h30m, 500ms (units y M w d h m s ms us ns); integers are ns.",
        ),
        "size": _any(
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
        "domains": _texts(
            'The domains: a name, a list, a glob, label:edge, or "!store-099" to leave one out.'
        ),
        "lifecycle": _lifecycle(),
        "resource_lint": _object(
            {"ignore": _list(_object({"code": _text(), "reason": _text()}, ("code", "reason")))}
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


# --- from the field tables ------------------------------------------------------------------------


def field_schema(row: Field) -> Schema:
    """Return the schema of one field as the files may write it.

    Units are text or integers, `${…}` is a reference, null is the server's default.
    """
    schema = _or_reference(_typed(row), _described(row))
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
            return _any(
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": f"^({PERCENT_PATTERN})?$"},
            )
        case "strings":
            return {"type": "array", "items": {"type": "string"}}
        case "durations":
            return {"type": "array", "items": _any(_ref("duration"), _ref("reference"))}
        case "metadata":
            return {"type": "object", "additionalProperties": {"type": "string"}}
        case _:
            return _ref(row.type)


def _nested(table: Table) -> Schema:
    properties = {row.name: field_schema(row) for row in table.rows}
    if table is ORIGIN:
        properties["domain"] = _texts(
            "The domain of the origin: a name, or for sources also a list, a glob or label:edge."
        )
        properties["deliver"] = _text(
            "The prefix under which the origin's account delivers; goes with `domain`."
        )
    return _object(properties, (row.name for row in table.rows if row.required))


def _fields(table: Table) -> dict[str, Schema]:
    return {row.name: field_schema(row) for row in table.rows}


def _entry(kind: str, table: Table) -> Schema:
    properties = (
        _fields(table)
        | _settings()
        | {
            "domain": _ref("domains"),
            "environments": _texts("Only in these environments."),
            "config_file": _text(
                "A file with a configuration, or with the output of `nats … info --json`;"
                " keys beside it win."
            ),
        }
    )
    if kind == "stream":
        properties["consumers"] = _list(_ref("nested_consumer"), "Its consumers.")
        properties["schedules"] = _any(
            _map(_ref("schedule"), "Message schedules that the files own, by subject."),
            {"type": "null"},
        )
        properties["copy_of"] = _text(
            "The address of a declared stream whose fields are the base; keys beside it win."
        )
    if kind != "consumer":
        return _object(properties, ("name" if kind == "stream" else "bucket",))
    properties |= {"stream": _text("The stream that it belongs to."), POSITION: _ref(POSITION)}
    return _object(properties, ("stream",)) | _NAMED


def _with_contents(kind: Kind, keys: tuple[str, ...], value: str, folder: str) -> Schema:
    found, (inline, folders) = _entry(kind, TABLES[kind]), keys
    own = _map(_ref(value), f"The {inline} that the files own, by name.")
    found["properties"][inline] = _any(own, {"type": "null"})
    found["properties"][folders] = _any(
        _ref(folder), {"type": "array", "items": _ref(folder)}, {"type": "null"}
    )
    return found


def _stored_object() -> Schema:
    file = _text("The file with its content, relative to this one.")
    return _object({"file": file, "lifecycle": _kv_settings()["lifecycle"]}, ("file",))


def _schedule() -> Schema:
    fields = {row.name: field_schema(row) for row in SCHEDULE.rows if row.name in SCHEDULE_FIELDS}
    keys: dict[str, Schema] = {
        "payload": {"description": "Text and numbers as written, anything else as JSON."},
        "file": _text("A file whose content is the payload, relative to this one."),
    }
    return _object(fields | keys | _kv_settings(), ("target",))


def _object_folder() -> Schema:
    keys: dict[str, Schema] = {
        "dir": _text("A folder: each file below it is an object, and its path the name."),
        "prefix": _text("What each name begins with; it ends with a slash."),
        "prune": _flag("Delete other objects that begin with the prefix."),
    }
    return _object(keys | {"lifecycle": _kv_settings()["lifecycle"]}, ("dir",))


def _kv_settings() -> dict[str, Schema]:
    return {
        "sensitive": _flag("Show only the digest of the value."),
        "lifecycle": _any(_ref("lifecycle"), {"type": "null"}),
    }


def _kv_value() -> Schema:
    """A value, or the long form: a mapping with `value` or `file`."""
    value: Schema = {"description": "Text and numbers as written, anything else as JSON."}
    file = _text("A file whose content is the value, relative to this one.")
    ttl = field_schema(KV_ENTRY.by_name[TTL])
    long_form = [
        _object({name: schema, "ttl": ttl} | _kv_settings(), (name,))
        for name, schema in (("value", value), ("file", file))
    ]
    return _any(
        {"type": ["string", "number", "boolean", "array"]},
        *long_form,
        {"type": "object", "not": {"anyOf": [{"required": [n]} for n in ("value", "file")]}},
        description="The value of a key.",
    )


def _kv_folder() -> Schema:
    keys: dict[str, Schema] = {
        "dir": _text("A folder: each file below it is a value, and its path the key."),
        "prefix": _text("What each key begins with; it ends with a dot."),
        "prune": _flag("Delete other keys that begin with the prefix."),
    }
    return _object(keys | _kv_settings(), ("dir",))


#: A consumer is named by either, which implies the other.
_NAMED: Final[Schema] = {"anyOf": [{"required": ["name"]}, {"required": ["durable_name"]}]}


def _nested_consumer() -> Schema:
    entry = _entry("consumer", CONSUMER)["properties"]
    return (
        _object(
            {name: schema for name, schema in entry.items() if name not in ("stream", "domain")}
        )
        | _NAMED
    )


def _settings() -> dict[str, Schema]:
    return {
        "lifecycle": _any(_ref("lifecycle"), {"type": "null"}),
        "lint": _any(_ref("resource_lint"), {"type": "null"}),
        "depends_on": _texts("Addresses, or globs over them, that must be there before."),
        "x_raw": _map({}, "Fields of a server newer than this release, passed through."),
    }


def _lifecycle() -> Schema:
    allowed: dict[str, Schema] = {
        "code": {"enum": list(HAZARDS)},
        "reason": {"type": "string"},
        "until": _ref("date"),
    }
    return _object(
        {
            "prevent_destroy": _flag("Refuse to delete it, also once it has left the files."),
            "ignore_changes": _texts("Fields that others change."),
            "on_replace": _choice(
                "refuse",
                "recreate",
                "preserve",
                description="What to do when a change needs a new object.",
            ),
            "allow_hazards": _list(
                _object(allowed, ("code", "reason")), "Hazards that are allowed."
            ),
        }
    )


# --- the sections ---------------------------------------------------------------------------------


def _top_level() -> dict[str, Schema]:
    return {
        "jsplan": {"description": "The format version.", "const": 1},
        "workspace": {
            "description": "The name of the workspace.",
            "type": "string",
            "pattern": "^[a-z0-9][a-z0-9_-]*$",
        },
        "include": _texts("Files to read besides, relative to this one; globs work."),
        "vars": _map({}, "Variables with their defaults; ~ is a variable that must be given."),
        "environments": _map(
            _any(_object(_environment_sections()), {"type": "null"}),
            "Laid over the sections of the same names with -e NAME.",
        ),
        **_environment_sections(),
        "imports": _list(_import_row(), "How one domain's account reaches another's JetStream."),
        "defaults": _defaults(),
        "streams": _list(_ref("stream"), "Streams with their consumers."),
        "overrides": _list(
            _override(),
            "Fields for resources that an address or a glob names. They are applied last.",
        ),
        "consumers": _list(_ref("consumer"), "Consumers of streams that another team owns."),
        "kv": _list(_ref("kv"), "KV buckets."),
        "object_stores": _list(_ref("object_store"), "Object stores."),
        "backfills": _list(_backfill(), "Ranges of one stream to copy into another."),
        "moved": _list(
            _object({"from": _ref("address"), "to": _ref("address")}, ("from", "to")),
            "Addresses that changed while the resource did not.",
        ),
        "relocate": _list(
            _object({"from": _ref("address"), "to": _ref("address")}, ("from", "to")),
            "Streams that move with their messages and consumers.",
        ),
        "removed": _list(_removed(), "Resources that left the files: destroyed or forgotten."),
        "drift": _drift(),
        "lint": _map(_choice("ignore", "warning", "error"), "The level of each finding."),
        "ownership": _object(
            {"marker": _flag("Write an owner into metadata, so that two workspaces cannot fight.")}
        ),
    }


def _environment_sections() -> dict[str, Schema]:
    """Return the sections that an environment may overlay."""
    return {
        "vars": _map({}, "Variables with their defaults; ~ is a variable that must be given."),
        "connections": _map(_connection(), "How to reach NATS accounts."),
        "domains": _map(
            _any(_domain(), {"type": "null"}),
            "JetStreams by name; store-{001..200} is two hundred.",
        ),
        "backend": _any(_backend(), {"type": "null"}, description="Where the state is kept."),
    }


def _connection() -> Schema:
    names = (
        "url",
        "context",
        "user",
        "password",
        "token",
        "creds",
        "nkey",
        "inbox_prefix",
        "account",
    )
    tls = _object({"ca": _text(), "cert": _text(), "key": _text(), "handshake_first": _flag()})
    properties = {name: _text() for name in names} | {
        "tls": tls,
        "timeout": _or_reference(_ref("duration")),
    }
    return _any(_object(properties), {"type": "null"})


def _domain() -> Schema:
    return _object(
        {
            "connection": _text("The connection that leads to it."),
            "js_domain": _text("The server's own name for it, null for none. Default: the key."),
            "api_prefix": _text("The prefix of its API. Default: $JS.<js_domain>.API."),
            "labels": _texts("Labels, which label:NAME selects."),
            "vars": _map({}, "The values of ${domain.x}."),
            "may_be_offline": _or_reference(_ref("duration"), "How long offline is no error."),
            "same_as": _text("The domain that this is, over another connection."),
            "balance": _any(_object({"leaders": _flag("Spread leaders.")}), {"type": "null"}),
        }
    )


def _backend() -> Schema:
    return _object(
        {
            "local": _any(_object({"path": _text("Relative to jsplan.yaml.")}), {"type": "null"}),
            "kv": _object(
                {
                    "domain": _text(
                        "The domain of the bucket. Default: `defaults.domain`, or the only one."
                    ),
                    "bucket": _text("The KV bucket. It is created if missing."),
                    "lock_ttl": _or_reference(
                        _ref("duration"), "How long a lock outlives its holder. Default: 1m."
                    ),
                },
                ("bucket",),
            ),
        }
    )


def _import_row() -> Schema:
    properties = {
        "from": _text(),
        "into": _text(),
        "api": _text(),
        "deliver": _text(),
        "consumers": _texts(),
    }
    return _object(properties, ("from", "into", "api"))


def _defaults() -> Schema:
    properties: dict[str, Schema] = {"domain": _ref("domains")}
    for kind, table in TABLES.items():
        fields = {name: schema for name, schema in _fields(table).items() if name not in _NAME_KEYS}
        properties[kind] = _any(
            _object(fields | {name: s for name, s in _settings().items() if name != "depends_on"}),
            {"type": "null"},
            description=f"Fields of every {kind.replace('_', ' ')} that does not set them.",
        )
    return _object(properties)


def _override() -> Schema:
    """Return the schema of an override: the fields of all kinds, as addresses may be globs."""
    shapes: dict[str, list[Schema]] = {}
    for table in TABLES.values():
        for name, schema in _fields(table).items():
            if name not in _NAME_KEYS and schema not in shapes.setdefault(name, []):
                shapes[name].append(schema)
    fields = {
        name: found[0] if len(found) == 1 else _any(*found)
        for name, found in shapes.items()
        if found
    }
    own = {"address": _ref("address"), POSITION: _ref(POSITION)}
    return _object(fields | _settings() | own, ("address",))


def _removed() -> Schema:
    properties = {
        "address": _ref("address"),
        "destroy": _flag("false forgets it and leaves it on the server."),
        "prevent_destroy": _flag("false removes the guard that is kept in state."),
    }
    return _object(properties, ("address", "destroy"))


def _drift() -> Schema:
    mute = {
        "address": _ref("address"),
        "fields": _texts(),
        "owner": _text(),
        "reason": _text(),
        "until": _ref("date"),
    }
    hook = _object({"url": _text(), "headers": _map({"type": "string"})}, ("url",))
    sinks = [
        _object({"webhook": hook}, ("webhook",)),
        _object({"subject": _text(), "domain": _text()}, ("subject",)),
        _object({"file": _text()}, ("file",)),
    ]
    return _object(
        {
            "ignore": _list(_ref("address"), "Never compared."),
            "mute": _list(
                _object(mute, ("address", "owner", "reason")),
                "Known drift that is not reported, until a date.",
            ),
            "sinks": _list(_any(*sinks), "Where the scheduled job reports."),
        }
    )


def _backfill() -> Schema:
    origin, target = _any(_side(_BOUNDS), {"type": "array", "items": _side(_BOUNDS)}), _side({})
    return _object(
        {
            "name": {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9_-]*$|\$\{"},
            "from": origin,
            "to": target,
            "order": _choice("stream", "subject", "none"),
            "strategy": _choice("auto", "native", "snapshot", "spark"),
            "mode": _choice("tagged", "exact"),
            "oversize": _choice("error", "skip"),
            "rate": _any({"type": ["integer", "null"]}, {"type": "string"}, description="2MB/s"),
            "window": _text("01:00-05:00"),
            "where": _text("SQL over the message columns."),
            "transform": _text("FILE.py:FUNCTION, from DataFrame to DataFrame."),
            "subject_transform": _object({"src": _text(), "dest": _text()}, ("src", "dest")),
            "environments": _texts("Only in these environments."),
        },
        ("name", "from", "to"),
    )


_SEQUENCE: Final[Schema] = {
    "anyOf": [{"type": "integer", "minimum": 1}, {"$ref": "#/$defs/reference"}, {"type": "null"}]
}
_TIME: Final[Schema] = {
    "anyOf": [{"$ref": "#/$defs/time"}, {"$ref": "#/$defs/reference"}, {"type": "null"}]
}
_BOUNDS: Final[dict[str, Schema]] = {
    "start_seq": _SEQUENCE, "end_seq": _SEQUENCE, "start_time": _TIME, "end_time": _TIME,
    "filter_subject": {"type": ["string", "null"]}, "filter_subjects": _texts(),
}  # fmt: skip


def _side(more: dict[str, Schema]) -> Schema:
    stream = _object({"domain": _text(), "stream": _text(), **more, "parquet": _text()})
    return stream | {"anyOf": [{"required": ["stream"]}, {"required": ["parquet"]}]}
