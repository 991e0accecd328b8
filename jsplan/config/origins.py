"""Expands the selectors in `mirror:` and `sources:` to one origin per matching domain.

An origin is still named by the key of its domain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jsplan.config.expand import DomainSelectors, is_pattern
from jsplan.config.findings import Findings
from jsplan.config.node import Node, count_values, make_mapping

#: The cost of one origin besides its values, counted in values.
_PARTS: Final = 20


class OriginExpander:
    """The origins of the resources of one workspace."""

    def __init__(self, selectors: DomainSelectors, findings: Findings) -> None:
        self._selectors = selectors
        self._findings = findings

    def expand(self, fields: Mapping[str, Node], domain: str, name: str) -> Mapping[str, Node]:
        """Return the fields with one domain per origin.

        `domain` and `name` are the resource's own.
        """
        out = dict(fields)
        mirror, sources = fields.get("mirror"), fields.get("sources")
        if mirror is not None and isinstance(mirror.value, dict):
            out["mirror"] = self._expand_mirror(mirror)
        if sources is not None and isinstance(sources.value, list):
            expanded = [
                origin
                for item in sources.value
                for origin in self._expand_source(item, domain, name)
            ]
            out["sources"] = Node(sources.place, expanded)
        return out

    def _expand_mirror(self, node: Node) -> Node:
        wanted = self._read_domain(node)
        if wanted is None:
            return node
        found = self._selectors.select(wanted)
        if len(found) > 1 or (not found and _names_several(wanted)):
            matched = ", ".join(found[:5]) if found else "none"
            text = "a mirror has one origin"
            self._findings.error("JS125", wanted, text, f"Name one domain; this matches {matched}.")
        return _with_domain(node, found[0] if found else None)

    def _expand_source(self, node: Node, domain: str, name: str) -> list[Node]:
        wanted = self._read_domain(node) if isinstance(node.value, dict) else None
        if wanted is None:
            return [node]
        found = self._selectors.select(wanted)
        own = node.get("name")
        if _names_several(wanted) and own is not None and own.value == name:
            found = [key for key in found if key != domain]  # a stream cannot source itself
        if not self._findings.allow_values(len(found) * (_PARTS + count_values(node)), node):
            return []
        return [_with_domain(node, key) for key in found]

    def _read_domain(self, node: Node) -> Node | None:
        wanted, external, deliver = node.get("domain"), node.get("external"), node.get("deliver")
        named = wanted is not None and wanted.value is not None
        if named and external is not None and external.value is not None:
            text = "the origin is named by `domain` and by `external`"
            self._findings.error("JS137", external, text, "Keep one; `domain` computes the other.")
        if deliver is not None and deliver.value is not None:
            if not isinstance(deliver.value, str):
                self._findings.wrong_type(deliver, "`deliver`", "text")
            elif not named:
                hint = "With `external`, write external: {api: …, deliver: …}."
                self._findings.error("JS137", deliver, "`deliver` requires `domain`", hint)
        return wanted if named else None


def _names_several(wanted: Node) -> bool:
    return not isinstance(wanted.value, str) or is_pattern(wanted.value)


def _with_domain(node: Node, key: str | None) -> Node:
    at = node.value["domain"].place
    return make_mapping(node.place, node.value | {"domain": Node(at, key, key)}, node.keys)
