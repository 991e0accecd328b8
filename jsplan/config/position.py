"""`position:` of a consumer: where it is to be set, once for each word."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from jsplan.address import Kind
from jsplan.config.findings import Findings
from jsplan.config.model import Position
from jsplan.config.node import Node, without_keys
from jsplan.config.sections import Reading
from jsplan.config.tables.resources import PLACES, POSITION
from jsplan.config.tables.workspace import SETTING_KEYS

_CONSUMER_SETTINGS: Final = SETTING_KEYS | {POSITION.id}


def settings_of(kind: Kind) -> frozenset[str]:
    """Return the keys of a resource that are no fields of the server."""
    return _CONSUMER_SETTINGS if kind == "consumer" else SETTING_KEYS


def read_position(layers: Collection[Node], findings: Findings) -> Position | None:
    """Read `position:` of the strongest layer. None where it is null, or after a finding."""
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
