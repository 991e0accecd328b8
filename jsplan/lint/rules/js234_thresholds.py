"""JS234: thresholds in metadata that cannot be read, or say the same at all times."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.diagnostics import did_you_mean
from jsplan.health.thresholds import (
    ENABLED,
    PREFIX,
    Kind,
    find_row,
    kind_of,
    known_keys,
    list_keys,
    parse_value,
)
from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import LintItem, View


def check(view: View) -> Iterator[Hit]:
    """Each key of `io.nats.monitor.` in the metadata of a stream, bucket or consumer."""
    for item in (*view.streams(), *view.consumers()):
        for key, text in list_keys(item.config.get("metadata") or {}).items():
            if problem := _find_problem(item, key, text):
                yield Hit(item.address, problem, "metadata")


def _find_problem(item: LintItem, key: str, text: str) -> str:
    kind = kind_of(item.address.kind)
    row = find_row(kind, key)
    if row is None and key != ENABLED:
        return _describe_unknown(kind, key)
    try:
        value = parse_value(row.value if row is not None else "flag", text)
    except ValueError as error:
        return f'{PREFIX}{key}: "{text}" is {error}'
    if row is None:
        return ""
    if value <= 0 and row.value != "flag":
        return f"{PREFIX}{key}: {text} is no threshold: it is off"
    reason = row.check_config(item.config, value) if value > 0 else ""
    return f"{PREFIX}{key}: {text} has no use: {reason}" if reason else ""


def _describe_unknown(kind: Kind, key: str) -> str:
    other: Kind = "consumer" if kind == "stream" else "stream"
    if find_row(other, key) is not None:
        return f"{PREFIX}{key} is a threshold of {other}s"
    guess = did_you_mean(key, known_keys(kind))
    return f"{PREFIX}{key} is no known threshold of {kind}s.{guess}".removesuffix(".")


RULE = Rule(
    "JS234",
    "warning",
    check,
    why=(
        "Metadata with the prefix io.nats.monitor. holds thresholds, which `nats server check`,"
        " `jsplan status` and `jsplan drift` evaluate. An unknown key is not evaluated. A value"
        " that cannot be read counts as exceeded. Some thresholds are never exceeded, or always:"
        " `peer-expect: 3` for a stream of one replica."
    ),
    fix="Correct the key or the value: see Thresholds in the reference of streams, or remove it.",
)
