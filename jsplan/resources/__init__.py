"""All knowledge about JetStream configuration: one field table per kind."""

from __future__ import annotations

from jsplan.address import Kind
from jsplan.resources.buckets import KV, OBJECT_STORE
from jsplan.resources.consumer import CONSUMER
from jsplan.resources.fields import ABSENT, Config, Effect, Field, FieldUpdate, Table
from jsplan.resources.stream import STREAM

TABLES: dict[Kind, Table] = {
    "stream": STREAM,
    "consumer": CONSUMER,
    "kv": KV,
    "object_store": OBJECT_STORE,
}

__all__ = [
    "ABSENT", "CONSUMER", "KV", "OBJECT_STORE", "STREAM", "TABLES", "Config", "Effect", "Field",
    "FieldUpdate", "Table",
]  # fmt: skip
