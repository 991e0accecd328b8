"""The streams of KV buckets and object stores: `lower` to a stream, `lift` for display.

The stream is the one that nats.go and the `nats` CLI make. Fields that no bucket field covers are
the creator's choice: jsplan fills them in when it creates the stream, and leaves them unchanged
when another client did.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.resources.fields import Config, Field, Table, require_replacement
from jsplan.resources.nested import ORIGIN, PLACEMENT, REPUBLISH
from jsplan.resources.stream import DUPLICATE_WINDOW, STREAM

#: Fields of a bucket that have another name on its stream; all others have the same name.
FIELD_BY_ALIAS: Final[Mapping[str, Mapping[str, str]]] = {
    "kv": {
        "history": "max_msgs_per_subject", "ttl": "max_age", "max_value_size": "max_msg_size",
        "limit_marker_ttl": "subject_delete_marker_ttl",
    },
    "object_store": {"ttl": "max_age"},
    "stream": {},
    "consumer": {},
}  # fmt: skip
_ALIAS_BY_FIELD: Final[Mapping[str, Mapping[str, str]]] = {
    kind: {field: word for word, field in names.items()} for kind, names in FIELD_BY_ALIAS.items()
}
_COMMON_FIELDS: Final = frozenset(
    ["description", "max_bytes", "storage", "num_replicas", "compression", "placement", "metadata"]
)
_SHARED_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "kv": _COMMON_FIELDS | {"republish", "mirror", "sources"},
    "object_store": _COMMON_FIELDS | {"sealed"},
}
#: Fields of a bucket without a default: the creator chooses compression, a client seals a store.
_CREATOR_ALIASES: Final = frozenset({"compression", "sealed"})
#: Fields that clients choose differently; another client may change them.
_CREATOR_FIELDS: Final = (
    frozenset({"allow_direct", "allow_msg_ttl", "discard", "duplicate_window", "mirror_direct"})
    | _CREATOR_ALIASES
)
#: Fields that the creator of a bucket fills in if the files omit them.
CREATOR_DEFAULTED: Final = (_CREATOR_FIELDS - _CREATOR_ALIASES) | {
    "allow_rollup_hdrs", "deny_delete",
}  # fmt: skip
_KV_PREFIX: Final = "KV_"
_DEFAULT_TRANSFORM = re.compile(
    r'^sources\["(?P<name>[^@#"]+)(?P<api>@[^#"]*)?#\$KV\.(?P=name)\.>(>\$KV\.[^.>]+\.>)?"\]'
)


class Nouns(NamedTuple):
    """The words of messages for one kind: the object, its content, and one stored message."""

    object: str
    content: str
    message: str


_STREAM_NOUNS: Final = Nouns("stream", "messages", "message")
_NOUNS: Final[Mapping[str, Nouns]] = {
    "kv": Nouns("bucket", "keys", "value"),
    "object_store": Nouns("object store", "objects", "message"),
}


def nouns_of(address: Address) -> Nouns:
    """Return the words for a resource, or for the stream of a consumer."""
    return _NOUNS.get(address.kind, _STREAM_NOUNS)


def is_bucket(kind: str) -> bool:
    """Check whether the kind is lowered to a stream."""
    return kind in _SHARED_FIELDS


def uncovered_fields(kind: str) -> tuple[Field, ...]:
    """Return the stream's fields that no bucket field covers; the files may set them too."""
    covered = {"name", *_SHARED_FIELDS[kind], *FIELD_BY_ALIAS[kind].values()}
    return tuple(row for row in STREAM.rows if row.name not in covered)


def _build_backing_table(kind: str) -> Table:
    """Return the stream's table, where uncovered fields stay as the creator set them."""
    uncovered = {row.name for row in uncovered_fields(kind)}

    def carrying(row: Field) -> Field:
        if row.name in _CREATOR_FIELDS and (
            row.name in uncovered or row.name in _SHARED_FIELDS[kind] & _CREATOR_ALIASES
        ):
            return replace(row, when_omitted="live")
        return replace(row, when_omitted="last") if row.name in uncovered else row

    return replace(STREAM, rows=tuple(carrying(row) for row in STREAM.rows))


#: The table of the stream of each kind that has one.
BACKING_TABLES: Final[Mapping[str, Table]] = {
    "stream": STREAM,
    "kv": _build_backing_table("kv"),
    "object_store": _build_backing_table("object_store"),
}


# --- bucket fields to stream fields ---------------------------------------------------------------


def lower(address: Address, body: Mapping[str, Any]) -> Config:
    """Return the stream's fields for those of a bucket; other kinds are returned unchanged.

    Origins keep a symbolic `domain`. Compression is a boolean here and the server's word there.
    """
    kind = address.kind
    if not is_bucket(kind):
        return dict(body)
    out = _bucket_subjects(kind, address.name, body) | _REQUIRED_CONFIG[kind]
    for word, value in body.items():
        if word != "bucket" and not (word in _CREATOR_ALIASES and value is None):
            out[FIELD_BY_ALIAS[kind].get(word, word)] = value
    if isinstance(out.get("compression"), bool):
        out["compression"] = "s2" if out["compression"] else "none"
    if kind == "kv":
        out["max_msgs_per_subject"] = out.get("max_msgs_per_subject") or 1
        _lower_origins(address.name, out)
    return out


#: Set by every client. Deleting, purging and replacing values do not work as expected without it.
_REQUIRED_CONFIG: Final[Mapping[str, Config]] = {
    "kv": {"deny_delete": True, "allow_rollup_hdrs": True},
    "object_store": {"allow_rollup_hdrs": True},
}


def subject_prefixes(kind: str, bucket: str) -> tuple[str, ...]:
    """Return the subjects of a bucket before its keys, or the parts of its objects."""
    return (f"$KV.{bucket}.",) if kind == "kv" else (f"$O.{bucket}.C.", f"$O.{bucket}.M.")


def _bucket_subjects(kind: str, bucket: str, body: Mapping[str, Any]) -> Config:
    if body.get("mirror"):
        return {}
    return {"subjects": [f"{prefix}>" for prefix in subject_prefixes(kind, bucket)]}


def _lower_origins(bucket: str, out: Config) -> None:
    if out.get("mirror"):
        out["mirror"] = _with_stream_name(out["mirror"])
    if out.get("sources"):
        out["sources"] = [
            _with_key_transform(bucket, _with_stream_name(origin)) for origin in out["sources"]
        ]


def _with_stream_name(origin: Config) -> Config:
    name = str(origin.get("name", ""))
    return origin | {"name": name if name.startswith(_KV_PREFIX) else _KV_PREFIX + name}


def _with_key_transform(bucket: str, origin: Config) -> Config:
    """Add the transform that stores values of another bucket under the keys of this one.

    An origin with its own filter or transform stays unchanged.
    """
    theirs = origin["name"].removeprefix(_KV_PREFIX)
    if (
        origin.get("subject_transforms") is not None
        or origin.get("filter_subject")
        or theirs == bucket
    ):
        return origin
    return origin | {"subject_transforms": _key_transforms(theirs, bucket)}


def _key_transforms(theirs: str, bucket: str) -> list[Config]:
    return [{"src": f"$KV.{theirs}.>", "dest": f"$KV.{bucket}.>"}]


def client_defaults(kind: str, lowered: Mapping[str, Any]) -> Config:
    """Return the fields that nats.go adds to a new stream of this kind; none for streams."""
    if not is_bucket(kind):
        return {}
    out: Config = {"discard": "new", "allow_direct": True}
    if kind == "kv":
        age = lowered.get("max_age")
        out["duplicate_window"] = min(DUPLICATE_WINDOW, age) if age else DUPLICATE_WINDOW
        out |= {"mirror_direct": True} if lowered.get("mirror") else {}
        out |= {"allow_msg_ttl": True} if lowered.get("subject_delete_marker_ttl") else {}
    return {name: value for name, value in out.items() if lowered.get(name) is None}


def usual_value(kind: str, row: Field) -> Any:
    """Return a bucket's value of a field that the files omit; None if it depends on the rest."""
    if row.name in _REQUIRED_CONFIG[kind]:
        return _REQUIRED_CONFIG[kind][row.name]
    return (
        client_defaults(kind, {}).get(row.name) if row.name in ("discard", "allow_direct") else None
    )


def resolve_alias(kind: str, word: str) -> str:
    """Return the stream's field of a bucket field: `max_age` for `ttl`."""
    return FIELD_BY_ALIAS[kind].get(word, word)


# --- stream fields to bucket fields, for display --------------------------------------------------


def alias_of(kind: str, field: str) -> str:
    """Return the bucket field of a stream's field: `ttl` for `max_age`."""
    return _ALIAS_BY_FIELD.get(kind, {}).get(field, field)


def with_aliases(kind: str, text: str, fields: Iterable[str] = ()) -> str:
    """Replace the stream's fields in a sentence by the bucket's."""
    for field in fields or _ALIAS_BY_FIELD[kind]:
        text = re.sub(rf"\b{field}\b", alias_of(kind, field), text)
    return text


def lift(kind: str, name: str, config: Config) -> Config:
    """Return the bucket fields of a stream's configuration.

    Values that every bucket has or that the server sets by default are omitted.
    """
    if not is_bucket(kind):
        return config
    compact = STREAM.compact(config)
    usual = _bucket_subjects(kind, name, compact) | _REQUIRED_CONFIG[kind]
    usual = STREAM.compact(
        usual
        | client_defaults(
            kind, {field: compact[field] for field in ("max_age", "mirror") if field in compact}
        )
    )
    if compact.get("subject_delete_marker_ttl"):
        usual["allow_msg_ttl"] = True
    out = {}
    for field, value in compact.items():
        if field != "name" and usual.get(field) != value:
            _, out[alias_of(kind, field)], _ = lift_change(kind, name, field, value, None)
    return out


def lift_change(kind: str, name: str, path: str, before: Any, after: Any) -> tuple[str, Any, Any]:
    """Return one change in bucket fields: its path and both values.

    `name` is the bucket's own.
    """
    if not is_bucket(kind):
        return path, before, after
    top = re.split(r"[.\[]", path, maxsplit=1)[0]
    shown = alias_of(kind, top) + path[len(top) :]
    if kind == "kv" and top in ("mirror", "sources"):
        shown = _DEFAULT_TRANSFORM.sub(
            r'sources["\g<name>\g<api>"]', shown.replace(f'sources["{_KV_PREFIX}', 'sources["')
        )
        return shown, _lift_origin(name, path, before), _lift_origin(name, path, after)
    if top == "compression":
        return shown, _COMPRESSION_FLAGS.get(before, before), _COMPRESSION_FLAGS.get(after, after)
    return shown, before, after


_COMPRESSION_FLAGS: Final[Mapping[Any, Any]] = {"s2": True, "none": False}


def _lift_origin(bucket: str, path: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_lift_origin(bucket, path, item) for item in value]
    if isinstance(value, str) and path.endswith(".name"):
        return value.removeprefix(_KV_PREFIX)
    if not isinstance(value, dict) or "name" not in value:
        return value
    theirs = str(value["name"]).removeprefix(_KV_PREFIX)
    out = value | {"name": theirs}
    if out.get("subject_transforms") == _key_transforms(theirs, bucket):
        del out["subject_transforms"]
    elif path.startswith("sources") and not (
        out.get("subject_transforms") or out.get("filter_subject") or theirs == bucket
    ):
        out[
            "subject_transforms"
        ] = []  # omitted, values would be stored under the keys of this bucket
    return out


BUCKET = r"[A-Za-z0-9_-]+"


def _name_field(doc: str) -> Field:
    return Field("bucket", "string", doc, required=True, pattern=BUCKET, update=require_replacement)


def _storage_field(doc: str) -> Field:
    return Field(
        "storage",
        "enum",
        doc,
        default="file",
        values=("file", "memory"),
        update=require_replacement,
    )


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
        _name_field("Name of the bucket."),
        _DESCRIPTION,
        Field("history", "int", "Values kept of each key.", default=1, minimum=0, maximum=64),
        Field("ttl", "duration", "Life of a value, ns.", default=0, minimum=0),
        Field("max_value_size", "size", "Largest value, bytes.", default=-1, unlimited=True),
        _MAX_BYTES,
        _storage_field("Where values are kept."),
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
        _name_field("Name of the store."),
        _DESCRIPTION,
        Field("ttl", "duration", "Life of an object, ns.", default=0, minimum=0),
        _MAX_BYTES,
        _storage_field("Where objects are kept."),
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
