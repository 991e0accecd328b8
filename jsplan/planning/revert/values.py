"""Fields and whole resources as they are written in files."""

from __future__ import annotations

import json
from typing import Any

from jsplan.address import Address
from jsplan.config.files import SECTIONS
from jsplan.planning.decide import table_of
from jsplan.resources import TABLES
from jsplan.resources.buckets import alias_of, is_bucket, lift
from jsplan.resources.fields import Config, Table
from jsplan.resources.server_features import NEWEST_LEVEL
from jsplan.units import format_duration, format_size


def format_value(address: Address, name: str, value: Any) -> str:
    """Format the value of one field: `30d`, `10GiB`, `["a.>"]`; the server's default for none."""
    table = table_of(address)
    value, row = table.default_of(name) if value is None else value, table.by_name.get(name)
    if row is not None and row.unlimited and value == -1:
        return "unlimited"
    return "not set" if value is None else _to_text(_with_units(table, name, value))


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _with_units(table: Table, name: str, value: Any) -> Any:
    row = table.by_name.get(name)
    kind = row.type if row is not None else ""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        if kind == "duration":
            return format_duration(value)
        if kind == "size" and value % 1024 == 0:
            return format_size(value) if "." not in format_size(value) else value
    return value


def format_declaration(address: Address, config: Config) -> str:
    """Return the lines of a file that declare it: all that differs from the server's defaults."""
    table, body = table_of(address), config
    if is_bucket(address.kind):
        table, body = TABLES[address.kind], lift(address.kind, address.name, config)
    compact = table.compact(body)
    declared = {
        name: _with_units(table, name, value)
        for name, value in compact.items()
        if not _is_derived(table, compact, name)
    }
    hidden = {"name", "bucket", "stream_name"} | (
        {"durable_name"} if declared.get("durable_name") == declared.get("name") else set()
    )
    own = {"bucket" if is_bucket(address.kind) else "name": address.name.rpartition("/")[2]}
    where = {"domain": address.domain} | (
        {"stream": address.stream} if address.kind == "consumer" else {}
    )
    rest = {name: value for name, value in declared.items() if name not in hidden}
    return f"{SECTIONS[address.kind]}:\n  - {json.dumps(own | where | rest, ensure_ascii=False)}"


def field_label(address: Address, name: str) -> str:
    """Return the name of a field in files: `ttl` for the `max_age` of a bucket."""
    return alias_of(address.kind, name) if is_bucket(address.kind) else name


def _is_derived(table: Table, compact: Config, name: str) -> bool:
    """Check whether the server derives the same value of an omitted field from the others."""
    if name not in table.derived or name == "subjects":
        return False
    without = {key: value for key, value in compact.items() if key != name}
    table.fill_derived(without, NEWEST_LEVEL)
    return bool(without.get(name) == compact[name])
