"""Paths of files that a workspace names; refuses the content of a file in their place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jsplan.config import parsing
from jsplan.config.findings import Findings
from jsplan.config.node import Node
from jsplan.config.secret_fields import describe, is_content


def resolve_file_path(
    node: Node | None,
    what: str,
    environ: Mapping[str, str],
    findings: Findings,
    base: Path | None = None,
) -> Path | None:
    """Return a path as absolute, relative to `base` or to the file that names it; `~` is HOME."""
    if is_file_content(node, what, findings):
        return None
    value = parsing.read_path(node, what, findings)
    if value is None or node is None:
        return None
    return _make_absolute(value, node, environ, base)


def is_file_content(node: Node | None, what: str, findings: Findings) -> bool:
    """Report text that should be a path and is what a file of credentials holds."""
    if node is None or not isinstance(node.value, str) or not is_content(node.value):
        return False
    findings.error(
        "JS120",
        node,
        f"{what} must be a path,"
        f" and {describe(node) if node.references else 'this'} is the content of a file",
        "Put the content into a file that only you can read, and give its path.",
    )
    return True


def _make_absolute(value: str, node: Node, environ: Mapping[str, str], base: Path | None) -> Path:
    if value.startswith("~/") and environ.get("HOME"):
        return Path(environ["HOME"]) / value[2:]
    return (base or node.place[0].path.parent).absolute() / value
