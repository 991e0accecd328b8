"""The fields of KV buckets and of object stores in the files."""

from __future__ import annotations

from jsplan.resources.buckets import uncovered_fields
from jsplan.resources.fields import Field, Table, require_replacement
from jsplan.resources.nested import ORIGIN, PLACEMENT, REPUBLISH

BUCKET = r"[A-Za-z0-9_-]+"

_DESCRIPTION = Field("description", "string", "For people.", default="", max_length=4096)
_MAX_BYTES = Field("max_bytes", "size", "Most bytes kept.", default=-1, unlimited=True)
_REPLICAS = Field(
    "num_replicas", "int", "Replicas in the cluster; 0 is 1.", default=1, minimum=0, maximum=5
)
_COMPRESSION = Field("compression", "bool", "Compress blocks on disk.", default=False)
_PLACEMENT = Field("placement", "object", "Which servers may carry it.", table=PLACEMENT)
_METADATA = Field("metadata", "metadata", "Labels.", default={})

KV = Table(
    "kv",
    (
        Field(
            "bucket",
            "string",
            "Name of the bucket.",
            required=True,
            pattern=BUCKET,
            update=require_replacement,
        ),
        _DESCRIPTION,
        Field("history", "int", "Values kept of each key.", default=1, minimum=0, maximum=64),
        Field("ttl", "duration", "Life of a value, ns.", default=0, minimum=0),
        Field("max_value_size", "size", "Largest value, bytes.", default=-1, unlimited=True),
        _MAX_BYTES,
        Field(
            "storage",
            "enum",
            "Where values are kept.",
            default="file",
            values=("file", "memory"),
            update=require_replacement,
        ),
        _REPLICAS,
        Field(
            "limit_marker_ttl",
            "duration",
            "Life of the marker left where ttl took a key, ns.",
            default=0,
            minimum=0,
            level=1,
        ),
        _COMPRESSION,
        _PLACEMENT,
        Field("republish", "object", "Publish changes again.", table=REPUBLISH),
        Field(
            "mirror",
            "object",
            "Mirror another bucket.",
            table=ORIGIN,
            update=require_replacement,
        ),
        Field("sources", "objects", "Source other buckets.", table=ORIGIN, unordered=True),
        _METADATA,
        *uncovered_fields("kv"),
    ),
)


OBJECT_STORE = Table(
    "object_store",
    (
        Field(
            "bucket",
            "string",
            "Name of the store.",
            required=True,
            pattern=BUCKET,
            update=require_replacement,
        ),
        _DESCRIPTION,
        Field("ttl", "duration", "Life of an object, ns.", default=0, minimum=0),
        _MAX_BYTES,
        Field(
            "storage",
            "enum",
            "Where objects are kept.",
            default="file",
            values=("file", "memory"),
            update=require_replacement,
        ),
        _REPLICAS,
        _COMPRESSION,
        _PLACEMENT,
        _METADATA,
        Field(
            "sealed",
            "bool",
            "Refuse all changes; only an existing store can be sealed.",
            default=False,
        ),
        *uncovered_fields("object_store"),
    ),
)
