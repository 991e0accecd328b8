"""Values that the files give many resources at once: `overrides` and `defaults`.

`ExistingDefaults` are those that a new file of the workspace would share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from jsplan.address import KINDS, Kind
from jsplan.config import body, parsing
from jsplan.config.files import SECTIONS, WorkspaceFiles
from jsplan.config.findings import Findings
from jsplan.config.interpolate import Scope, interpolate
from jsplan.config.model import LoadOptions
from jsplan.config.node import Node, count_values, to_plain, without_keys
from jsplan.config.sections import Reading
from jsplan.config.tables.workspace import DEFAULTS, DEFAULTS_OF_KINDS
from jsplan.resources import TABLES


class Override(Struct):
    """One element of `overrides`; `is_used` once an address matched."""

    glob: str
    node: Node
    is_used: bool = False
    size: int = 1


def read_overrides(node: Node | None, scope: Scope, findings: Findings) -> list[Override]:
    """Read `overrides:` with their globs; the fields are checked against each kind that matches."""
    out = []
    for item in parsing.read_list(node, "`overrides`", findings):
        if not isinstance(item.value, dict):
            findings.wrong_type(item, "an override", "a mapping")
            continue
        address = item.get("address")
        if address is None:
            detail = "Add `address:`, an address or a glob such as store-*/stream/SALES."
            findings.missing(item, "address", "an override", detail)
            continue
        glob = parsing.read_address(interpolate(address, scope, findings), "`address`", findings)
        if glob is not None:
            out.append(Override(glob, item, size=count_values(item)))
    return out


def read_defaults(node: Node | None, findings: Findings) -> dict[Kind, Node]:
    """Read the fields per kind of `defaults:`."""
    kinds: dict[Kind, Node] = {}
    if node is None or node.value is None:
        return kinds
    values = DEFAULTS.read(node, Reading(findings))
    for kind, section in DEFAULTS_OF_KINDS.items() if values is not None else ():
        fields = node.get(kind)
        if fields is None or fields.value is None:
            continue
        if not isinstance(fields.value, dict):
            findings.wrong_type(fields, section.what, "a mapping")
            continue
        body.check_keys(TABLES[kind], fields, section.by_name, findings)
        for key in _given_names(kind, fields):
            hint = "Every resource has a name of its own."
            findings.error("JS105", fields.key_place(key), f"`{key}` cannot have a default", hint)
        kinds[kind] = without_keys(fields, _names_of(kind))
    return kinds


def refuse_names(kind: Kind, node: Node, findings: Findings) -> None:
    """Report an override that gives a name."""
    for key in _given_names(kind, node):
        hint = "Names are given where the resource is declared."
        findings.error("JS105", node.key_place(key), f"an override cannot change `{key}`", hint)


def _names_of(kind: Kind) -> tuple[str, ...]:
    """Return the keys that may name a resource of the kind."""
    return ("name", "bucket", "durable_name") if kind == "consumer" else ("name", "bucket")


def _given_names(kind: Kind, node: Node) -> list[str]:
    return [key for key in _names_of(kind) if key in node.value]


class ExistingDefaults(Struct, frozen=True):
    """`domain` and `fields` of `defaults:`, as written, with references.

    `declared_kinds` are the kinds of which anything is declared, in any environment.
    """

    domain: str | None
    fields: Mapping[Kind, Mapping[str, Any]]
    declared_kinds: frozenset[Kind]


def read_existing_defaults(options: LoadOptions) -> ExistingDefaults:
    """Read the files of a workspace that loads. Raises ConfigError if they changed and do not."""
    findings = Findings()
    document = WorkspaceFiles(options.directory.absolute(), findings).load_document()
    findings.raise_if_failed()
    assert document is not None, "a workspace that cannot be read has a finding"
    defaults = document.get("defaults")
    domain = defaults.get("domain") if defaults else None
    fields = {
        kind: to_plain(node)
        for kind in KINDS
        if defaults and (node := defaults.get(kind)) is not None and isinstance(node.value, dict)
    }
    return ExistingDefaults(
        to_plain(domain) if domain is not None else None,
        fields,
        frozenset(_declared_kinds(document)),
    )


def _declared_kinds(document: Node) -> set[Kind]:
    found: set[Kind] = set()
    for kind, section in SECTIONS.items():
        node = document.get(section)
        entries = node.value if node is not None and isinstance(node.value, list) else []
        found |= {kind} if entries else set()
        found |= (
            {"consumer"} if any(entry.get("consumers") is not None for entry in entries) else set()
        )
    return found
