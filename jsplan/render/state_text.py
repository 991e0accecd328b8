"""The state as text: the managed resources, as last applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsplan.address import names_content
from jsplan.render.escape import safe
from jsplan.render.lines import Lines
from jsplan.render.values import non_default_leaves, scalar
from jsplan.units import count_text

if TYPE_CHECKING:
    from rich.console import Console


def render(state: dict[str, Any], console: Console) -> None:
    """Render every resource with its fields, then a count."""
    resources: dict[str, dict[str, Any]] = state.get("resources") or {}
    for address, entry in resources.items():
        resource(address, entry, console)
    lines = Lines()
    where = safe(str(state.get("workspace"))) + (
        f", environment {safe(str(state['environment']))}" if state.get("environment") else ""
    )
    lines.add(
        0,
        (
            f"Workspace {where}: {count_text(len(resources), 'resource')}, serial "
            f"{state.get('serial', 0)}."
        ),
    )
    if pending := state.get("pending"):
        lines.add(
            0,
            (
                (
                    f"{count_text(len(pending), 'step')} began and never ended. The next "
                    "plan shows how."
                ),
                "warn",
            ),
        )
    lines.print(console)


def resource(address: str, entry: dict[str, Any], console: Console) -> None:
    """Render one entry of the state and an empty line."""
    lines = Lines()
    _, kind, name = address.split("/", 2)
    # `created` of an entry of a bucket is that of its bucket.
    created = "" if names_content(address) else f", {safe(str(entry.get('created') or 'unknown'))}"
    guard = ("  # prevent_destroy", "warn") if entry.get("prevent_destroy") else ""
    lines.add(
        0,
        (safe(address), "strong"),
        (
            f" ({entry.get('origin', 'created')}{created})",
            "dim",
        ),
        guard,
    )
    for leaf in non_default_leaves(kind, name, entry.get("config") or {}):
        shown = "" if isinstance(leaf.value, dict) else f": {scalar(leaf.row, leaf.value)}"
        lines.add(4 + 4 * leaf.depth, safe(leaf.path) + shown)
    lines.blank()
    lines.print(console)
