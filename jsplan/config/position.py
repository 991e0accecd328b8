"""`position:` of a consumer: where it is to be set, once for each word."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from jsplan.address import Kind
from jsplan.config import parsing
from jsplan.config.findings import Findings
from jsplan.config.model import Position
from jsplan.config.node import Node
from jsplan.units import normalize_time

POSITION: Final = "position"
#: The keys of every resource that are no fields of the server.
SETTING_KEYS: Final = ("lifecycle", "lint", "depends_on", "x_raw")
_PLACES: Final = ("seq", "time", "new")
_KEYS: Final = (*_PLACES, "once")
_MAX_SEQ: Final = (1 << 63) - 1


_SETTINGS: Final = frozenset(SETTING_KEYS)
_CONSUMER_SETTINGS: Final = _SETTINGS | {POSITION}


def settings_of(kind: Kind) -> frozenset[str]:
    """Return the keys of a resource that are no fields of the server."""
    return _CONSUMER_SETTINGS if kind == "consumer" else _SETTINGS


def read_position(layers: Collection[Node], findings: Findings) -> Position | None:
    """Read `position:` of the strongest layer. None where it is null, or after a finding."""
    node = list(layers)[-1] if layers else None
    if node is None or node.value is None:
        return None
    if not parsing.check_mapping(node, "`position`", _KEYS, findings):
        return None
    once = parsing.read_required_text(node, "once", "`position`", findings)
    given = [name for name in _PLACES if node.is_given(name)]
    if not given and findings.is_misspelt(node, *_PLACES):
        return None
    if len(given) != 1:
        findings.error(
            "JS159",
            node,
            f"`position` needs one of seq, time and new, and has {' and '.join(given) or 'none'}",
            'Write where it is to be set: position: {seq: 1234, once: "2026-07-rebuild"}.',
        )
        return None
    if once is None:
        return None
    if given == ["new"]:
        if parsing.read_flag(node.get("new"), "`new`", findings) is False:
            findings.error(
                "JS159", node, "`new: false` names no position", "Write `new: true`, seq or time."
            )
            return None
        return Position(once)
    if given == ["seq"]:
        seq = parsing.read_parsed(node.get("seq"), "`seq`", _parse_seq, findings)
        return Position(once, seq=seq) if seq is not None else None
    time = parsing.read_parsed(node.get("time"), "`time`", normalize_time, findings)
    return Position(once, time=time) if time is not None else None


def _parse_seq(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_SEQ:
        raise ValueError("the sequence of a message is a whole number from 1 on")
    return value


def position_schema() -> dict[str, Any]:
    """Return the JSON Schema of `position:`, for editors."""
    reference = {"$ref": "#/$defs/reference"}
    keys = {
        "seq": {"anyOf": [{"type": "integer", "minimum": 1}, reference]},
        "time": {"$ref": "#/$defs/time"},
        "new": {"description": "After the last message.", "type": "boolean"},
        "once": {"description": "A word. Another one sets it again.", "type": "string"},
    }
    return {
        "description": "Where to set the consumer, once for each word: one place.",
        "type": ["object", "null"],
        "properties": keys,
        "additionalProperties": False,
        "required": ["once"],
    }
