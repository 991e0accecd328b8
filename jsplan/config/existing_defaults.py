"""The parts of a workspace that a new file of it would share.

These are `defaults:`, and the kinds of which something is declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from jsplan.address import KINDS, Kind
from jsplan.config.files import SECTIONS, WorkspaceFiles
from jsplan.config.findings import Findings
from jsplan.config.model import LoadOptions
from jsplan.config.node import Node, to_plain


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
