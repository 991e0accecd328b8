"""Entries of KV buckets of the jetstream provider, which go into that of their bucket."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from jsplan.codegen.value_format import escape_references
from jsplan.converting.model import Conversion, ConvertedEntry
from jsplan.converting.terraform.resources import (
    RESOURCE_TYPES,
    SHOW_HINT,
    UNSUPPORTED_TYPES,
    ResourceInstance,
    convert_instance,
)

ENTRY_TYPE: Final = "jetstream_kv_entry"
#: Every type of the provider that a conversion knows, whether it has it or not.
KNOWN_TYPES: Final = frozenset({*RESOURCE_TYPES, *UNSUPPORTED_TYPES, ENTRY_TYPE})


def convert_known(block: ResourceInstance, out: Conversion) -> None:
    """Convert one instance of a type in `KNOWN_TYPES`."""
    (convert_entry if block.type == ENTRY_TYPE else convert_instance)(block, out)


def convert_entry(block: ResourceInstance, out: Conversion) -> None:
    """Collect one entry; note one that lacks a value."""
    bucket, key, value = (block.node.get_value(name) for name in ("bucket", "key", "value"))
    if not isinstance(bucket, str) or not isinstance(key, str) or value is None:
        out.general_notes.not_converted(
            block.node,
            f"{block.label} is not carried over: its bucket, key or value is unknown",
            SHOW_HINT,
        )
        return
    text = value if isinstance(value, str) else str(value).lower()
    out.entries.append(
        ConvertedEntry(
            bucket, key, text, block.label, block.node.place, block.owner, block.settings
        )
    )


def attach_entries(out: Conversion) -> None:
    """Add the collected entries to their buckets, in place. Values are written in plain text."""
    buckets = {(r.owner, r.name): n for n, r in enumerate(out.resources) if r.kind == "kv"}
    found: dict[int, dict[str, Any]] = {}
    for entry in out.entries:
        number = buckets.get((entry.owner, entry.bucket))
        if number is None:
            out.general_notes.not_converted(
                entry.place,
                f"{entry.label} is not carried over: bucket {entry.bucket} is not in these files",
                "Declare the bucket, and the key under its `entries:`.",
            )
            continue
        found.setdefault(number, {})[entry.key] = _written(entry)
    for number, entries in found.items():
        bucket = out.resources[number]
        settings = {**bucket.settings, "entries": entries}
        out.resources[number] = replace(bucket, settings=settings)
        out.notes_about("kv", bucket.name, bucket.owner).info(
            bucket.place,
            "the values of its entries are written in plain text",
            "Write ${env.X} in place of a secret, and set that variable.",
        )


def _written(entry: ConvertedEntry) -> Any:
    value = escape_references(entry.value)
    return {"value": value, **entry.settings} if entry.settings else value
