"""The last time that downstream streams heard from a domain, from data that is already read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from jsplan.facts.live import Live
from jsplan.topology import Edge


def find_last_heard(live: Live, edges: Iterable[Edge], now: datetime) -> dict[str, datetime]:
    """Return each domain's last heartbeat that reached a downstream stream; `now` is UTC.

    A server reports how long ago an origin sent a message or a heartbeat (`active`, ns; -1: never),
    and keeps counting while the link is down. So a read-only run knows absences that no apply has
    recorded.
    """
    last_heard: dict[str, datetime] = {}
    for edge in edges:
        downstream = live.get(edge.downstream)
        if downstream is None or edge.is_local:
            continue
        for flow in downstream.flows:
            silent = int(flow.get("active", -1))
            if silent >= 0 and matches_edge(flow, edge):
                heard = now - timedelta(microseconds=silent / 1000)
                key = edge.origin.domain
                last_heard[key] = max(heard, last_heard.get(key, heard))
    return last_heard


def matches_edge(flow: Mapping[str, object], edge: Edge) -> bool:
    """Return True if an element of `flows` has the edge's origin over the same API prefix."""
    ours, theirs = edge.config.get("external") or {}, flow.get("external") or {}
    return (
        flow.get("name") == edge.config.get("name")
        and isinstance(theirs, dict)
        and theirs.get("api") == ours.get("api")
    )
