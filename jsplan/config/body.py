"""Parses the fields of one resource to API names and units by the field tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from jsplan.config.findings import Findings
from jsplan.config.hints import field_hint
from jsplan.config.node import Node, describe_node, has_unknown, to_plain
from jsplan.resources.fields import Field, Table
from jsplan.resources.nested import ORIGIN

#: Keys of a mirror or source besides those of the API: references that `topology` resolves.
REFERENCE_KEYS: Final = ("domain", "deliver")


def parse(
    table: Table, fields: Mapping[str, Node], findings: Findings, address: str | None = None
) -> dict[str, Any]:
    """Parse the fields that the table knows; null stays None. Errors are reported and omitted."""
    rows = table.by_name
    body: dict[str, Any] = {}
    for name, node in fields.items():
        row = rows.get(name)
        if row is None:
            continue
        value = node.value
        if value is None:
            if not node.unknown:
                body[name] = None
        elif row.table is not None:
            _parse_nested(body, row, node, findings, address)
        else:
            try:
                body[name] = row.parse(to_plain(node) if node.raw is None else value)
            except ValueError as error:
                _report_value(row, node, str(error), findings, address)
    return body


def check_keys(
    table: Table, node: Node, extra: Collection[str], findings: Findings, address: str | None = None
) -> None:
    """Report every key that is neither a field nor in `extra`."""
    rows = table.by_name
    for key in node.value:
        if key not in rows and key not in extra:
            known = [*rows, *extra]
            what = _KIND_NAMES.get(table.kind, table.kind)
            advice = field_hint(table.kind, key, known)
            detail = (
                advice
                or f"A field of a server newer than this release goes into x_raw: {{{key}: …}}."
            )
            findings.unknown_key(node, key, f'"{key}" is not a field of {what}', detail, address)


_KIND_NAMES: Final = {
    "stream": "a stream", "consumer": "a consumer", "kv": "a KV bucket",
    "object_store": "an object store", "stream_source": "a mirror or source",
}  # fmt: skip


def _parse_nested(
    body: dict[str, Any], row: Field, node: Node, findings: Findings, address: str | None
) -> None:
    assert row.table is not None
    if row.type == "object":
        found = _parse_object(row.table, row.name, node, findings, address)
        if found is not None:
            body[row.name] = found
    elif isinstance(node.value, list):
        items = (_parse_object(row.table, row.name, item, findings, address) for item in node.value)
        body[row.name] = [item for item in items if item is not None]
    else:
        text = f"{row.name} must be a list of mappings, not {describe_node(node)}"
        findings.error("JS104", node, text, f"Write {row.name}: [{{…}}].", address)


def _parse_object(
    table: Table, name: str, node: Node, findings: Findings, address: str | None
) -> dict[str, Any] | None:
    if not isinstance(node.value, dict):
        text = f"{name} must be a mapping, not {describe_node(node)}"
        findings.error("JS104", node, text, f"Write {name}: {{key: value}}.", address)
        return None
    more = REFERENCE_KEYS if table is ORIGIN else ()
    check_keys(table, node, more, findings, address)
    body = {
        key: value
        for key, value in parse(table, node.value, findings, address).items()
        if value is not None
    }
    for row in table.rows:
        if row.required:
            findings.missing(node, row.name, name, f"Add `{row.name}:`. {row.doc}", address)
    for key in more:
        item = node.get(key)
        if item is not None and item.value is not None:
            body[key] = to_plain(item)
    return body


def _report_value(
    row: Field, node: Node, problem: str, findings: Findings, address: str | None
) -> None:
    if has_unknown(node):
        return
    at = _find_bad_element(row, node)
    if row.type == "string" and row.pattern is not None and isinstance(node.value, str):
        findings.error("JS131", at, f"{row.name}: {problem}", "Choose another name.", address)
        return
    detail = row.doc
    if row.type in ("string", "strings", "metadata") and not isinstance(
        at.value, str | list | dict
    ):
        detail = f'Put it in quotes: "{at.raw}".'
    elif row.type == "strings" and isinstance(node.value, str):
        detail = f'Write {row.name}: ["{node.value}"].'
    findings.error(
        "JS130",
        at,
        f"{row.name}: {problem}"
        if not problem.startswith(("is ", "must "))
        else f"{row.name} {problem}",
        detail,
        address,
    )


def _find_bad_element(row: Field, node: Node) -> Node:
    """Return the element that is wrong, for an exact place; else the node itself."""
    if isinstance(node.value, list):
        for item in node.value:
            try:
                row.parse([to_plain(item)])
            except ValueError:
                culprit: Node = item
                return culprit
    elif isinstance(node.value, dict):
        wrong: Node = next(
            (item for item in node.value.values() if not isinstance(item.value, str)), node
        )
        return wrong
    return node
