"""convert: files of another tool as a workspace file. No server is asked."""

from __future__ import annotations

from pathlib import Path

from jsplan.config import load as load_workspace
from jsplan.config.model import LoadOptions
from jsplan.converting.domain_mapping import check_clusters, map_to_new_workspace, map_to_workspace
from jsplan.converting.model import TOOL_NAMES, Conversion, ConvertResult, ConvertTarget, Tool
from jsplan.converting.read_files import read_nack, read_nats, read_terraform
from jsplan.converting.workspace_file import build_result
from jsplan.errors import ConfigError, JsplanError


def convert(
    tool: Tool, path: Path, target: ConvertTarget, *, control_loop: bool | None = None
) -> ConvertResult:
    """Convert the resources of another tool in `path` to a workspace file.

    Raises ConfigError with everything that cannot be read, JsplanError if there is nothing to
    convert, UsageError if the workspace has several domains and none is named.
    """
    conversion = (
        read_nack(path, control_loop=control_loop)
        if tool == "nack"
        else (read_nats if tool == "nats" else read_terraform)(path)
    )
    conversion.findings.raise_if_failed()
    if not conversion.resources:
        raise _nothing_found_error(tool, path, conversion)
    check_clusters(conversion, target.domain)
    mapping = (
        map_to_workspace(load_workspace(target.load), target, conversion)
        if target.exists
        else map_to_new_workspace(target, conversion)
    )
    return build_result(tool, conversion, mapping, target)


def _nothing_found_error(tool: Tool, path: Path, conversion: Conversion) -> JsplanError:
    if conversion.notes:
        return ConfigError(
            [note.diagnostic for note in conversion.notes],
            f"{path}: nothing in it can be converted",
        )
    return JsplanError(f"{path} has nothing of {TOOL_NAMES[tool]}", hint="Check the path.")


def write_new(path: Path, text: str) -> None:
    """Create the file. Raises JsplanError if it exists or cannot be created."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise JsplanError(
            f"{path} exists; nothing was written", hint="Give another file with -o."
        ) from None
    except OSError as error:
        raise JsplanError(
            f"cannot write {path}: {error.strerror}", hint="Check the folder."
        ) from None


def is_loaded(load: LoadOptions, result: ConvertResult) -> bool:
    """Return True if the workspace includes the new file, or has errors that plan reports."""
    try:
        return load_workspace(load).resources.keys() >= set(result.addresses)
    except ConfigError:
        return True
