"""Builds the elements of `replication` in the documents."""

from __future__ import annotations

from typing import Any

from jsplan.facts.replication.flows import Flow
from jsplan.facts.replication.samples import ReplicationSample
from jsplan.health.assessment import Assessment


def build_replication_element(
    flow: Flow, assessment: Assessment, sample: ReplicationSample | None
) -> dict[str, Any]:
    """Build `{from, to, kind, healthy, cause, origin_last_seq, last_seq, lag, active}`.

    `last_seq` is the origin's last sequence that the downstream received. `lag` is the difference,
    with a filter an upper bound. `active` is ns since the last heartbeat. Null: unknown, or never.
    """
    origin = sample.origin if sample is not None else None
    position = sample.position if sample is not None else None
    return {
        "from": flow.source,
        "to": str(flow.downstream),
        "kind": flow.kind,
        "healthy": assessment.healthy,
        "cause": assessment.cause or None,
        "origin_last_seq": origin.last if origin is not None else None,
        "last_seq": position,
        "lag": _compute_lag(flow, sample),
        "active": sample.active if sample is not None and sample.active >= 0 else None,
    }


def _compute_lag(flow: Flow, sample: ReplicationSample | None) -> int | None:
    """Return how many messages the downstream may still have to receive, None if unknown."""
    if sample is None or sample.origin is None:
        return None
    if sample.position is None:
        return sample.lag
    if sample.waiting is False or sample.origin.messages == 0:
        return 0
    after = max(sample.position, flow.start - 1, sample.origin.first - 1)
    return max(0, sample.origin.last - after)
