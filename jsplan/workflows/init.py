"""init: a new workspace from a template, ready for `jsplan plan`."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Final

from jsplan.config.workspace_schema import build_modeline, write_schema
from jsplan.disk import exists
from jsplan.errors import JsplanError, UsageError

TEMPLATES = ("single", "hub-and-leaf")


#: The file that keeps plans out of git; the state is committed, or in a bucket.
_IGNORED: Final = (".gitignore", "*.plan\n")


def init(directory: Path, template: str, name: str, *, schema: bool = False) -> list[Path]:
    """Write the files of a template, with `schema` also that for editors, and return them.

    `name` is the name of the workspace. Raises JsplanError if a file of the template exists, and
    UsageError for an invalid name or an unknown template. A schema or .gitignore that exists stays.
    """
    if template not in TEMPLATES:
        raise UsageError(
            f'there is no template "{template}". Known templates: {", ".join(TEMPLATES)}'
        )
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise UsageError(
            f'"{name}" cannot be a workspace name; use small letters, digits, - and _',
            hint="Give one with --name.",
        )
    source = resources.files("jsplan.workflows") / "templates" / template
    wanted = {
        directory / f.name.removesuffix(".txt"): f.read_text("utf-8") for f in source.iterdir()
    }
    existing = [path for path in wanted if exists(path)]
    if existing:
        raise JsplanError(
            f"{existing[0]} exists; nothing was written", hint="Choose an empty folder with -C."
        )
    ignore, written = directory / _IGNORED[0], list(wanted)
    if not exists(ignore):
        _write_file(ignore, _IGNORED[1])
        written.append(ignore)
    if schema and (path := write_schema(directory)) is not None:
        written.append(path)
    for path, text in wanted.items():
        _write_file(path, build_modeline(path, directory) + text.replace("WORKSPACE", name))
    return sorted(written)


def _write_file(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise JsplanError(f"cannot write {path}: {error.strerror}") from None
