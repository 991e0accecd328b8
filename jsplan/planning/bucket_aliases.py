"""Field changes under the names that users write: KV and object-store settings for buckets."""

from __future__ import annotations

from collections.abc import Iterable

from jsplan.address import Address
from jsplan.documents.plan import FieldChange
from jsplan.resources.buckets import is_bucket, lift_change


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
