"""What the grammar knows and this release does not carry out: one line each, deleted when it does.

The sections are read and checked by their own modules all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jsplan.config.findings import Findings
from jsplan.config.node import Node


def _has_any(node: Node) -> Node | None:
    return node if node.value else None


#: Section of the workspace, where to look in it, and what it is called.
_NOT_YET: Final[tuple[tuple[str, Callable[[Node], Node | None], str], ...]] = (("backfills", _has_any, "`backfills`"),)


def report(document: Node, findings: Findings) -> None:
    """An error for each thing in the document that this release would silently leave undone."""
    for section, look, name in _NOT_YET:
        node = document.get(section)
        if node is not None and look(node) is not None:
            findings.error(
                "JS190", document.key_place(section), f"{name} is understood but not carried out by this release", "Take it out for now."
            )
