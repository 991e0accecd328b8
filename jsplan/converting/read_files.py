"""Reads the files of other tools for convert."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from jsplan.config.findings import Findings
from jsplan.config.node import Node, Source
from jsplan.config.read import parse_document, read_bytes
from jsplan.converting.model import UNREADABLE, Conversion
from jsplan.converting.nack import convert_nack, split_documents
from jsplan.converting.nats import convert_nats
from jsplan.converting.terraform import SHOW_HINT, convert_terraform
from jsplan.disk import exists, is_file
from jsplan.errors import JsplanError

#: `{{ .Values.name }}`, `{{- end }}` and `{{ include … }}`, but not `{{wildcard(1)}}` of subjects.
_TEMPLATE = re.compile(
    rb"\{\{(-|\s*([.$/]|(if|else|end|range|with|include|define|template|tpl)\b)|[^{}\n]*\s[.$]\w)"
)
_NATS_HINT = "Give a folder of a backup, or what this prints: nats stream info NAME --json"


def read_nats(path: Path) -> Conversion:
    """Read a JSON file of the `nats` CLI, or all in a folder and below."""
    out = Conversion()
    convert_nats(list(_read_json(path, _NATS_HINT, out.findings)), out)
    return out


def read_nack(path: Path, *, control_loop: bool | None) -> Conversion:
    """Read a manifest, or all in a folder and below."""
    out, suffixes = Conversion(), (".yaml", ".yml", ".json")
    hint = "Give the folder that has the manifests, or a file."
    found: list[Node] = []
    for source, data in _read_each(path, suffixes, hint, out.findings):
        if b"jetstream.nats.io" in data and not _is_template(source, data, out.findings):
            found += split_documents(source, data, out.findings)
    convert_nack(found, out, control_loop=control_loop)
    return out


def read_terraform(path: Path) -> Conversion:
    """Read the output of `terraform show -json`, or all such files in a folder and below."""
    out = Conversion()
    for node in _read_json(path, SHOW_HINT, out.findings, may_be_template=False):
        convert_terraform(node, out)
    return out


def _read_json(
    path: Path, hint: str, findings: Findings, *, may_be_template: bool = True
) -> Iterator[Node]:
    for source, data in _read_each(path, (".json",), hint, findings):
        if may_be_template and _is_template(source, data, findings):
            continue
        start = data.removeprefix(b"\xef\xbb\xbf").lstrip()
        if start and not start.startswith((b"{", b"[")):
            raise JsplanError(f"{source.shown} is not JSON", hint=hint)
        node = parse_document(source, data, findings)
        if node is not None:
            yield node


def _read_each(
    path: Path, suffixes: tuple[str, ...], hint: str, findings: Findings
) -> Iterator[tuple[Source, bytes]]:
    """Yield the file itself, or those with a suffix in the folder and below, except hidden."""
    for file in _find_files(path, suffixes, hint):
        shown = os.path.relpath(file) if file.drive == Path.cwd().drive else str(file)
        source = Source.of(file, str(file) if shown.startswith("..") else shown)
        data = read_bytes(source, findings)
        if data is not None:
            yield source, data


def _find_files(path: Path, suffixes: tuple[str, ...], hint: str) -> list[Path]:
    if not exists(path):
        raise JsplanError(f"there is no {path}", hint="Check the path.")
    if is_file(path):
        return [path]
    ours = [file for file in sorted(path.rglob("*")) if file.suffix in suffixes and is_file(file)]
    found = [file for file in ours if "/." not in f"/{file.relative_to(path).as_posix()}"]
    if not found:
        raise JsplanError(f"{path} has no {' or '.join(suffixes)} file", hint=hint)
    return found


def _is_template(source: Source, data: bytes, findings: Findings) -> bool:
    """Check whether it is a template of Helm or Go, and report that: its values are not known."""
    found = _TEMPLATE.search(data)
    if found is None:
        return False
    before = data[: found.start()]
    place = (source, before.count(b"\n"), len(before) - before.rfind(b"\n") - 1)
    what = "this looks like a template ({{ … }}), whose values are not known here"
    advice = "Render it first, for example with helm template, and convert the output."
    findings.error(UNREADABLE, place, what, advice)
    return True
