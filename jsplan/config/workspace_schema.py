"""The JSON Schema of workspace files, for editors: a walk over the tables.

It has the keys and their types, not the rules between keys and files. What occurs more than once is
a definition. It is written beside a workspace, and the first line of a file names it to editors.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from jsplan.address import Kind
from jsplan.config.schema_parts import (
    VALUES,
    Schema,
    any_of,
    closed_object,
    field_schema,
    nested_schema,
    nested_tables,
    ref,
)
from jsplan.config.sections import Key, Section
from jsplan.config.tables.workspace import WORKSPACE
from jsplan.disk import exists
from jsplan.documents.base import dumps
from jsplan.documents.json_schema import DIALECT
from jsplan.errors import JsplanError
from jsplan.resources import TABLES, Field

_LINK: Final = re.compile(r"\[([^]]*)\]\([^)]*\)")
#: The file that `jsplan schema > workspace-v1.json` writes.
SCHEMA_FILE: Final = "workspace-v1.json"


def workspace_schema() -> Schema:
    """Return the schema of `jsplan.yaml` and of the files that it includes."""
    definitions = VALUES | {table.kind: nested_schema(table) for table in nested_tables()}
    found = {name: _mapping(section, definitions) for name, section in all_sections().items()}
    workspace = found.pop(WORKSPACE.id)
    return {
        "$schema": DIALECT,
        "$id": "urn:jsplan:schema:workspace-v1",
        "title": "jsplan workspace file, format 1",
        "$defs": definitions | found,
        **workspace,
        "patternProperties": {"^x-": {"description": "Ignored: a place for YAML anchors."}},
    }


def all_sections() -> dict[str, Section]:
    """Return every table by its id."""
    found: dict[str, Section] = {}
    waiting = [WORKSPACE]
    while waiting:
        section = waiting.pop()
        if found.setdefault(section.id, section) is section:
            waiting += [inner for key in section.keys for inner in key.type.sections]
    return found


def _mapping(section: Section, definitions: dict[str, Schema]) -> Schema:
    """Return the schema of a mapping; its fields get `definitions`, each once."""
    fields: dict[str, list[Schema]] = {}
    for kind in section.fields:
        for row in TABLES[kind].rows:
            found = _define(kind, row, definitions)
            if row.name not in section.without and found not in fields.setdefault(row.name, []):
                fields[row.name].append(found)
    properties = {
        name: any_of(*found) if len(found) > 1 else found[0]
        for name, found in fields.items()
        if found
    }
    properties |= {key.name: _key_schema(key) for key in section.keys}
    out = closed_object(properties, (key.name for key in section.keys if key.required))
    if section.nullable:
        out["type"] = ["object", "null"]
    return out | {"anyOf": [{"required": [n]} for n in section.one_of]} if section.one_of else out


def _define(kind: Kind, row: Field, definitions: dict[str, Schema]) -> Schema:
    """Define a field, with its kind in the name where kinds differ, and return the reference."""
    schema, name = field_schema(row), f"field.{row.name}"
    if definitions.setdefault(name, schema) != schema:
        name = f"{kind}.{row.name}"
        definitions[name] = schema
    return ref(name)


def _key_schema(key: Key) -> Schema:
    schema = key.type.schema | {"description": _LINK.sub(r"\1", key.doc)}
    default = key.shown_default
    return schema if default in (None, ()) else schema | {"default": default}


def build_modeline(path: Path, root: Path) -> str:
    """Return the line with which editors find the schema of the workspace; empty without one."""
    if not exists(root / SCHEMA_FILE):
        return ""
    schema = os.path.relpath(root / SCHEMA_FILE, path.parent).replace(os.sep, "/")
    return f"# yaml-language-server: $schema={schema}\n"


def write_schema(root: Path) -> Path | None:
    """Write the schema into the workspace, unless it has one. Raises JsplanError."""
    path = root / SCHEMA_FILE
    if exists(path):
        return None
    try:
        path.write_bytes(dumps(workspace_schema()))
    except OSError as error:
        raise JsplanError(f"cannot write {path}: {error.strerror}") from None
    return path
