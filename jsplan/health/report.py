"""A verdict as an element of `replication` in the documents."""

from __future__ import annotations

from typing import Any

from jsplan.facts.replication.flows import Flow
from jsplan.facts.replication.samples import ReplicationSample
from jsplan.health.assessment import Assessment


def build_replication_element(
    flow: Flow, verdict: Assessment, look: ReplicationSample | None
) -> dict[str, Any]:
    """`{from, to, kind, healthy, cause, origin_last_seq, last_seq, lag, active}`.

    `last_seq` is the origin's last sequence that the copy has had. `lag` is the difference, with a filter an upper bound; `active` is ns
    since the copy heard of its origin. Null: not known, or never.
    """
    origin = look.origin if look is not None else None
    position = look.position if look is not None else None
    return {
        "from": flow.source,
        "to": str(flow.downstream),
        "kind": flow.kind,
        "healthy": verdict.healthy,
        "cause": verdict.cause or None,
        "origin_last_seq": origin.last if origin is not None else None,
        "last_seq": position,
        "lag": _compute_lag(flow, look),
        "active": look.active if look is not None and look.active >= 0 else None,
    }


def _compute_lag(flow: Flow, look: ReplicationSample | None) -> int | None:
    """How many messages the copy may have to copy yet, None where nobody can tell."""
    if look is None or look.origin is None:
        return None
    if look.position is None:
        return look.lag
    if look.waiting is False or look.origin.messages == 0:
        return 0
    after = max(look.position, flow.start - 1, look.origin.first - 1)
    return max(0, look.origin.last - after)
