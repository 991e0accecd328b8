"""A new file of the workspace, which is removed again unless its resources are imported."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from jsplan.address import Address
from jsplan.context import Context
from jsplan.disk import exists, is_folder
from jsplan.errors import JsplanError, StalePlanError, UsageError


def require_new(path: Path) -> None:
    """Raise if the file exists or cannot be created, before any request to a server."""
    if exists(path):
        raise JsplanError(
            f"{path} exists; nothing was written",
            hint="Give another file; what is in no file yet is written there.",
        )
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(
            f"{path.name} would contain YAML",
            hint="Name it NAME.jsplan.yaml, which every workspace reads.",
        )
    if not is_folder(path.parent):
        raise JsplanError(
            f"cannot write {path}: there is no such folder",
            hint="Make the folder, or give another file.",
        )


class NewFile(Struct):
    """A new file; it is removed again unless `keep` is set."""

    path: Path
    keep: bool = False


@contextmanager
def create_new_file(path: Path, text: str) -> Iterator[NewFile]:
    """Create a file for the length of the context. Raises JsplanError if that fails."""
    try:
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8"
        ) as file:
            file.write(text)
    except OSError as error:
        raise JsplanError(f"cannot write {path}: {error.strerror}") from None
    new_file = NewFile(path)
    try:
        yield new_file
    except StalePlanError:
        new_file.keep = False  # nothing was imported
        raise
    finally:
        if not new_file.keep:
            path.unlink(missing_ok=True)


def require_loaded(context: Context, addresses: Iterable[Address], path: Path) -> None:
    """Raise if the workspace does not read the file: the next plan would delete its resources."""
    if any(address not in context.workspace.resources for address in addresses):
        raise UsageError(
            f"this workspace does not read {path}, so that nothing in it would be declared;"
            " it was removed again",
            hint="Name it NAME.jsplan.yaml beside jsplan.yaml,"
            " or let an `include` of jsplan.yaml match it.",
        )
