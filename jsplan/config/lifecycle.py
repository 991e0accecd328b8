"""The guards and settings of one resource: `lifecycle`, `lint`, `depends_on`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, cast

from jsplan.codes import HAZARDS
from jsplan.config import parsing
from jsplan.config.findings import Findings
from jsplan.config.model import AllowedHazard, Lifecycle, OnReplace
from jsplan.config.node import Node
from jsplan.diagnostics import did_you_mean, list_known

_ON_REPLACE: Final = ("refuse", "recreate", "preserve")
_KEYS: Final = ("prevent_destroy", "ignore_changes", "on_replace", "allow_hazards")
NO_LIFECYCLE: Final = Lifecycle()


def read_lifecycle(
    layers: Collection[Node], known: Collection[str], findings: Findings
) -> Lifecycle:
    """Read `lifecycle:` of all layers, the strongest last.

    `known` are the names that `ignore_changes` may contain.
    """
    found: dict[str, Node] = {}
    for node in layers:
        if node.value is not None and parsing.check_mapping(
            node, "`lifecycle`", _KEYS, findings, _key_hint
        ):
            found |= node.value
    if not found:
        return NO_LIFECYCLE
    return Lifecycle(
        prevent_destroy=parsing.read_flag(
            found.get("prevent_destroy"), "`prevent_destroy`", findings
        ),
        ignore_changes=_read_ignore_changes(found.get("ignore_changes"), known, findings),
        on_replace=cast(
            "OnReplace | None",
            parsing.read_choice(found.get("on_replace"), "`on_replace`", _ON_REPLACE, findings),
        ),
        allow_hazards=_read_allow_hazards(found.get("allow_hazards"), findings),
    )


def _key_hint(key: str) -> str:
    return {
        "prevent_delete": 'Did you mean "prevent_destroy"?',
        "ignore": 'Did you mean "ignore_changes"?',
    }.get(key, "")


def _read_ignore_changes(
    node: Node | None, known: Collection[str], findings: Findings
) -> tuple[str, ...]:
    names = parsing.read_texts(node, "`ignore_changes`", findings)
    for name in names:
        if name not in known:
            guess = did_you_mean(name, known)
            findings.error(
                "JS140",
                node,
                f'`ignore_changes`: "{name}" is not a field',
                f"Name top-level fields of the resource.{guess}",
            )
    return tuple(names)


def _read_allow_hazards(node: Node | None, findings: Findings) -> tuple[AllowedHazard, ...]:
    out = []
    for item in parsing.read_list(node, "`allow_hazards`", findings):
        if not parsing.check_mapping(
            item, "an allowed hazard", ("code", "until", "reason"), findings
        ):
            continue
        code = parsing.read_required_text(item, "code", "an allowed hazard", findings)
        if code is not None and code not in HAZARDS:
            findings.error(
                "JS141",
                item.value["code"],
                f'there is no hazard "{code}"',
                list_known("hazards", HAZARDS, code),
            )
        reason = parsing.read_required_text(item, "reason", "an allowed hazard", findings)
        until = parsing.read_date(item.get("until"), "`until`", findings)
        if code and reason:
            out.append(AllowedHazard(code, reason, until))
    return tuple(out)


def read_lint_ignore(layers: Collection[Node], findings: Findings) -> dict[str, str]:
    """Read `lint: {ignore: [{code, reason}]}` as reason by code."""
    out: dict[str, str] = {}
    for node in layers:
        if node.value is None or not parsing.check_mapping(
            node, "`lint` of a resource", ("ignore",), findings
        ):
            continue
        for item in parsing.read_list(node.get("ignore"), "`lint.ignore`", findings):
            if parsing.check_mapping(item, "an ignored finding", ("code", "reason"), findings):
                code = parsing.read_required_text(item, "code", "an ignored finding", findings)
                reason = parsing.read_required_text(item, "reason", "an ignored finding", findings)
                if code and reason and parsing.read_code(item.value["code"], "`code`", findings):
                    out[code] = reason
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
