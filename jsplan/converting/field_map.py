"""Renames fields and settings of another tool for the reader of workspace files.

A secret in the settings of a connection becomes a variable.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from jsplan.config.body import parse
from jsplan.config.hints import snake_case
from jsplan.config.node import Node
from jsplan.converting.model import DEFAULT_CONNECTION, NoteWriter
from jsplan.diagnostics import did_you_mean
from jsplan.resources import Field, Table
from jsplan.secrets import redact_url
from jsplan.units import SECOND

#: Fields of a consumer that say where it starts, and the policy of each.
STARTS: Final = {"opt_start_seq": "by_start_sequence", "opt_start_time": "by_start_time"}

#: Words that mean the same in both tools, where a kind does not say otherwise.
_COMMON: Final = {
    "replicas": "num_replicas", "source": "src", "destination": "dest",
    "placement_cluster": "placement.cluster", "placement_tags": "placement.tags",
}  # fmt: skip


class FieldMap(Struct, frozen=True):
    """The words of a tool that are not ours in snake case, by the kind of a table.

    `placement.cluster` is a field of a nested object. `values` are words of an enumeration.
    Durations are text, or numbers of seconds.
    """

    fields: Mapping[str, Mapping[str, str]]
    values: Mapping[str, str] = field(default_factory=dict)
    in_seconds: bool = False

    def read(
        self, table: Table, node: Node, notes: NoteWriter, skipped: Collection[str] = ()
    ) -> dict[str, Any]:
        """Read the fields of a mapping in API units. Zero, false and empty values are not set.

        An unknown key is a note, a wrong value an error.
        """
        renamed = self._rename(table, node, notes, skipped)
        return parse(table, renamed.value, notes.conversion.findings)

    def _rename(
        self, table: Table, node: Node, notes: NoteWriter, skipped: Collection[str] = ()
    ) -> Node:
        if not isinstance(node.value, dict):
            return node  # the reader reports it
        values, nested = dict[str, Node](), dict[str, dict[str, Node]]()
        names = {**_COMMON, **self.fields.get(table.kind, {})}
        for key, item in node.value.items():
            if not item.value or key in skipped:
                continue
            name, _, inner = names.get(key, snake_case(key)).partition(".")
            row = table.by_name.get(name)
            if row is None:
                notes.not_converted(
                    node.key_place(key),
                    f'"{key}" is not carried over: this release does not know it',
                    did_you_mean(key, [*names, *table.by_name]).strip()
                    or "If the server knows it, write it under `x_raw`.",
                )
            elif inner and row.table is not None:
                converted = self._convert(row.table.by_name[inner], item, notes)
                nested.setdefault(name, {})[inner] = converted
            else:
                values[name] = self._convert(row, item, notes)
        return Node(
            node.place, values | {name: Node(node.place, below) for name, below in nested.items()}
        )

    def _convert(self, row: Field, item: Node, notes: NoteWriter) -> Node:
        value: Any = item.value
        if row.table is not None:
            table, items = row.table, value if isinstance(value, list) else [item]
            found = [self._rename(table, one, notes) for one in items]
            return Node(item.place, found) if row.type == "objects" else found[0]
        if isinstance(value, list) and row.type == "durations":
            return Node(item.place, [self._to_duration(one) for one in value])
        if row.type == "duration":
            return self._to_duration(item)
        if isinstance(value, str) and row.type == "enum":
            word = snake_case(value)
            return Node(item.place, self.values.get(word, word))
        if isinstance(value, str | int) and row.type == "percent":
            return Node(item.place, f"{str(value).removesuffix('%')}%")
        return item

    def _to_duration(self, item: Node) -> Node:
        value = item.value
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return Node(item.place, max(0, value) * SECOND) if self.in_seconds and is_number else item


def settle_consumer(config: dict[str, Any]) -> None:
    """Leave out what the clients of both tools leave out: one filter is not a list of filters."""
    if len(config.get("filter_subjects") or ()) == 1:
        config["filter_subject"] = config.pop("filter_subjects")[0]
    if config.get("backoff"):
        config.pop("ack_wait", None)


def join_server_urls(given: Sequence[str], at: Node, notes: NoteWriter) -> str:
    """Join the servers to one URL without users and passwords; a note says which were removed."""
    urls = [part.strip() for text in given for part in text.split(",") if part.strip()]
    whole = [url if "://" in url else f"nats://{url}" for url in urls]
    bare = [redact_url(url) for url in whole]
    if bare != whole:
        summary = "user and password in a URL are not carried over"
        notes.warning(at, summary, "Write `user:` and `password: ${env.X}` into the connection.")
    return ",".join(bare)


def use_variable(
    connection: dict[str, Any], name: str, word: str, at: Node, notes: NoteWriter
) -> None:
    """Read a secret of the connection from the environment, and note the name of the variable."""
    prefix = "NATS" if name == DEFAULT_CONNECTION else re.sub(r"\W", "_", name).upper()
    variable = f"{prefix}_{word.upper()}"
    connection[word] = f"${{env.{variable}}}"
    notes.info(at, f"connection {name}: its {word} is not carried over", f"Set {variable}.")
