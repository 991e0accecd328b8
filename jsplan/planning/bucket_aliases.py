"""Field changes under the names that users write: KV and object-store settings for buckets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from jsplan.address import Address
from jsplan.documents.plan import FieldChange
from jsplan.resources.buckets import is_bucket, lift_change


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


def with_bucket_names(address: Address, fields: Iterable[FieldChange]) -> list[FieldChange]:
    """Rename the changed fields of a bucket, such as `max_msgs_per_subject` to `history`.

    The effects of the changes stay the same.
    """
    if not is_bucket(address.kind):
        return list(fields)
    return [
        FieldChange(*lift_change(address.kind, address.name, f.path, f.before, f.after), f.effect)
        for f in fields
    ]
