"""The JSON Schema beside a workspace, and the first line of a file that names it to editors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from jsplan.config.workspace_schema import workspace_schema
from jsplan.disk import exists
from jsplan.documents.base import dumps
from jsplan.errors import JsplanError

#: The file that `jsplan schema > workspace-v1.json` writes.
SCHEMA_FILE: Final = "workspace-v1.json"


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
