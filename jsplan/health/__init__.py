"""Assessment of mirrors, sources and thresholds: is something wrong, and if so, why. Pure."""

from __future__ import annotations

from jsplan.facts.live import LiveObject
from jsplan.health.assessment import Assessment, assess, build_replication_element
from jsplan.health.losses import NOTHING_KNOWN, SINCE_CHECK, LastApplied, find_losses
from jsplan.health.replicas import (
    describe_cluster,
    find_replica_breach,
    missing_servers_breach,
)
from jsplan.health.thresholds import Breach, find_exceeded_thresholds

__all__ = [
    "SINCE_CHECK",
    "Assessment",
    "LastApplied",
    "assess",
    "build_replication_element",
    "describe_cluster",
    "find_breaches",
    "find_losses",
    "missing_servers_breach",
]


def find_breaches(
    live: LiveObject, now: int, stream: LiveObject | None = None, last: LastApplied = NOTHING_KNOWN
) -> list[Breach]:
    """Return what is wrong with a live object: losses, its replicas, then exceeded thresholds.

    `now` is ns since 1970, `stream` that of a consumer, `last` what state has.
    """
    replicas = find_replica_breach(live)
    return [
        *find_losses(live, now, stream, last),
        *([replicas] if replicas else []),
        *find_exceeded_thresholds(live, now),
    ]
