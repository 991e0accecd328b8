"""The place of streams and consumers in a cluster: leader, replicas, moves. Pure.

From `cluster` of INFO: `replicas` lists the others beside the leader, or all of them while there is
no leader. Since 2.15 `desired` is there while the cluster moves or scales the object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jsplan.facts.live import LiveObject
from jsplan.health.thresholds import Breach, is_enabled, list_keys

#: The threshold that holds for every object of a cluster whose metadata sets none.
PEERS: Final = "peer-expect"


def describe_cluster(live: LiveObject) -> dict[str, Any] | None:
    """Return the element `cluster` of status; None for a server without a cluster.

    `placement` is that of the configuration. `lag` counts operations, `active` is ns since the
    leader heard of the replica. `desired` is null unless the cluster moves or scales the object.
    """
    if not live.is_clustered:
        return None
    leader = live.server.get("leader") or None
    replicas = [_describe_replica(peer, leader=False) for peer in live.peers]
    if leader:
        own = {"name": leader, "current": True}
        replicas.insert(0, _describe_replica(own, leader=True))
    return {
        "name": live.server.get("name") or "",
        "leader": leader,
        "replicas": replicas,
        "placement": _describe_placement(live.raw.get("placement")),
        "desired": _describe_move(live.server.get("desired")),
    }


def _describe_replica(peer: Mapping[str, Any], *, leader: bool) -> dict[str, Any]:
    return {
        "name": str(peer.get("name") or ""),
        "leader": leader,
        "current": bool(peer.get("current")),
        "offline": bool(peer.get("offline")),
        "lag": int(peer.get("lag") or 0),
        "active": int(peer.get("active") or 0),
    }


def _describe_placement(placement: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not placement:
        return None
    return {
        "cluster": str(placement.get("cluster") or "") or None,
        "tags": [str(tag) for tag in placement.get("tags") or ()],
    }


def _describe_move(desired: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not desired:
        return None
    status = desired.get("status") or {}
    return {
        "replicas": [str(peer.get("name") or "") for peer in desired.get("replicas") or ()],
        "reason": str(status.get("description") or ""),
    }


def find_replica_breach(live: LiveObject) -> Breach | None:
    """Return a breach for an object without a leader, or with fewer live replicas than declared.

    None where metadata sets `peer-expect`, or switches thresholds off. A replica that a move has
    yet to add is no breach.
    """
    keys = list_keys(live.raw.get("metadata") or {})
    if PEERS in keys or not is_enabled(keys) or not live.is_clustered:
        return None
    offline, moving = live.offline_peers, "desired" in live.server
    listed = len(live.peers) + bool(live.server.get("leader"))
    declared = int(live.raw.get("num_replicas") or 0) or max(1, listed)
    facts = [f"{', '.join(offline)} offline"] if offline else []
    if not live.server.get("leader") and (offline or not moving):
        facts.insert(0, "no leader")
    elif listed < declared and not moving:
        facts.append(f"{listed} of {declared} replicas")
    return _breach(", ".join(facts), declared) if facts else None


def missing_servers_breach() -> Breach:
    """Return the breach of an object that no server has that answers."""
    return _breach("no server that has it answers", 1)


def _breach(fact: str, declared: int) -> Breach:
    return Breach(PEERS, "critical", str(declared), fact)
