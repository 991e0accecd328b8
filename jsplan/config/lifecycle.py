"""The guards and settings of one resource: `lifecycle`, `lint`, `depends_on`, `position`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from jsplan.address import Kind
from jsplan.config import parsing
from jsplan.config.findings import Findings
from jsplan.config.model import AllowedHazard, Lifecycle, Position
from jsplan.config.node import Node, without_keys
from jsplan.config.sections import Reading
from jsplan.config.tables.resources import LIFECYCLE, PLACES, POSITION, RESOURCE_LINT
from jsplan.config.tables.workspace import SETTING_KEYS
from jsplan.diagnostics import did_you_mean

NO_LIFECYCLE: Final = Lifecycle()
_CONSUMER_SETTINGS: Final = SETTING_KEYS | {POSITION.id}


def settings_of(kind: Kind) -> frozenset[str]:
    """Return the keys of a resource that are no fields of the server."""
    return _CONSUMER_SETTINGS if kind == "consumer" else SETTING_KEYS


def read_lifecycle(
    layers: Collection[Node], known: Collection[str], findings: Findings
) -> Lifecycle:
    """Read `lifecycle:` of all layers, the strongest last.

    `known` are the names that `ignore_changes` may contain.
    """
    found = LIFECYCLE.read_layers(layers, Reading(findings))
    if found is None:
        return NO_LIFECYCLE
    node, values = found
    for name in values["ignore_changes"]:
        if name not in known:
            guess = did_you_mean(name, known)
            text = f'`ignore_changes`: "{name}" is not a field'
            hint = f"Name top-level fields of the resource.{guess}"
            findings.error("JS140", node.value["ignore_changes"], text, hint)
    allowed = [
        AllowedHazard(**item) for item in values["allow_hazards"] if item["code"] and item["reason"]
    ]
    return Lifecycle(
        values["prevent_destroy"],
        tuple(values["ignore_changes"]),
        values["on_replace"],
        tuple(allowed),
    )


def read_lint_ignore(layers: Collection[Node], findings: Findings) -> dict[str, str]:
    """Read `lint: {ignore: [{code, reason}]}` as reason by code."""
    out: dict[str, str] = {}
    for node in layers:
        values = RESOURCE_LINT.read(node, Reading(findings)) if node.value is not None else None
        for item in values["ignore"] if values is not None else ():
            if item["code"] and item["reason"]:
                out[item["code"]] = item["reason"]
    return out


def read_depends_on(layers: Collection[Node], findings: Findings) -> tuple[str, ...]:
    """Read `depends_on`: addresses and globs, each once."""
    nodes = [
        item
        for node in layers
        for item in (
            [node]
            if isinstance(node.value, str)
            else parsing.read_list(node, "`depends_on`", findings)
        )
    ]
    found = (parsing.read_address(node, "`depends_on`", findings) for node in nodes)
    return tuple(dict.fromkeys(text for text in found if text is not None))


def read_position(layers: Collection[Node], findings: Findings) -> Position | None:
    """Read `position:` of the strongest layer: where a consumer is to be set.

    None where it is null, or after a finding.
    """
    node = list(layers)[-1] if layers else None
    if node is None or node.value is None:
        return None
    given = [name for name in PLACES if node.is_given(name)]
    plain = without_keys(node, PLACES) if len(given) > 1 else node
    values = POSITION.read(plain, Reading(findings))
    if values is None or (not given and findings.is_misspelt(node, *PLACES)):
        return None
    if len(given) != 1:
        text = f"`position` needs one of seq, time and new, and has {' and '.join(given) or 'none'}"
        hint = 'Write where it is to be set: position: {seq: 1234, once: "2026-07-rebuild"}.'
        findings.error("JS159", node, text, hint)
        return None
    if given == ["new"] and values["new"] is False:
        findings.error(
            "JS159", node, "`new: false` names no position", "Write `new: true`, seq or time."
        )
        return None
    once, seq, time = values["once"], values["seq"], values["time"]
    if once is None or (given != ["new"] and seq is None and time is None):
        return None
    return Position(once, seq, time)
