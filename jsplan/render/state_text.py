"""The state as text: the managed resources as last applied, and the history of all applies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsplan.address import names_content
from jsplan.documents.plan import FieldChange
from jsplan.render.escape import safe, safe_lines
from jsplan.render.lines import Lines, add_table
from jsplan.render.resource_text import HEADS, add_field_change
from jsplan.render.values import non_default_leaves, scalar
from jsplan.units import count_text

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.render.lines import Cell


EMPTY = "Nothing was applied here yet, or only by releases without a history."
_ROLES = {
    "done": "good",
    "started": "warn",
    "interrupted": "warn",
    "partial": "bad",
    "failed": "bad",
    "unknown": "bad",
    "skipped": "dim",
}
_RESULT_LABELS = {"started": "cut off"}
#: Changes that are listed for one entry.
_MAX_SHOWN = 500
_PARTS = (
    "imported",
    "added",
    "changed",
    "replaced",
    "destroyed",
    "forgotten",
    "failed",
    "skipped",
    "deferred",
)
#: The counts of a plan, shown for a session that never recorded its result.
_PLANNED = ("import", "add", "change", "replace", "destroy", "forget")
_HEADS = HEADS | {("no-op",): (">", "import", ""), (): ("?", "warn", "")}


def render(state: dict[str, Any], console: Console) -> None:
    """Render every resource with its fields, then a count."""
    resources: dict[str, dict[str, Any]] = state.get("resources") or {}
    for address, entry in resources.items():
        resource(address, entry, console)
    lines = Lines()
    where = safe(str(state.get("workspace"))) + (
        f", environment {safe(str(state['environment']))}" if state.get("environment") else ""
    )
    count, serial = count_text(len(resources), "resource"), state.get("serial", 0)
    lines.add(0, f"Workspace {where}: {count}, serial {serial}.")
    if pending := state.get("pending"):
        text = f"{count_text(len(pending), 'step')} began and never ended. The next plan shows how."
        lines.add(0, (text, "warn"))
    lines.print(console)


def resource(address: str, entry: dict[str, Any], console: Console) -> None:
    """Render one entry of the state and an empty line."""
    lines = Lines()
    _, kind, name = address.split("/", 2)
    # `created` of an entry of a bucket is that of its bucket.
    created = "" if names_content(address) else f", {safe(str(entry.get('created') or 'unknown'))}"
    guard = ("  # prevent_destroy", "warn") if entry.get("prevent_destroy") else ""
    origin = f" ({entry.get('origin', 'created')}{created})"
    lines.add(0, (safe(address), "strong"), (origin, "dim"), guard)
    for leaf in non_default_leaves(kind, name, entry.get("config") or {}):
        shown = "" if isinstance(leaf.value, dict) else f": {scalar(leaf.row, leaf.value)}"
        lines.add(4 + 4 * leaf.depth, safe(leaf.path) + shown)
    lines.blank()
    lines.print(console)


def render_history(document: dict[str, Any], console: Console, *, one: bool) -> None:
    """Render the table, or with `one` the single entry of the document."""
    lines = Lines()
    if one:
        _render_entry(lines, document["entries"][0])
    elif not document["entries"]:
        lines.add(0, EMPTY)
    else:
        width = console.width if console.is_terminal else None
        rows = [_row(entry) for entry in document["entries"]]
        add_table(
            lines, ("ID", "WHEN", "WHO", "WHAT", "CHANGES", "RESULT"), rows, left=6, width=width
        )
    lines.print(console)


def _row(entry: dict[str, Any]) -> list[Cell]:
    of = f" of {entry['reverts']}" if "reverts" in entry else ""
    return [
        str(entry["id"]),
        entry["at"],
        safe(f"{entry['who']}@{entry['host']}"),
        safe(entry["operation"]) + of,
        _counts(entry),
        (_result(entry), _ROLES.get(entry["result"], "")),
    ]


def _result(entry: dict[str, Any]) -> str:
    """Return the result; an entry that never ended was interrupted, unless it still runs."""
    if entry.get("running"):
        return "under way"
    return str(_RESULT_LABELS.get(entry["result"], entry["result"]))


def _counts(entry: dict[str, Any]) -> str:
    known: dict[str, int] = entry["summary"]
    if "state" in known:
        return f"{count_text(known['state'], 'entry', 'entries')} of the state"
    if entry["result"] == "started":
        return (
            ", ".join(f"{known[part]} to {part}" for part in _PLANNED if known.get(part))
            or "nothing"
        )
    parts = [f"{known[part]} {part}" for part in _PARTS if known.get(part)]
    parts += [count_text(len(entry["backfills"]), "backfill")] if entry.get("backfills") else []
    return ", ".join(parts) or "state brought up to date"


def _render_entry(lines: Lines, entry: dict[str, Any]) -> None:
    lines.add(
        0,
        (safe(f"{entry['operation']} {entry['id']}"), "strong"),
        f"  {_result(entry)}",
        (f"  {_counts(entry)}", "dim"),
    )
    _add_fact(lines, "by", f"{entry['who']}@{entry['host']}, jsplan {entry['jsplan_version']}")
    _add_fact(lines, "began", entry["at"])
    _add_fact(lines, "ended", entry["ended"])
    _add_fact(lines, "environment", entry["environment"])
    _add_fact(lines, "undoes", entry.get("reverts"))
    if entry["plan"]:
        _add_fact(lines, "plan", f"{entry['plan']['id']}, sha256 {entry['plan']['sha256']}")
    _add_fact(lines, "saved in", entry.get("backup"))
    _add_fact(lines, "backfills", ", ".join(entry.get("backfills", ())))
    lines.blank()
    if entry["changes"] is None:
        lines.add(0, "Only the counts of this apply are stored: it, or a later one, was too large.")
    changes = entry["changes"] or []
    for item in changes[:_MAX_SHOWN]:
        _render_change(lines, item)
    if len(changes) > _MAX_SHOWN:
        lines.add(0, (f"and {len(changes) - _MAX_SHOWN:,} more; --json has all of them", "dim"))


def _add_fact(lines: Lines, name: str, value: Any) -> None:
    if value:
        lines.add(2, (f"{name:<12}", "dim"), safe(str(value)))


def _render_change(lines: Lines, item: dict[str, Any]) -> None:
    sign, role, _ = _HEADS.get(tuple(item["actions"]), _HEADS[()])
    status = (
        ""
        if item["status"] == "done"
        else f"  {_RESULT_LABELS.get(item['status'], item['status'])}"
    )
    moved = (f" (was {safe(item['moved_from'])})", "dim") if "moved_from" in item else ""
    lines.add(
        0,
        (f"{sign:>3} ", role),
        (safe(item["address"]), "strong"),
        moved,
        (status, _ROLES.get(item["status"], "")),
    )
    kind = item["address"].split("/")[1]
    for raw in item["fields"]:
        add_field_change(lines, kind, FieldChange(**raw))
    for cost in item["costs"]:
        number = cost.get("messages") or cost.get("at_most") or cost.get("at_least")
        lines.add(
            6,
            ("! ", "bad"),
            (cost["code"], "bad"),
            f" [{count_text(number, 'message')}]" if number else "",
        )
    for line in safe_lines(item["error"] or ""):
        lines.add(6, line)
