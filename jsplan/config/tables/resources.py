"""Settings of a resource, and what the files put into buckets, object stores and streams."""

from __future__ import annotations

from typing import Final

from jsplan.codes import HAZARDS
from jsplan.config import parsing
from jsplan.config.node import Node
from jsplan.config.schema_parts import Schema, any_of, field_schema, or_reference, ref
from jsplan.config.sections import (
    DATE,
    FILE,
    FLAG,
    TEXT,
    TEXTS,
    TIME,
    Key,
    Reading,
    Section,
    ValueType,
    choice,
    list_of_mappings,
    parsed,
    plain,
    written,
)
from jsplan.diagnostics import list_known
from jsplan.resources.fields import Field
from jsplan.resources.kv_entry import KV_ENTRY, TTL
from jsplan.resources.message_schedule import RESULT_TTL, SCHEDULE, TARGET, TIME_ZONE, WHEN

_MAX_SEQ: Final = (1 << 63) - 1


def _check_hazard(code: str, node: Node, reading: Reading) -> None:
    if code not in HAZARDS:
        text, hint = f'there is no hazard "{code}"', list_known("hazards", HAZARDS, code)
        reading.findings.error("JS141", node, text, hint)


def _parse_seq(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_SEQ:
        raise ValueError("the sequence of a message is a whole number from 1 on")
    return value


def _field_type(row: Field, detail: str) -> ValueType:
    """Return the type of a field of a server; `detail` is the advice of a finding."""
    word = {"string": "text"}.get(row.type, row.type)
    return parsed(word, row.parse, field_schema(row), detail)


_CODE: Final = plain("code", parsing.read_code, ref("text"))
_HAZARD: Final = plain("hazard", parsing.read_text, or_reference({"enum": list(HAZARDS)}))
_SEQ: Final = parsed("number ≥ 1", _parse_seq, or_reference({"type": "integer", "minimum": 1}))
_VALUE: Final = written("any value", {})
_PREFIX: Final = written("text", ref("text"))

ALLOWED_HAZARD: Final = Section("allowed_hazard", "an allowed hazard", (
    Key("code", _HAZARD, "The [hazard](hazards.md).", required=True, check=_check_hazard),
    Key("reason", TEXT, "Why it is allowed.", required=True),
    Key("until", DATE, "The last day, as in `2026-12-31`."),
))  # fmt: skip
LIFECYCLE: Final = Section("lifecycle", "`lifecycle`", (
    Key("prevent_destroy", FLAG, "Refuse to delete it, also once it has left the files: kept in state."),
    Key("ignore_changes", TEXTS, "Top-level fields that are left to others.", default=()),
    Key("on_replace", choice("refuse", "recreate", "preserve"), "What to do when a change needs a new object ([Replace and delete](../how-to/replace-and-delete.md))."),
    Key("allow_hazards", list_of_mappings(ALLOWED_HAZARD), "Hazards that are allowed: permission in review.", default=()),
), {"prevent_delete": 'Did you mean "prevent_destroy"?', "ignore": 'Did you mean "ignore_changes"?'}, nullable=True)  # fmt: skip
IGNORED_FINDING: Final = Section("ignored_finding", "an ignored finding", (
    Key("code", _CODE, "The code of the finding, as in `JS201`.", required=True),
    Key("reason", TEXT, "Why it is ignored.", required=True),
))  # fmt: skip
RESOURCE_LINT: Final = Section("resource_lint", "`lint` of a resource", (
    Key("ignore", list_of_mappings(IGNORED_FINDING), "Findings of [Lint](lint.md) that are ignored here.", default=()),
), label="`lint.{key}`", nullable=True)  # fmt: skip
#: The keys of a position of which there must be one.
PLACES: Final = ("seq", "time", "new")
POSITION: Final = Section("position", "`position`", (
    Key("seq", _SEQ, "At this sequence."),
    Key("time", TIME, "At the first message stored at or after this time."),
    Key("new", FLAG, "`true`: after the last message."),
    Key("once", TEXT, "A word. Another one sets it again.", required=True),
), nullable=True)  # fmt: skip

_OF_CONTENT: Final = Key("lifecycle", written("mapping", ref(LIFECYCLE.id), LIFECYCLE), "`prevent_destroy`, `ignore_changes: [value]` (a default that is written only where the key is absent), `allow_hazards`.")  # fmt: skip
_SENSITIVE: Final = Key("sensitive", FLAG, "Only its digest is shown. What comes from `${env.X}` is always sensitive.", default=False)  # fmt: skip
KV_VALUE: Final = Section("kv_value", "an entry", (
    Key("value", _VALUE, "The value; a mapping with the key `value` or `file` must be written below it."),
    Key("file", FILE, "A file whose bytes are the value, relative to the file that names it."),
    Key("ttl", _field_type(KV_ENTRY.by_name[TTL], "Write it as in 30m."), "The server deletes the value after this time; the bucket needs `limit_marker_ttl` (2.11).", label="`{key}` of {what}"),
    _SENSITIVE,
    _OF_CONTENT,
), one_of=("value", "file"), advice="To store a mapping with this key, write it below `value:`.")  # fmt: skip
KV_FOLDER: Final = Section("kv_folder", "`entries_from`", (
    Key("dir", FILE, "A folder: each file below it is a value, and its path, with dots, the key.", required=True),
    Key("prefix", _PREFIX, "What each key begins with; it ends with a dot."),
    Key("prune", FLAG, "Delete other keys that begin with the prefix.", default=False),
    _SENSITIVE,
    _OF_CONTENT,
))  # fmt: skip
STORED_OBJECT: Final = Section("stored_object", "an object", (
    Key("file", FILE, "The file with its content, relative to the file that names it.", required=True),
    _OF_CONTENT,
))  # fmt: skip
OBJECT_FOLDER: Final = Section("object_folder", "`objects_from`", (
    Key("dir", FILE, "A folder: each file below it is an object, and its path the name.", required=True),
    Key("prefix", _PREFIX, "What each name begins with; it ends with a slash."),
    Key("prune", FLAG, "Delete other objects that begin with the prefix.", default=False),
    _OF_CONTENT,
))  # fmt: skip
#: The fields of a schedule that the files may have.
SCHEDULE_FIELDS: Final = (*WHEN, TARGET, TIME_ZONE, RESULT_TTL)
MESSAGE_SCHEDULE: Final = Section("schedule", "a schedule", (
    *(Key(name, _field_type(SCHEDULE.by_name[name], "Correct it."), SCHEDULE.by_name[name].doc) for name in SCHEDULE_FIELDS),
    Key("payload", _VALUE, "Text and numbers as written, anything else as JSON."),
    Key("file", FILE, "A file whose content is the payload, relative to the file that names it."),
    _SENSITIVE,
    _OF_CONTENT,
), one_of=(TARGET,))  # fmt: skip


def long_form() -> Schema:
    """Return the schema of the value of a key: the value itself, or a mapping with it."""
    plain_mapping = {"anyOf": [{"required": [name]} for name in KV_VALUE.one_of]}
    return any_of(
        {"type": ["string", "number", "boolean", "array"]},
        ref(KV_VALUE.id),
        {"type": "object", "not": plain_mapping},
    )
