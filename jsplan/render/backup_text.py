"""The results of a backup and of a restore as text, and what a restore would bring back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsplan.disk import display_path
from jsplan.render.escape import safe
from jsplan.render.lines import Lines
from jsplan.units import count_text, format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan


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
        f"{safe(display_path(Path(folder)))} holds {content}: "
        f"{format_bytes(total['bytes'])} in {format_bytes(total['archive_bytes'])}.",
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


# --- a restore ------------------------------------------------------------------------------------

_HEADS = {0: "Restore complete!", 130: "Restore interrupted."}


def render_saved(plan: Plan, console: Console) -> None:
    """Render the content of the backup, stream by stream."""
    lines = Lines()
    lines.add(
        0, ("From the backup in ", "strong"), safe(display_path(Path(plan.options["folder"]))), ":"
    )
    lines.blank()
    for one in plan.options["restore"]:
        parts = [count_text(one["messages"], "message"), format_bytes(one["bytes"])]
        parts += [count_text(one["consumers"], "consumer")] if one["consumers"] else []
        came = f", saved from {safe(one['from'])}" if one["from"] != one["address"] else ""
        there = (
            ("  is there already, as it was saved", "dim")
            if one["exists"]
            else f"  {', '.join(parts)} of {one['taken_at']}{came}"
        )
        lines.add(2, safe(one["address"]), there)
    lines.blank()
    lines.print(console)


def restore_line(plan: Plan, result: ApplyResult) -> str:
    """Return `Restore complete! Streams: 2 restored, 1 there already.`, or another result."""
    done = sum(1 for step in result.steps if step.op == "stream.restore" and step.status == "done")
    failed = sum(1 for step in result.steps if step.op == "stream.restore") - done
    there = sum(1 for one in plan.options["restore"] if one["exists"])
    parts = [f"{done} restored", f"{there} there already"] + (
        [f"{failed} not restored"] if failed else []
    )
    return f"{_HEADS.get(result.exit_code, 'Restore incomplete.')} Streams: {', '.join(parts)}."
