"""Rules between the fields of a bucket: those of its stream, in the names of the bucket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsplan.address import Address
from jsplan.config.checks import check_stream
from jsplan.config.problem import Problems
from jsplan.resources import buckets


def check_bucket(address: Address, body: Mapping[str, Any]) -> Problems:
    """Yield everything that the server is certain to refuse in the stream of a bucket.

    Buckets are KV buckets and object stores.
    """
    kind, lowered = address.kind, buckets.lower(address, body)
    lowered = {
        "name": address.stream,
        "discard": buckets.client_defaults(kind, lowered).get("discard"),
    } | lowered
    for problem in check_stream(lowered):
        summary, detail = (
            buckets.with_aliases(kind, problem.summary),
            buckets.with_aliases(kind, problem.detail),
        )
        yield problem._replace(
            field=buckets.alias_of(kind, problem.field), summary=summary, detail=detail
        )
