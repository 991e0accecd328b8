"""convert: what another tool keeps, as a workspace file. Files in, text out; no server is asked.

Reading is `converting`'s, writing `generating`'s. Here is decided which domain of ours each resource is in.
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
    """Where the result goes: a workspace that is there, or (without one) a new one called `name`. `domain` is for what names none."""

    load: LoadOptions
    name: str
    domain: str | None = None

    @property
    def exists(self) -> bool:
        """Whether there is a workspace; an empty file, as `> jsplan.yaml` makes it, is none."""
        path = self.load.directory / MAIN_FILE
        return is_file(path) and path.stat().st_size > 0


@dataclass(frozen=True, slots=True)
class ConvertResult:
    """The text of the file, what it declares, and everything there is to say about it."""

    tool: Tool
    text: str
    new_workspace: bool
    addresses: tuple[Address, ...]
    diagnostics: tuple[Diagnostic, ...] = ()


def convert(
    tool: Tool, path: Path, target: ConvertTarget, *, control_loop: bool | None = None
) -> ConvertResult:
    """The workspace file for what `path` has of the other tool.

    Raises ConfigError with everything that cannot be read, JsplanError where there is nothing to convert, UsageError where the
    workspace has several domains and none is named, NotAvailableError where a library is missing.
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
    homes = (
        _map_to_workspace(load_workspace(target.load), target, conversion)
        if target.exists
        else _map_to_new_workspace(target, conversion)
    )
    return _render_result(tool, conversion, homes, target)


def _nothing_found_error(tool: Tool, path: Path, conversion: Conversion) -> JsplanError:
    if conversion.notes:
        return ConfigError(
            [note.to_diagnostic(None) for note in conversion.notes],
            f"{path}: nothing in it can be converted",
        )
    return JsplanError(f"{path} has nothing of {_TOOL_NAMES[tool]}", hint="Check the path.")


# --- domains --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _DomainMapping:
    """The domain of ours for each owner. `sections` are the sections of a new workspace, nothing where there is one."""

    keys: dict[Owner, str]
    domains: Mapping[str, Domain]
    sections: dict[str, Any] = field(default_factory=dict)
    workspace: Workspace | None = None


def _list_owners(conversion: Conversion) -> list[Owner]:
    return list(dict.fromkeys(resource.owner for resource in conversion.resources))


def _map_to_new_workspace(target: ConvertTarget, conversion: Conversion) -> _DomainMapping:
    """A new workspace with a connection for each of the other tool's, and a domain for each that is named there."""
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
    """Our key and the server's own name for it. What names no domain is the server's, whatever that is called."""
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
    """The domains of a workspace that is there."""
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
        alike = [key for key in named if own[key].connection == owner.connection]
        return (alike or named)[0]
    if target.domain is not None and target.domain not in own:
        raise UsageError(f"there is no domain {target.domain}. {list_known('domains', own)}")
    over = [key for key, domain in own.items() if owner.connection in (key, domain.connection)]
    found = [target.domain] if target.domain else over if len(over) == 1 else list(own)
    if len(found) != 1:
        raise UsageError(
            f"the workspace has {len(own)} domains: {', '.join(own)}",
            hint="Say which one is meant: --domain NAME.",
        )
    return str(found[0])


# --- resources ------------------------------------------------------------------------------------------------


def _render_result(
    tool: Tool, conversion: Conversion, homes: _DomainMapping, target: ConvertTarget
) -> ConvertResult:
    found, again = _convert_resources(conversion, homes)
    written = generate_document(found.values(), _build_surroundings(homes, target))
    said = [
        note.to_diagnostic(str(_note_address(note, homes)))
        if note.about
        else note.to_diagnostic(None)
        for note in (*conversion.notes, *again)
    ]
    said += [Diagnostic("warning", "JS180", note, "", None) for note in written.notes]
    title = f"# Generated by jsplan convert from files of {_TOOL_NAMES[tool]}. Edit freely.\n"
    text = f"{title}{_render_sections(homes, target)}\n{written.text}"
    return ConvertResult(tool, text, bool(homes.sections), tuple(found), tuple(said))


def _note_address(note: Note, homes: _DomainMapping) -> Address | str:
    assert note.about is not None
    owner, kind, name = note.about
    key = homes.keys.get(owner, owner.connection)
    return Address.of_stream(key, name) if kind == "stream" else Address(key, kind, name)


def _render_sections(homes: _DomainMapping, target: ConvertTarget) -> str:
    if not homes.sections:
        return ""
    lines = ["jsplan: 1", f"workspace: {target.name}"]
    for section, entries in homes.sections.items():
        lines += ["", *layout.format_block(section, entries)]
    return "\n".join(lines) + "\n"


def _build_surroundings(homes: _DomainMapping, target: ConvertTarget) -> CodegenContext:
    if homes.workspace is None:
        return CodegenContext(homes.domains)
    there = read_existing_defaults(target.load)
    return CodegenContext(
        homes.domains,
        build_topology(homes.workspace).routes,
        existing_defaults=there.fields,
        extractable_kinds=frozenset(
            kind for kind in KINDS if kind not in there.declared_kinds and kind not in there.fields
        ),
        default_domain=there.domain if there.domain in homes.domains else None,
        may_set_default_domain=there.domain is None,
    )


def _convert_resources(
    conversion: Conversion, homes: _DomainMapping
) -> tuple[dict[Address, ResourceToWrite], list[Note]]:
    """What is to be written, streams first, since consumers take limits from them; and notes on what was there twice."""
    found: dict[Address, ResourceToWrite] = {}
    first: dict[Address, ConvertedResource] = {}
    again: list[Note] = []
    for resource in sorted(conversion.resources, key=lambda one: one.kind == "consumer"):
        address = resource.address(homes.keys[resource.owner])
        if address not in found:
            found[address], first[address] = _convert_resource(address, resource, found), resource
        elif _convert_resource(address, resource, found).config != found[address].config:
            again.append(_duplicate_note(resource, first[address]))
    return found, again


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
    """The resource with what a server of today makes of its configuration, so that only what differs from that is written."""
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
    """Make the file. Raises JsplanError when it cannot be made, or is there: nothing is ever overwritten."""
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


def is_loaded(load: LoadOptions, made: ConvertResult) -> bool:
    """Whether the workspace has what was written, now that the file is there. One that is wrong says so when it is planned."""
    try:
        return load_workspace(load).resources.keys() >= set(made.addresses)
    except ConfigError:
        return True


def group_diagnostics(
    diagnostics: tuple[Diagnostic, ...],
) -> Iterator[tuple[Diagnostic, list[str]]]:
    """Diagnostics that say the same of several resources as one, with the addresses; in the order of the first of each."""
    alike: dict[tuple[str, str, str], list[Diagnostic]] = {}
    for found in diagnostics:
        key = (found.code, found.summary, found.detail)
        alike.setdefault(key if found.address else (*key[:2], str(found.range)), []).append(found)
    for members in alike.values():
        yield members[0], [member.address for member in members if member.address]
