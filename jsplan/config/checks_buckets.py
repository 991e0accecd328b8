"""Rules between the words of a bucket: those of the stream that it is, said in the bucket's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsplan.address import Address
from jsplan.config.checks import check_stream
from jsplan.config.problem import Problems
from jsplan.resources import buckets


def check_bucket(address: Address, body: Mapping[str, Any]) -> Problems:
    """Everything that is certain to be refused in the stream behind a KV bucket or an object store."""
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
