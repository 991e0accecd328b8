"""The guards and settings of one resource: `lifecycle`, `lint`, `depends_on`. Acting on them is left to planning."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, cast

from jsplan.codes import HAZARDS
from jsplan.config import grammar
from jsplan.config.findings import Findings
from jsplan.config.model import AllowedHazard, Lifecycle, OnReplace
from jsplan.config.node import Node
from jsplan.diagnostics import did_you_mean, known

_ON_REPLACE: Final = ("refuse", "recreate", "preserve")
_KEYS: Final = ("prevent_destroy", "ignore_changes", "on_replace", "allow_hazards")
NONE: Final = Lifecycle()


def lifecycle(layers: Collection[Node], known: Collection[str], findings: Findings) -> Lifecycle:
    """`lifecycle:` of all layers, the strongest last; `known` are the names that `ignore_changes` may hold."""
    found: dict[str, Node] = {}
    for node in layers:
        if node.value is not None and grammar.fields(node, "`lifecycle`", _KEYS, findings, _hint):
            found |= node.value
    if not found:
        return NONE
    return Lifecycle(
        prevent_destroy=grammar.flag(found.get("prevent_destroy"), "`prevent_destroy`", findings),
        ignore_changes=_ignored(found.get("ignore_changes"), known, findings),
        on_replace=cast("OnReplace | None", grammar.chosen(found.get("on_replace"), "`on_replace`", _ON_REPLACE, findings)),
        allow_hazards=_hazards(found.get("allow_hazards"), findings),
    )


def _hint(key: str) -> str:
    return {"prevent_delete": 'Did you mean "prevent_destroy"?', "ignore": 'Did you mean "ignore_changes"?'}.get(key, "")


def _ignored(node: Node | None, known: Collection[str], findings: Findings) -> tuple[str, ...]:
    names = grammar.texts(node, "`ignore_changes`", findings)
    for name in names:
        if name not in known:
            guess = did_you_mean(name, known)
            findings.error("JS140", node, f'`ignore_changes`: "{name}" is not a field', f"Name top-level fields of the resource.{guess}")
    return tuple(names)


def _hazards(node: Node | None, findings: Findings) -> tuple[AllowedHazard, ...]:
    out = []
    for item in grammar.items(node, "`allow_hazards`", findings):
        if not grammar.fields(item, "an allowed hazard", ("code", "until", "reason"), findings):
            continue
        code = grammar.required(item, "code", "an allowed hazard", findings)
        if code is not None and code not in HAZARDS:
            findings.error("JS141", item.value["code"], f'there is no hazard "{code}"', known("hazards", HAZARDS, code))
        reason = grammar.required(item, "reason", "an allowed hazard", findings)
        until = grammar.day(item.get("until"), "`until`", findings)
        if code and reason:
            out.append(AllowedHazard(code, reason, until))
    return tuple(out)


def lint_ignore(layers: Collection[Node], findings: Findings) -> dict[str, str]:
    """`lint: {ignore: [{code, reason}]}` as reason by code."""
    out: dict[str, str] = {}
    for node in layers:
        if node.value is None or not grammar.fields(node, "`lint` of a resource", ("ignore",), findings):
            continue
        for item in grammar.items(node.get("ignore"), "`lint.ignore`", findings):
            if grammar.fields(item, "an ignored finding", ("code", "reason"), findings):
                code = grammar.required(item, "code", "an ignored finding", findings)
                reason = grammar.required(item, "reason", "an ignored finding", findings)
                if code and reason and grammar.code(item.value["code"], "`code`", findings):
                    out[code] = reason
    return out


def depends_on(layers: Collection[Node], findings: Findings) -> tuple[str, ...]:
    """Addresses and globs, each once."""
    nodes = [item for node in layers for item in ([node] if isinstance(node.value, str) else grammar.items(node, "`depends_on`", findings))]
    found = (grammar.address(node, "`depends_on`", findings) for node in nodes)
    return tuple(dict.fromkeys(text for text in found if text is not None))
