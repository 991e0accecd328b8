"""Assessment of mirrors, sources and thresholds: is something wrong, and if so, why. Pure."""

from __future__ import annotations

from jsplan.facts.live import LiveObject
from jsplan.health.assessment import Assessment, assess
from jsplan.health.replicas import (
    describe_cluster,
    find_replica_breach,
    missing_servers_breach,
)
from jsplan.health.report import build_replication_element
from jsplan.health.thresholds import Breach, find_exceeded_thresholds

__all__ = [
    "Assessment",
    "assess",
    "build_replication_element",
    "describe_cluster",
    "find_breaches",
    "missing_servers_breach",
]


def find_breaches(live: LiveObject, now: int) -> list[Breach]:
    """Return what is wrong with a live object: its replicas, then its exceeded thresholds.

    `now` is ns since 1970.
    """
    replicas = find_replica_breach(live)
    return [*([replicas] if replicas else []), *find_exceeded_thresholds(live, now)]
