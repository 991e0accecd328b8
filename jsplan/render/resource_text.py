"""One resource of a plan or of drift as lines: its change, field by field."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from jsplan import units
from jsplan.documents.step_kinds import CANNOT_PRESERVE, RESET_BY_POSITION, TARGET_PREPARED
from jsplan.render.escape import safe
from jsplan.render.lines import Lines
from jsplan.render.values import (
    Leaf,
    create_leaves,
    flatten,
    is_element,
    is_short,
    row_of,
    scalar,
    top_level,
    without_key_fields,
)
from jsplan.resources.nested import ORIGIN
from jsplan.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsplan.documents.plan import FieldChange, Hazard, ResourceChange
    from jsplan.resources import Field

BODY_INDENT = 6

_DELETED_FIRST = "will be replaced: deleted with its data, then created"
#: actions -> symbol, role, description of the change; the most severe ones last.
HEADS: dict[tuple[str, ...], tuple[str, str, str]] = {
    ("forget",): ("#", "forget", "will be forgotten; it stays on the server"),
    ("no-op",): (" ", "dim", "unchanged"),
    ("create",): ("+", "create", "will be created"),
    ("update",): ("~", "update", "will be updated in place"),
    ("create", "delete"): ("-/+", "update", "will be replaced, its data carried over"),
    ("delete", "create"): ("-/+", "replace", _DELETED_FIRST),
    ("delete",): ("-", "delete", "will be destroyed"),
}
_CONSUMER_HEADS = {
    ("delete", "create"): ("-/+", "replace", "will be replaced; its position is lost"),
    ("create", "delete"): ("-/+", "update", "will be replaced, its position carried over"),
}
_NOTES = {
    "replace": "forces replacement",
    "created": "another client deleted it and created it again",
    "one_way": "cannot be undone",
    "ignored": "the server ignores this",
}
_BAD_NOTES = ("replace", "one_way", "created")


def action_key(resource: ResourceChange) -> tuple[str, ...]:
    """Return the actions as a key."""
    return tuple(resource.change.actions)


def render(resource: ResourceChange, where: str = "") -> Lines:
    """Render head, fields and hazards of a change; `where` names the domains of a group."""
    lines = Lines()
    add_head(lines, resource, where)
    add_body(lines, resource)
    for hazard in resource.hazards:
        add_hazard(lines, hazard)
    return lines


def headline(resource: ResourceChange) -> tuple[str, str, str]:
    """Return a sign, its role, and the change of the resource in words."""
    actions = action_key(resource)
    heads = HEADS | _CONSUMER_HEADS if resource.type == "consumer" else HEADS
    if resource.relocated_from and resource.action_reason == TARGET_PREPARED:
        origin = safe(resource.relocated_from)
        return "+", "create", f"will be prepared: a copy that follows {origin}"
    if resource.relocated_from:
        return "+", "create", f"will be relocated from {safe(resource.relocated_from)}"
    if resource.relocated_to:
        other = safe(resource.relocated_to)
        if "create" in actions:
            return "-/+", "update", f"will become a mirror of {other}, once that is complete"
        return "-", "update", f"will be deleted when it is complete in {other}"
    if resource.change.importing:
        return (
            ">",
            "import",
            "will be imported unchanged"
            if actions == ("no-op",)
            else "will be imported, then updated in place",
        )
    if resource.action_reason == CANNOT_PRESERVE:
        return "-/+", "replace", "cannot be replaced with its data carried over"
    if resource.action_reason == RESET_BY_POSITION and actions == ("create", "delete"):
        return "-/+", "replace", "will be replaced, at the position of the files"
    return heads.get(actions, ("?", "warn", "will be changed in a way this release does not know"))


def add_head(lines: Lines, resource: ResourceChange, where: str) -> None:
    """Add the first line: the change of the resource."""
    symbol, role, says = headline(resource)
    pieces: list[tuple[str, str] | str] = [
        (f"{symbol:>3} ", role),
        (safe(resource.address), "strong"),
        f" {says}",
    ]
    if resource.previous_address:
        pieces.append((f" (moved from {safe(resource.previous_address)})", "dim"))
    if where:
        pieces += [", ", (safe(where), "strong")]
    lines.add(0, *pieces)


def add_body(lines: Lines, resource: ResourceChange) -> None:
    """Add the fields: all of a new resource, or the changed ones of an existing resource."""
    if action_key(resource) == ("create",) and resource.change.after is not None:
        for leaf in create_leaves(resource.type, resource.name, resource.change.after):
            _add_whole_field(lines, BODY_INDENT, "+", "create", leaf)
        return
    forced = {path[0] for path in resource.change.replace_paths if path}
    for change in resource.change.fields:
        add_field_change(lines, resource.type, change, forces=top_level(change.path) in forced)


def add_field_change(lines: Lines, kind: str, change: FieldChange, *, forces: bool = False) -> None:
    """Add one field: `~ path: before -> after`, or the added and removed elements."""
    row, path = row_of(kind, change.path), safe(change.path)
    note = _NOTES.get("replace" if forces else change.effect, "")
    note = _NOTES["created"] if change.path == "created" else note
    tail = (f"  # {note}", "bad" if note in map(_NOTES.get, _BAD_NOTES) else "dim") if note else ""
    before, after = change.before, change.after
    if kind == "kv_entry":
        pages = _lay_out(before), _lay_out(after)
        before, after = pages if None not in pages and pages[0] != pages[1] else (before, after)
    if (
        before is None and after is None
    ):  # both sides are empty only where the new value is unknown yet
        lines.add(BODY_INDENT, ("~ ", "update"), f"{path}: ", ("(known after apply)", "dim"), tail)
    elif _is_unset(before) or _is_unset(after):
        sign, role, value = ("+", "create", after) if _is_unset(before) else ("-", "delete", before)
        _add_whole_field(lines, BODY_INDENT, sign, role, Leaf(0, change.path, row, value), tail)
    elif isinstance(before, list) and isinstance(after, list):
        lines.add(BODY_INDENT, ("~ ", "update"), f"{path}:", tail)
        _add_elements(lines, row, before, after)
    elif _is_page(before) or _is_page(after):
        lines.add(BODY_INDENT, ("~ ", "update"), f"{path}:", tail)
        _add_line_changes(lines, before, after)
    else:
        lines.add(
            BODY_INDENT,
            ("~ ", "update"),
            f"{path}: {_one_line(row, before)} -> {_one_line(row, after)}",
            tail,
        )


def _lay_out(value: Any) -> str | None:
    """Return a JSON object or list with one element to a line; None for another value."""
    if not isinstance(value, str) or not value.startswith(("{", "[")):
        return None
    try:
        return json.dumps(json.loads(value), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _is_page(value: Any) -> bool:
    """Return True for text of several lines, as values of KV buckets are."""
    return isinstance(value, str) and "\n" in value.rstrip("\n")


def _add_line_changes(lines: Lines, before: str, after: str) -> None:
    """Add the lines that differ between two texts, with those around them."""
    from difflib import unified_diff  # noqa: PLC0415 - rarely needed

    signs = {"+": "create", "-": "delete", " ": "dim", "@": "dim"}
    found = unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2)
    for number, line in enumerate(found):
        if number > 1 and line[0] != "@":
            lines.add(BODY_INDENT + 4, (f"{line[0]} ", signs[line[0]]), safe(line[1:]))
    if before.endswith("\n") != after.endswith("\n"):
        gone = "no line break" if before.endswith("\n") else "a line break"
        lines.add(BODY_INDENT + 4, ("~ ", "update"), (f"{gone} at the end", "dim"))


def _is_unset(value: Any) -> bool:
    """Return True if a side of a change only says that the field is not set."""
    return value is None or value in ("", [], {})


def _one_line(row: Field | None, value: Any) -> str:
    return scalar(None if isinstance(value, dict) else row, value)


def _add_whole_field(
    lines: Lines, indent: int, sign: str, role: str, leaf: Leaf, tail: tuple[str, str] | str = ""
) -> None:
    """Add a field that is added or removed; long lists get a line per element."""
    row, value, indent = leaf.row, leaf.value, indent + 4 * leaf.depth
    path, head = safe(leaf.path), (f"{sign} ", role)
    if isinstance(value, dict):
        lines.add(indent, head, path, tail)
        for inner in _child_leaves(leaf):
            _add_whole_field(lines, indent + 4, sign, role, inner)
    elif is_short(row, value):
        lines.add(indent, head, f"{path}: {scalar(row, value)}", tail)
    else:
        lines.add(indent, head, f"{path}:", tail)
        for item in value:
            lines.add(indent + 4, head, _one_line(row, item))


def _child_leaves(leaf: Leaf) -> Iterator[Leaf]:
    table = leaf.row.table if leaf.row else None
    if table is None:
        return flatten(None, leaf.value)
    try:
        config = table.compact(leaf.value)
        return flatten(
            table,
            without_key_fields(config) if table is ORIGIN and is_element(leaf.path) else config,
        )
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ):  # a plan may hold any value for a field: show it unchanged
        return flatten(None, leaf.value)


def _add_elements(lines: Lines, row: Field | None, before: list[Any], after: list[Any]) -> None:
    """Add the removed, then the added elements; show both lists if only the order changed."""
    gone, come = [x for x in before if x not in after], [x for x in after if x not in before]
    for sign, role, items in (("-", "delete", gone), ("+", "create", come)):
        for item in items:
            lines.add(BODY_INDENT + 4, (f"{sign} ", role), _one_line(row, item))
    kept = len(after) - len(come)
    if not gone and not come:
        lines.add(BODY_INDENT + 4, f"{scalar(row, before)} -> {scalar(row, after)}")
    elif kept:
        lines.add(BODY_INDENT + 6, (f"({kept} unchanged)", "dim"))


def add_hazard(lines: Lines, hazard: Hazard) -> None:
    """Add a hazard with its amount, its causes, and how to allow it."""
    role = "good" if hazard.allowed else "bad" if hazard.blocking else "warn"
    amount = format_amount(hazard)
    pieces: list[tuple[str, str] | str] = [
        ("! ", role),
        (hazard.code, role),
        f": {safe(hazard.message)}",
    ]
    if amount:
        pieces.append((f" [{amount}]", role))
    lines.add(BODY_INDENT, *pieces)
    if causes := [cause for cause in hazard.causes if cause not in hazard.message]:
        lines.add(BODY_INDENT + 2, (f"because of {safe(', '.join(causes))}", "dim"))
    if hazard.allowed:
        lines.add(BODY_INDENT + 2, ("allowed", "good"))
    elif hazard.blocking:
        lines.add(BODY_INDENT + 2, "allow it with ", (safe(hazard.flag), "strong"))


def format_amount(hazard: Hazard) -> str:
    """Return `1,203 messages, 86.1 KiB, 2 consumers`, with bounds where it is not exact.

    Numbers that the message mentions are left out.
    """
    parts = []
    if hazard.messages is not None or hazard.at_least is not None:
        parts.append(_format_messages(hazard))
    if hazard.bytes is not None and not _mentions_number(hazard, hazard.bytes):
        parts.append(units.format_bytes(hazard.bytes))
    if hazard.consumers and not _mentions_number(hazard, hazard.consumers):
        parts.append(count_text(hazard.consumers, "consumer"))
    return ", ".join(part for part in parts if part)


def _format_messages(hazard: Hazard) -> str:
    most = hazard.at_most if hazard.at_most is not None else hazard.messages
    if hazard.exact is not False:
        return "" if most is None or _mentions_number(hazard, most) else count_text(most, "message")
    if hazard.at_least is None:
        if most is None or _mentions_number(hazard, most):
            return ""
        return f"at most {count_text(most, 'message')}"
    if most is None or most == hazard.at_least:
        if not hazard.at_least or _mentions_number(hazard, hazard.at_least):
            return ""
        return f"at least {count_text(hazard.at_least, 'message')}"
    if _mentions_number(hazard, hazard.at_least) and _mentions_number(hazard, most):
        return ""
    return f"{hazard.at_least:,} to {most:,} messages"


def _mentions_number(hazard: Hazard, number: int) -> bool:
    """Return True if the message of the hazard mentions the number."""
    return (
        re.search(rf"(?<![\d,.]){number:,}(?![\d,.]?\d)|(?<!\d){number}(?!\d)", hazard.message)
        is not None
    )
