"""Chooses the environment, and overlays its sections on those of the workspace."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from jsplan.config import parsing
from jsplan.config.domains import expand_domain_keys
from jsplan.config.files import overlay
from jsplan.config.findings import Findings
from jsplan.config.node import Node, make_mapping
from jsplan.config.tables.workspace import ENVIRONMENT
from jsplan.diagnostics import list_known

#: A context replaces all of these; a URL replaces the context.
_URL_KEYS: Final = ("url", "user", "password", "token", "creds", "nkey", "tls")


def choose_environment(
    document: Node, asked: str | None, of_shell: str | None, findings: Findings
) -> str | None:
    """Return the name of the environment, or None if the workspace has none.

    A missing or unknown choice is a finding. That of the shell, JSPLAN_ENV, may be about other
    workspaces.
    """
    section = document.get("environments")
    names = [name for name, _ in parsing.read_mapping(section, "`environments`", findings)]
    asked = asked or (of_shell if names else None)
    if asked is None:
        if names:
            hint = f"Pass -e NAME or set JSPLAN_ENV. {list_known('environments', names)}"
            findings.error("JS117", section, "an environment must be chosen", hint)
        return None
    if asked not in names:
        none = "The workspace has no `environments:`. Remove -e."
        text = f'there is no environment "{asked}"'
        findings.error(
            "JS117", section, text, list_known("environments", names, asked) if names else none
        )
    return asked


def read_environment_names(
    node: Node | None, environments: Collection[str], findings: Findings
) -> list[str]:
    """Read `environments:` of an entry, and report names that the workspace does not have.

    The names may be none, or all be unknown, only where a finding says so.
    """
    wanted = parsing.read_texts(node, "`environments`", findings)
    for name in wanted:
        if node is not None and name not in environments:
            there = "The workspace has no `environments:`."
            if environments:
                there = list_known("environments", environments)
            findings.error("JS118", node, f'there is no environment "{name}"', there)
    return list(wanted)


def apply_environment(document: Node, environment: str | None, findings: Findings) -> Node:
    """Return the document with the chosen environment merged in.

    All environments are checked for unknown keys.
    """
    for name, node in parsing.read_mapping(
        document.get("environments"), "`environments`", findings
    ):
        if node.value is not None:
            parsing.check_mapping(node, f"environment {name}", ENVIRONMENT.by_name, findings)
    chosen = (document.get("environments") or document).get(environment) if environment else None
    if chosen is None or not isinstance(chosen.value, dict):
        return document
    values, keys = dict(document.value), dict(document.keys)
    for section in ENVIRONMENT.by_name:
        over = chosen.get(section)
        if over is not None and over.value is not None:
            values[section] = _overlay_section(section, values.get(section), over, findings)
            keys[section] = chosen.key_place(section)
    return make_mapping(document.place, values, keys)


def _overlay_section(section: str, base: Node | None, over: Node, findings: Findings) -> Node:
    if (
        section == "vars"
        or base is None
        or not isinstance(over.value, dict)
        or not isinstance(base.value, dict)
    ):
        return overlay(base, over, 1)
    if section == "backend":
        return overlay(base, over, 2) if base.value.keys() == over.value.keys() else over
    if section == "domains":
        return overlay(expand_domain_keys(base, findings), expand_domain_keys(over, findings), 3)
    for name, item in over.value.items():
        base = _drop_keys(base, name, _superseded_keys(item.value))
    return overlay(base, over, 3)


def _superseded_keys(over: object) -> Collection[str]:
    if not isinstance(over, dict):
        return ()
    if over.get("context") is not None:
        return _URL_KEYS
    if over.get("url") is not None:
        return ("context",)
    return ()


def _drop_keys(connections: Node, name: str, dropped: Collection[str]) -> Node:
    item = connections.get(name)
    if item is None or not dropped or not isinstance(item.value, dict):
        return connections
    remaining: Mapping[str, Node] = {
        key: value for key, value in item.value.items() if key not in dropped
    }
    values = connections.value | {name: make_mapping(item.place, remaining, item.keys)}
    return make_mapping(connections.place, values, connections.keys)
