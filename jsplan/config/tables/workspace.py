"""The top level of a workspace file, entries of resources, `defaults:` and `overrides:`."""

from __future__ import annotations

from typing import Final

from jsplan.address import KINDS, Kind
from jsplan.config.schema_parts import any_of, list_of, map_of, ref, texts
from jsplan.config.sections import (
    ADDRESS,
    FILE,
    TEXT,
    TEXTS,
    Key,
    Section,
    ValueType,
    mapping,
    written,
    written_list,
    written_map,
)
from jsplan.config.tables.accounts import ACCOUNT, APP
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
    long_form,
)
from jsplan.config.tables.settings import DRIFT, LEVEL, OWNERSHIP
from jsplan.resources import TABLES


def _layered(section: Section) -> ValueType:
    return written("mapping", ref(section.id), section)


def _folders(section: Section) -> ValueType:
    one = ref(section.id)
    return written("mapping, or a list of them", any_of(one, list_of(one)), section)


_LIFECYCLE: Final = Key("lifecycle", _layered(LIFECYCLE), "Guards, [below](#lifecycle).")
_LINT: Final = Key("lint", _layered(RESOURCE_LINT), "Findings that are ignored, [below](#lint).")
_DEPENDS_ON: Final = Key("depends_on", written("address, or a list of addresses", texts()), "Addresses or globs that come first.")  # fmt: skip
_X_RAW: Final = Key("x_raw", written("mapping", map_of({})), "Fields that are passed through, for servers newer than this release.")  # fmt: skip
_POSITION: Final = Key("position", _layered(POSITION), "Of a consumer: [where to set it](../how-to/set-a-position.md), once for each word.")  # fmt: skip
_SETTINGS: Final = (_LIFECYCLE, _LINT, _DEPENDS_ON, _X_RAW)
_SELECTOR: Final = Key("domain", written("name, list or glob", ref("domains")), 'A name, a list, a glob, `label:…`, `"!…"`: one resource for each. By default `defaults.domain`, or the only domain.')  # fmt: skip
_ENVIRONMENTS: Final = Key("environments", TEXTS, "Only in these environments.")
_CONFIG_FILE: Final = Key("config_file", TEXT, "A file with a configuration, or with the output of `nats … info --json`; keys beside it override it.")  # fmt: skip
_ENTRY: Final = (_SELECTOR, _ENVIRONMENTS, _CONFIG_FILE, *_SETTINGS)
#: The keys of every resource that are no fields of the server.
SETTING_KEYS: Final = frozenset(key.name for key in _SETTINGS)
#: What may name a resource: no field of `defaults:` and `overrides:`.
_NAMES: Final = ("name", "bucket", "durable_name")

NESTED_CONSUMER: Final = Section("nested_consumer", "a consumer", (
    _ENVIRONMENTS, _CONFIG_FILE, *_SETTINGS, _POSITION,
), fields=("consumer",), one_of=("name", "durable_name"))  # fmt: skip
STREAM: Final = Section("stream", "a stream", (
    *_ENTRY,
    Key("copy_of", TEXT, "Of a stream: the address of a declared stream whose fields, but for name, subjects and consumers, are the base ([how](../how-to/import.md#another-streams-configuration))."),
    Key("consumers", written_list(NESTED_CONSUMER), "Of a stream: its consumers."),
    Key("schedules", written_map(MESSAGE_SCHEDULE, "mapping by subject"), "Of a stream: [schedules](#schedules-of-a-stream). Others are left alone."),
), fields=("stream",), one_of=("name",))  # fmt: skip
CONSUMER: Final = Section("consumer", "a consumer", (
    *_ENTRY,
    Key("stream", TEXT, "Of an entry under the top-level `consumers`: the stream.", required=True),
    _POSITION,
), fields=("consumer",), one_of=("name", "durable_name"))  # fmt: skip
KV: Final = Section("kv", "a KV bucket", (
    *_ENTRY,
    Key("entries", written("mapping by key", map_of(long_form()), KV_VALUE), "Of a KV bucket: [values](#entries-of-a-kv-bucket) by key. Other keys are left alone."),
    Key("entries_from", _folders(KV_FOLDER), "Of a KV bucket: folders whose files are values."),
), fields=("kv",), one_of=("bucket",))  # fmt: skip
OBJECT_STORE: Final = Section("object_store", "an object store", (
    *_ENTRY,
    Key("objects", written_map(STORED_OBJECT), "Of an object store: [objects](#objects-of-an-object-store) by name. Others are left alone."),
    Key("objects_from", _folders(OBJECT_FOLDER), "Of an object store: folders whose files are objects."),
), fields=("object_store",), one_of=("bucket",))  # fmt: skip
#: The table of an entry of each kind.
ENTRIES: Final[dict[Kind, Section]] = {
    "stream": STREAM,
    "consumer": CONSUMER,
    "kv": KV,
    "object_store": OBJECT_STORE,
}
#: The table of the defaults of each kind.
DEFAULTS_OF_KINDS: Final[dict[Kind, Section]] = {
    kind: Section(f"defaults.{kind}", f"`defaults.{kind}`", (_LIFECYCLE, _LINT, _X_RAW), fields=(kind,), without=_NAMES, nullable=True) for kind in TABLES
}  # fmt: skip
DEFAULTS: Final = Section("defaults", "`defaults`", (
    Key("domain", _SELECTOR.type, "The domain of what names none."),
    *(Key(kind, _layered(section), f"Fields of every {kind.replace('_', ' ')} that does not set them.") for kind, section in DEFAULTS_OF_KINDS.items()),
), nullable=True)  # fmt: skip
OVERRIDE: Final = Section("override", "an override", (
    Key("address", ADDRESS, "The resources that get the fields: an address, or a glob.", required=True),
    *_SETTINGS,
    _POSITION,
), fields=KINDS, without=_NAMES)  # fmt: skip

_VARS: Final = Key("vars", written("mapping", map_of({})), "Variables and their defaults; `~` must be given from outside ([how](../how-to/environments.md)).")  # fmt: skip
_CONNECTIONS: Final = Key("connections", written_map(CONNECTION), "[How to reach accounts](#connections).")  # fmt: skip
_DOMAINS: Final = Key("domains", written_map(DOMAINS), "[The JetStreams](#domains). `store-{001..200}` is two hundred.")  # fmt: skip
_BACKEND: Final = Key("backend", mapping(BACKEND), "[Where state is kept](#backend).")
#: What may differ between environments.
ENVIRONMENT: Final = Section("environment", "an environment", (
    _VARS, _CONNECTIONS, _DOMAINS, _BACKEND,
), nullable=True)  # fmt: skip
WORKSPACE: Final = Section("workspace", "a workspace", (
    Key("jsplan", written("`1`, **required**", {"const": 1}), "The format version."),
    Key("workspace", written("text, **required**", {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"}), "The name of the workspace: `^[a-z0-9][a-z0-9_-]*$`."),
    Key("include", TEXTS, "Files and globs, relative to this one, to merge into it. By default `*.jsplan.yaml` and `*.jsplan.json`."),
    _VARS,
    Key("environments", written_map(ENVIRONMENT), "By name `vars`, `connections`, `domains` and `backend`, merged key by key over those of the workspace."),
    _CONNECTIONS,
    _DOMAINS,
    Key("imports", written_list(IMPORT), "How one account reaches another's JetStream ([how](../how-to/across-accounts.md))."),
    _BACKEND,
    Key("defaults", mapping(DEFAULTS), "`domain`, and per kind fields of the lowest precedence."),
    Key("streams", written_list(STREAM), "[Streams](streams.md), their consumers inside."),
    Key("consumers", written_list(CONSUMER), "[Consumers](consumers.md) of streams that are managed elsewhere."),
    Key("kv", written_list(KV), "[KV buckets](buckets.md), in their own words."),
    Key("object_stores", written_list(OBJECT_STORE), "[Object stores](buckets.md), in their own words."),
    Key("overrides", written_list(OVERRIDE), "Fields of the highest precedence, by `address` (a glob too)."),
    Key("apps", written_list(APP), "Applications, and what they do with which stream, consumer or bucket ([Applications](../how-to/applications.md))."),
    Key("accounts", written_list(ACCOUNT), "[Accounts](#accounts), whose exports, imports and permissions follow from flows and `apps`."),
    Key("account_files", FILE, "A folder of the workspace for the files of accounts without `key`, which the servers' configuration includes."),
    Key("backfills", written_list(BACKFILL), "Histories to copy ([Backfill](../how-to/backfill.md))."),
    Key("moved", written_list(MOVED), "`{from, to}`: our name changed, the thing did not."),
    Key("relocate", written_list(RELOCATE), "`{from, to}`: the stream itself moves, with messages and consumers ([Relocate](../how-to/relocate.md))."),
    Key("removed", written_list(REMOVED), "`{address, destroy, prevent_destroy}`: what becomes of something that left the files."),
    Key("drift", mapping(DRIFT), "[What counts as drift](#drift), and who is informed of it."),
    Key("lint", written("mapping by code", map_of(LEVEL.schema)), "The level of each finding: `ignore`, `warning`, `error` ([Lint](lint.md))."),
    Key("ownership", mapping(OWNERSHIP), "An owner in metadata ([Mark what is yours](../how-to/mark-what-is-yours.md))."),
))  # fmt: skip
