"""Changes as people wrote them: those of a bucket's stream in the bucket's words. What they mean is left to others."""

from __future__ import annotations

from collections.abc import Iterable

from jsplan.address import Address
from jsplan.documents.plan import FieldChange
from jsplan.resources.buckets import is_bucket, lift_change


def with_bucket_names(address: Address, fields: Iterable[FieldChange]) -> list[FieldChange]:
    """The changes of one resource for the documents: `history` for `max_msgs_per_subject`; effects stay as they are."""
    if not is_bucket(address.kind):
        return list(fields)
    return [
        FieldChange(*lift_change(address.kind, address.name, f.path, f.before, f.after), f.effect)
        for f in fields
    ]
