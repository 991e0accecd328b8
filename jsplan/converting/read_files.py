"""Reads the files of other tools for convert."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from jsplan.config.findings import Findings
from jsplan.config.node import Node, Source
from jsplan.config.read import parse_document, read_bytes
from jsplan.converting.model import UNREADABLE, Conversion
from jsplan.converting.nack import convert_nack, split_documents
from jsplan.converting.nats import convert_nats
from jsplan.converting.terraform import hcl
from jsplan.converting.terraform.module import convert_module
from jsplan.converting.terraform.state import convert_state, is_terraform
from jsplan.disk import exists, is_file, is_folder
from jsplan.errors import JsplanError

#: `{{ .Values.name }}`, `{{- end }}` and `{{ include … }}`, but not `{{wildcard(1)}}` of subjects.
_TEMPLATE = re.compile(
    rb"\{\{(-|\s*([.$/]|(if|else|end|range|with|include|define|template|tpl)\b)|[^{}\n]*\s[.$]\w)"
)
#: Files from which Terraform reads values of variables by itself, in this order.
_VALUE_FILES = ("terraform.tfvars", "*.auto.tfvars")


def read_nats(path: Path, findings: Findings) -> Conversion:
    """Read a JSON file of the `nats` CLI, or all in a folder and below."""
    files = _find_files(path, (".json",))
    if is_file(path):
        _require_json(
            path,
            "the nats CLI",
            "Give a folder of a backup, or what `nats stream info --json` prints.",
        )
    return convert_nats(_read_json_files(files, findings))


def read_nack(path: Path, findings: Findings, *, control_loop: bool | None) -> Conversion:
    """Read a manifest, or all in a folder and below."""
    found: list[Node] = []
    for file in _find_files(path, (".yaml", ".yml", ".json")):
        source = _build_source(file)
        data = read_bytes(source, findings)
        if (
            data is not None
            and b"jetstream.nats.io" in data
            and not _is_template(source, data, findings)
        ):
            found += split_documents(source, data, findings)
    return convert_nack(found, control_loop=control_loop)


def read_terraform(path: Path, findings: Findings) -> Conversion:
    """Read a module's folder, a .tf file, a state, or the output of `terraform show -json`."""
    out = Conversion()
    sources, states = _terraform_files(path)
    if sources:
        modules = [
            block for file in sources if (block := _read_hcl(file, findings, out)) is not None
        ]
        values = [
            block
            for file in _list_value_files(path)
            if (block := _read_hcl(file, findings, out)) is not None
        ]
        convert_module(modules, values, out)
        return out
    if is_file(path):
        _require_json(
            path,
            "Terraform",
            "Give a module's folder, a .tf file, a state, or what `terraform show -json` prints.",
        )
    for node in _read_json_files(states, findings):
        if is_terraform(node):
            convert_state(node, out)
        else:
            out.general_notes.not_converted(
                node,
                "neither a state of Terraform nor what `terraform show -json` prints: left out",
                "Give one of these.",
            )
    return out


def _terraform_files(path: Path) -> tuple[list[Path], list[Path]]:
    """Return HCL files, or JSON files if there are none: sources say more than state."""
    if is_file(path):
        return ([path], []) if path.suffix == ".tf" else ([], [path])
    sources = _list_files(path, ("*.tf",))
    states = _list_files(path, ("*.tfstate", "*.json"))
    if not sources and not states:
        raise JsplanError(
            f"{path} has no .tf, .tfstate or .json file",
            hint="Give a module's folder, a state, or the output of `terraform show -json`.",
        )
    return sources, [] if sources else states


def _list_value_files(path: Path) -> list[Path]:
    return _list_files(path if is_folder(path) else path.parent, _VALUE_FILES)


def _list_files(folder: Path, patterns: Iterable[str]) -> list[Path]:
    _require_path(folder)
    return [file for pattern in patterns for file in sorted(folder.glob(pattern)) if is_file(file)]


def _find_files(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Return the file itself, or those with a suffix in the folder and below, except hidden."""
    _require_path(path)
    if is_file(path):
        return [path]
    found = [file for file in sorted(path.rglob("*")) if file.suffix in suffixes and is_file(file)]
    shown = [
        file
        for file in found
        if not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    if not shown:
        raise JsplanError(
            f"{path} has no {' or '.join(suffixes)} file",
            hint="Give the folder that has them, or a file.",
        )
    return shown


def _require_path(path: Path) -> None:
    if not exists(path):
        raise JsplanError(f"there is no {path}", hint="Check the path.")


def _require_json(path: Path, tool: str, hint: str) -> None:
    """Raise JsplanError for a file that cannot be JSON, instead of errors about its lines."""
    data = read_bytes(_build_source(path), Findings())
    if (
        data is not None
        and data.strip()
        and not data.removeprefix(b"\xef\xbb\xbf").lstrip().startswith((b"{", b"["))
    ):
        raise JsplanError(f"{path} is not a file of {tool}", hint=hint)


def _build_source(file: Path) -> Source:
    """Return the source, named relative to the current folder if it is below that."""
    try:
        shown = os.path.relpath(file)
    except ValueError:  # another drive
        shown = str(file)
    return Source.of(file, str(file) if shown.startswith("..") else shown)


def _read_json_files(files: Iterable[Path], findings: Findings) -> list[Node]:
    return _read_each(files, findings, lambda source, data: parse_document(source, data, findings))


def _read_each(
    files: Iterable[Path], findings: Findings, read: Callable[[Source, bytes], Node | None]
) -> list[Node]:
    out = []
    for file in files:
        source = _build_source(file)
        data = read_bytes(source, findings)
        if data is None or _is_template(source, data, findings):
            continue
        node = read(source, data)
        if node is not None:
            out.append(node)
    return out


def _is_template(source: Source, data: bytes, findings: Findings) -> bool:
    """Check whether it is a template of Helm or Go, and report that: its values are not known."""
    found = _TEMPLATE.search(data)
    if found is None:
        return False
    before = data[: found.start()]
    place = (source, before.count(b"\n"), len(before) - before.rfind(b"\n") - 1)
    findings.error(
        UNREADABLE,
        place,
        "this looks like a template ({{ … }}), whose values are not known here",
        "Render it first, for example with helm template, and convert the output.",
    )
    return True


def _read_hcl(file: Path, findings: Findings, out: Conversion) -> hcl.Block | None:
    source = _build_source(file)
    data = read_bytes(source, findings)
    return (
        hcl.parse(source, data.decode("utf-8-sig", "replace"), out.general_notes)
        if data is not None
        else None
    )
