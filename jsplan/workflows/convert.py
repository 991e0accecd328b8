"""convert: files of another tool as a workspace file. No server is asked.

This module maps the other tool's connections and domains to those of the workspace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from jsplan.address import KINDS, Address
from jsplan.codegen import (
    CodegenContext,
    ResourceToWrite,
    bucket_resource,
    generate_document,
    layout,
)
from jsplan.config import load as load_workspace
from jsplan.config.existing_defaults import read_existing_defaults
from jsplan.config.files import MAIN_FILE
from jsplan.config.findings import Findings
from jsplan.config.model import Domain, LoadOptions, Workspace
from jsplan.converting.model import DEFAULT_CONNECTION, Conversion, ConvertedResource, Note, Owner
from jsplan.converting.validation import check_values
from jsplan.diagnostics import Diagnostic, list_known
from jsplan.disk import is_file
from jsplan.errors import ConfigError, JsplanError, UsageError
from jsplan.planning.merge import expected_new
from jsplan.resources.buckets import BACKING_TABLES
from jsplan.resources.consumer import CONSUMER
from jsplan.resources.fields import NEWEST_LEVEL, Config
from jsplan.topology import build_topology
from jsplan.workflows.convert_files import read_nack, read_nats, read_terraform

Tool = Literal["nats", "nack", "terraform"]
_TOOL_NAMES: Mapping[str, str] = {"nats": "the nats CLI", "nack": "NACK", "terraform": "Terraform"}


@dataclass(frozen=True, slots=True)
class ConvertTarget:
    """The workspace that receives the result: an existing one, or a new one called `name`.

    `domain` is used for resources that name none.
    """

    load: LoadOptions
    name: str
    domain: str | None = None

    @property
    def exists(self) -> bool:
        """True if there is a workspace; an empty file, as `> jsplan.yaml` makes it, is none."""
        path = self.load.directory / MAIN_FILE
        return is_file(path) and path.stat().st_size > 0


@dataclass(frozen=True, slots=True)
class ConvertResult:
    """The text of the file, the addresses that it declares, and diagnostics."""

    tool: Tool
    text: str
    new_workspace: bool
    addresses: tuple[Address, ...]
    diagnostics: tuple[Diagnostic, ...] = ()


def convert(
    tool: Tool, path: Path, target: ConvertTarget, *, control_loop: bool | None = None
) -> ConvertResult:
    """Convert the resources of another tool in `path` to a workspace file.

    Raises ConfigError with everything that cannot be read, JsplanError if there is nothing to
    convert, UsageError if the workspace has several domains and none is named, NotAvailableError if
    a library is missing.
    """
    findings = Findings()
    if tool == "nack":
        conversion = read_nack(path, findings, control_loop=control_loop)
    else:
        conversion = (read_nats if tool == "nats" else read_terraform)(path, findings)
    check_values(conversion)
    wrong = [
        *findings.sorted(),
        *(note.to_diagnostic(None) for note in conversion.notes if note.severity == "error"),
    ]
    if any(found.severity == "error" for found in wrong):
        raise ConfigError(wrong)
    if not conversion.resources:
        raise _nothing_found_error(tool, path, conversion)
    mapping = (
        _map_to_workspace(load_workspace(target.load), target, conversion)
        if target.exists
        else _map_to_new_workspace(target, conversion)
    )
    return _render_result(tool, conversion, mapping, target)


def _nothing_found_error(tool: Tool, path: Path, conversion: Conversion) -> JsplanError:
    if conversion.notes:
        return ConfigError(
            [note.to_diagnostic(None) for note in conversion.notes],
            f"{path}: nothing in it can be converted",
        )
    return JsplanError(f"{path} has nothing of {_TOOL_NAMES[tool]}", hint="Check the path.")


# --- domains ---


@dataclass(slots=True)
class _DomainMapping:
    """The domain key for each owner. `sections` are those of a new workspace, else empty."""

    keys: dict[Owner, str]
    domains: Mapping[str, Domain]
    sections: dict[str, Any] = field(default_factory=dict)
    workspace: Workspace | None = None


def _list_owners(conversion: Conversion) -> list[Owner]:
    return list(dict.fromkeys(resource.owner for resource in conversion.resources))


def _map_to_new_workspace(target: ConvertTarget, conversion: Conversion) -> _DomainMapping:
    """Map to a new workspace with all connections and named domains of the other tool."""
    keys: dict[Owner, str] = {}
    domains: dict[str, Domain] = {}
    for owner in _list_owners(conversion):
        key, name = _choose_key(owner, target.domain, domains)
        keys[owner] = key
        domains[key] = Domain(
            key, _to_identifier(owner.connection), name, f"$JS.{name}.API" if name else "$JS.API"
        )
    used = {owner.connection: conversion.connections.get(owner.connection, {}) for owner in keys}
    head: dict[str, Any] = {
        "connections": {_to_identifier(name): settings for name, settings in used.items()},
        "domains": {
            key: {
                "connection": domain.connection,
                **({} if domain.js_domain == key else {"js_domain": domain.js_domain}),
            }
            for key, domain in domains.items()
        },
    }
    return _DomainMapping(keys, domains, head)


def _choose_key(
    owner: Owner, wanted: str | None, taken: Mapping[str, Domain]
) -> tuple[str, str | None]:
    """Return our key and the server's name for it; None if the other tool names no domain."""
    name = owner.js_domain or (wanted if owner.connection == DEFAULT_CONNECTION else None)
    plain = _to_identifier(name or owner.connection)
    key = plain if plain not in taken else f"{_to_identifier(owner.connection)}-{plain}"
    return key, name


def _to_identifier(name: str) -> str:
    key = re.sub(r"[^A-Za-z0-9_-]", "-", name)
    return key if re.match(r"[A-Za-z]", key) else f"d{key}"


def _map_to_workspace(
    workspace: Workspace, target: ConvertTarget, conversion: Conversion
) -> _DomainMapping:
    """Map to the domains of an existing workspace."""
    keys = {owner: _choose_domain(workspace, target, owner) for owner in _list_owners(conversion)}
    return _DomainMapping(keys, workspace.domains, workspace=workspace)


def _choose_domain(workspace: Workspace, target: ConvertTarget, owner: Owner) -> str:
    own = {key: domain for key, domain in workspace.domains.items() if domain.same_as is None}
    if owner.js_domain is not None:
        named = [key for key, domain in own.items() if domain.js_domain == owner.js_domain]
        if not named:
            raise UsageError(
                f"the workspace has no domain whose server calls itself {owner.js_domain}",
                hint="Declare it under `domains:`.",
            )
        preferred = [key for key in named if own[key].connection == owner.connection]
        return (preferred or named)[0]
    if target.domain is not None and target.domain not in own:
        raise UsageError(f"there is no domain {target.domain}. {list_known('domains', own)}")
    matching = [key for key, domain in own.items() if owner.connection in (key, domain.connection)]
    found = [target.domain] if target.domain else matching if len(matching) == 1 else list(own)
    if len(found) != 1:
        raise UsageError(
            f"the workspace has {len(own)} domains: {', '.join(own)}",
            hint="Choose one with --domain NAME.",
        )
    return str(found[0])


# --- resources ---


def _render_result(
    tool: Tool, conversion: Conversion, mapping: _DomainMapping, target: ConvertTarget
) -> ConvertResult:
    found, duplicates = _convert_resources(conversion, mapping)
    written = generate_document(found.values(), _build_codegen_context(mapping, target))
    diagnostics = [
        note.to_diagnostic(str(_note_address(note, mapping)))
        if note.about
        else note.to_diagnostic(None)
        for note in (*conversion.notes, *duplicates)
    ]
    diagnostics += [Diagnostic("warning", "JS180", note, "", None) for note in written.notes]
    title = f"# Generated by jsplan convert from files of {_TOOL_NAMES[tool]}. Edit freely.\n"
    text = f"{title}{_render_sections(mapping, target)}\n{written.text}"
    return ConvertResult(tool, text, bool(mapping.sections), tuple(found), tuple(diagnostics))


def _note_address(note: Note, mapping: _DomainMapping) -> Address | str:
    assert note.about is not None
    owner, kind, name = note.about
    key = mapping.keys.get(owner, owner.connection)
    return Address.of_stream(key, name) if kind == "stream" else Address(key, kind, name)


def _render_sections(mapping: _DomainMapping, target: ConvertTarget) -> str:
    if not mapping.sections:
        return ""
    lines = ["jsplan: 1", f"workspace: {target.name}"]
    for section, entries in mapping.sections.items():
        lines += ["", *layout.format_block(section, entries)]
    return "\n".join(lines) + "\n"


def _build_codegen_context(mapping: _DomainMapping, target: ConvertTarget) -> CodegenContext:
    if mapping.workspace is None:
        return CodegenContext(mapping.domains)
    existing = read_existing_defaults(target.load)
    return CodegenContext(
        mapping.domains,
        build_topology(mapping.workspace).routes,
        existing_defaults=existing.fields,
        extractable_kinds=frozenset(
            kind
            for kind in KINDS
            if kind not in existing.declared_kinds and kind not in existing.fields
        ),
        default_domain=existing.domain if existing.domain in mapping.domains else None,
        may_set_default_domain=existing.domain is None,
    )


def _convert_resources(
    conversion: Conversion, mapping: _DomainMapping
) -> tuple[dict[Address, ResourceToWrite], list[Note]]:
    """Convert streams first, since consumers take limits from them; note duplicates."""
    found: dict[Address, ResourceToWrite] = {}
    first: dict[Address, ConvertedResource] = {}
    duplicates: list[Note] = []
    for resource in sorted(conversion.resources, key=lambda each: each.kind == "consumer"):
        address = resource.address(mapping.keys[resource.owner])
        if address not in found:
            found[address], first[address] = _convert_resource(address, resource, found), resource
        elif _convert_resource(address, resource, found).config != found[address].config:
            duplicates.append(_duplicate_note(resource, first[address]))
    return found, duplicates


def _duplicate_note(resource: ConvertedResource, other: ConvertedResource) -> Note:
    place, line = other.place[0].shown, other.place[1] + 1
    return Note(
        "warning",
        "JS180",
        f"is also at {place}:{line}, and differs: that one was taken",
        "Keep one of the two.",
        resource.place,
        (resource.owner, resource.kind, resource.name),
    )


def _convert_resource(
    address: Address, resource: ConvertedResource, found: Mapping[Address, ResourceToWrite]
) -> ResourceToWrite:
    """Return the resource with a new server's defaults, so that only differences are written."""
    raw: ResourceToWrite = (
        bucket_resource(address, resource.config)
        if resource.has_bucket_fields
        else ResourceToWrite(address, resource.config)
    )
    table = CONSUMER if address.kind == "consumer" else BACKING_TABLES[address.kind]
    config: Config = expected_new(table, raw.config, NEWEST_LEVEL, _consumer_limits(address, found))
    return replace(raw, config=config, settings=resource.settings, comment=resource.comment)


def _consumer_limits(address: Address, found: Mapping[Address, ResourceToWrite]) -> Config:
    parent = address.parent
    stream = found.get(parent) if parent is not None else None
    return dict(stream.config.get("consumer_limits") or {}) if stream is not None else {}


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


def group_diagnostics(
    diagnostics: tuple[Diagnostic, ...],
) -> Iterator[tuple[Diagnostic, list[str]]]:
    """Group equal diagnostics of several resources, with their addresses, in order."""
    groups: dict[tuple[str, str, str], list[Diagnostic]] = {}
    for found in diagnostics:
        key = (found.code, found.summary, found.detail)
        groups.setdefault(key if found.address else (*key[:2], str(found.range)), []).append(found)
    for members in groups.values():
        yield members[0], [member.address for member in members if member.address]
