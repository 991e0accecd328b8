"""When a domain was last heard of by those that copy from it. Never asks anybody: it reads what `survey` has read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from jsplan.facts.live import Live
from jsplan.topology import Edge


def find_last_heard(live: Live, edges: Iterable[Edge], now: datetime) -> dict[str, datetime]:
    """By domain key, the last sign of life that reached a copy of one of its streams; `now` is UTC.

    The server that copies says how long ago its origin sent a message or a heartbeat (`active`, ns; -1: never), and goes on
    counting while the link is down. So a read-only run knows about absences that no apply has recorded.
    """
    found: dict[str, datetime] = {}
    for edge in edges:
        copy = live.get(edge.downstream)
        if copy is None or edge.is_local:
            continue
        for flow in copy.flows:
            silent = int(flow.get("active", -1))
            if silent >= 0 and matches_edge(flow, edge):
                heard = now - timedelta(microseconds=silent / 1000)
                found[edge.origin.domain] = max(heard, found.get(edge.origin.domain, heard))
    return found


def matches_edge(flow: Mapping[str, object], edge: Edge) -> bool:
    """Whether an element of a copy's `flows` is what this edge says: the same origin over the same API prefix."""
    ours, theirs = edge.config.get("external") or {}, flow.get("external") or {}
    return (
        flow.get("name") == edge.config.get("name")
        and isinstance(theirs, dict)
        and theirs.get("api") == ours.get("api")
    )
