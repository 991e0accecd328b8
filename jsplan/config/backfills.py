"""The grammar of `backfills:`: checked here, so that files can be written today; running them comes with `backfill`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from jsplan import units
from jsplan.config import grammar
from jsplan.config.findings import Findings
from jsplan.config.interpolate import Scope, interpolate
from jsplan.config.model import Domain
from jsplan.config.node import Node
from jsplan.diagnostics import did_you_mean

_KEYS: Final = (
    "name", "from", "to", "order", "strategy", "keep", "oversize", "rate", "window", "where", "transform", "subject_transform",
    "environments",
)  # fmt: skip
_FROM: Final = ("domain", "stream", "start_seq", "start_time", "end_seq", "end_time", "filter_subject", "filter_subjects", "parquet")
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "order": ("stream", "subject", "none"),
    "strategy": ("auto", "native", "snapshot", "spark"),
    "keep": ("origin", "server"),
    "oversize": ("error", "native", "skip"),
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_WINDOW = re.compile(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d")


def check(section: Node | None, domains: Mapping[str, Domain], scope: Scope, findings: Findings) -> None:
    """Report everything that is wrong with the entries."""
    seen: dict[str, Node] = {}
    for written in grammar.items(section, "`backfills`", findings):
        node = interpolate(written, scope, findings)
        if not grammar.fields(node, "a backfill", _KEYS, findings):
            continue
        name = grammar.required(node, "name", "a backfill", findings)
        if name is not None and not _NAME.fullmatch(name):
            findings.error("JS131", node.value["name"], f'"{name}" is not a name for a backfill', "Use letters, digits, - and _.")
        if name is not None and seen.setdefault(name, node) is not node:
            findings.error("JS110", node, f"backfill {name} is declared twice", "Keep one.")
        _check_entry(node, domains, findings)


def _check_entry(node: Node, domains: Mapping[str, Domain], findings: Findings) -> None:
    for key, values in _CHOICES.items():
        grammar.chosen(node.get(key), f"`{key}`", values, findings)
    for key in ("from", "to"):
        side = node.get(key)
        if side is None or side.value is None:
            findings.error("JS106", node, f"a backfill has no `{key}`", f"Add {key}: {{domain: …, stream: …}} or {key}: {{parquet: PATH}}.")
        elif key == "from":
            for item in side.value if isinstance(side.value, list) else [side]:
                _side(item, _FROM, domains, findings)
        else:
            _side(side, ("domain", "stream", "parquet"), domains, findings)
    for key in ("where", "transform"):
        grammar.text(node.get(key), f"`{key}`", findings)
    grammar.parsed(node.get("rate"), "`rate`", _rate, findings)
    grammar.parsed(node.get("window"), "`window`", _window, findings)
    transform = node.get("subject_transform")
    if transform is not None and grammar.fields(transform, "`subject_transform`", ("src", "dest"), findings):
        grammar.required(transform, "src", "`subject_transform`", findings)
        grammar.required(transform, "dest", "`subject_transform`", findings)


def _side(node: Node, keys: tuple[str, ...], domains: Mapping[str, Domain], findings: Findings) -> None:
    if not grammar.fields(node, "a side of a backfill", keys, findings):
        return
    if "parquet" in node.value:
        grammar.required(node, "parquet", "a side of a backfill", findings)
        return
    grammar.required(node, "stream", "a side of a backfill", findings)
    domain = grammar.text(node.get("domain"), "`domain`", findings)
    if domain is not None and domain not in domains:
        findings.error(
            "JS122", node.value["domain"], f'there is no domain "{domain}"', f"Declare it under `domains:`.{did_you_mean(domain, domains)}"
        )
    for bound in ("start", "end"):
        if f"{bound}_seq" in node.value and f"{bound}_time" in node.value:
            findings.error("JS104", node, f"both {bound}_seq and {bound}_time are given", "Keep one.")
        grammar.parsed(node.get(f"{bound}_seq"), f"`{bound}_seq`", _sequence, findings)
        grammar.parsed(node.get(f"{bound}_time"), f"`{bound}_time`", units.parse_time, findings)
    grammar.texts(node.get("filter_subjects"), "`filter_subjects`", findings)
    grammar.text(node.get("filter_subject"), "`filter_subject`", findings)


def _sequence(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a sequence is a whole number from 1")
    return value


def _rate(value: object) -> int:
    if isinstance(value, str) and not value.endswith("/s"):
        raise ValueError(f'"{value}" is not a rate; write 2MB/s')
    return units.parse_size(value.removesuffix("/s") if isinstance(value, str) else value)


def _window(value: object) -> str:
    if not isinstance(value, str) or not _WINDOW.fullmatch(value):
        raise ValueError(f'"{value}" is not a window; write "01:00-05:00"')
    return value
