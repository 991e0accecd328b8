"""The result of a backup as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsplan.disk import display_path
from jsplan.render.escape import safe
from jsplan.render.lines import Lines
from jsplan.units import count_text, format_bytes

if TYPE_CHECKING:
    from rich.console import Console


def render(document: dict[str, Any], folder: str, console: Console) -> None:
    """Render what this run saved and could not save, then the greppable line."""
    lines, saved, kept = Lines(), set(document["saved"]), set(document["kept"])
    for stream in document["streams"]:
        address = stream["address"]
        if address in saved:
            lines.add(
                2, ("+ ", "create"), (safe(address), "strong"), f"  {_describe_content(stream)}"
            )
        elif address in kept:
            lines.add(2, ("= ", "dim"), safe(address), ("  unchanged since it was saved", "dim"))
    for missing in document["missing"]:
        lines.add(
            2, ("! ", "bad"), (safe(missing["address"]), "strong"), f"  {safe(missing['reason'])}"
        )
    if len(lines):
        lines.blank()
    lines.add(0, (backup_line(document), "bad" if document["exit_code"] else "good"))
    total = document["summary"]
    streams, consumers, messages = (
        count_text(total[f"{noun}s"], noun) for noun in ("stream", "consumer", "message")
    )
    content = f"{streams}, {consumers} and {messages}"
    lines.add(
        0,
        (
            f"{safe(display_path(Path(folder)))} holds {content}: "
            f"{format_bytes(total['bytes'])} in {format_bytes(total['archive_bytes'])}."
        ),
    )
    lines.print(console)


def _describe_content(stream: dict[str, Any]) -> str:
    state = stream["before"]
    parts = [count_text(state["messages"], "message"), format_bytes(state["bytes"])]
    parts += [count_text(len(stream["consumers"]), "consumer")] if stream["consumers"] else []
    parts += ["messages came or went meanwhile"] if stream["before"] != stream["after"] else []
    return ", ".join(parts)


def backup_line(document: dict[str, Any]) -> str:
    """Return `Backup complete! Streams: 2 saved, …`, or `Backup incomplete. …`."""
    head = "Backup complete!" if document["complete"] else "Backup incomplete."
    return (
        f"{head} Streams: {len(document['saved'])} saved, {len(document['kept'])} unchanged, "
        f"{len(document['missing'])} not saved."
    )
