"""The elements of the status document: domains, streams and consumers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from jsplan.address import Address
from jsplan.facts.live import DomainFacts, LiveObject
from jsplan.health import describe_cluster
from jsplan.health.thresholds import Breach
from jsplan.planning.domain_findings import is_within_offline_limit
from jsplan.planning.model import PlanInputs
from jsplan.units import format_timestamp


def build_domain_element(
    inputs: PlanInputs, facts: DomainFacts, seen: datetime | None
) -> dict[str, Any]:
    """Build an element of `domains`."""
    domain, info, own = (
        inputs.workspace.domains[facts.key],
        facts.info,
        [*inputs.live.streams(facts.key)],
    )
    used = (
        {name: _sum_usage(info, name) for name in ("streams", "consumers", "memory", "storage")}
        if facts.reachable
        else {}
    )
    limits = {
        name: _sum_limit(info, name)
        for name in ("max_streams", "max_consumers", "max_memory", "max_storage")
    }
    return {
        "domain": facts.key,
        "js_domain": domain.js_domain,
        "connection": domain.connection,
        "reachable": facts.reachable,
        "reason": facts.short_reason or None,
        "may_be_offline": domain.may_be_offline,
        "last_seen": format_timestamp(seen) if seen else None,
        "excused": None if facts.reachable else is_within_offline_limit(inputs, facts.key, seen),
        "server": facts.server.get("name"),
        "cluster": facts.server.get("cluster"),
        "version": facts.version,
        "api_level": facts.level if facts.reachable else None,
        "messages": sum(o.state.get("messages") or 0 for o in own),
        "bytes": sum(o.state.get("bytes") or 0 for o in own),
        "streams": used.get("streams"),
        "consumers": used.get("consumers"),
        "memory": used.get("memory"),
        "storage": used.get("storage"),
        "limits": limits if facts.reachable else None,
    }


def _sum_usage(info: dict[str, Any], name: str) -> int:
    """Return a usage of the account, added up over its tiers."""
    tiers = info.get("tiers") or {}
    return (
        sum(int(tier.get(name) or 0) for tier in tiers.values())
        if tiers
        else int(info.get(name) or 0)
    )


def _sum_limit(info: dict[str, Any], name: str) -> int | None:
    """Return a limit of the account, added up over its tiers, or None."""
    tiers = info.get("tiers") or {}
    found = [
        int((part.get("limits") or {}).get(name, -1))
        for part in (tiers.values() if tiers else [info])
    ]
    return (
        sum(found)
        if all(limit >= 0 for limit in found) and (found != [0] or name == "max_streams")
        else None
    )


def build_stream_element(
    found: LiveObject, managed: set[Address] | None, breaches: list[Breach]
) -> dict[str, Any]:
    """Build an element of `streams`."""
    state = found.state
    return {
        "address": str(found.address),
        "type": found.address.kind,
        "managed": found.address in managed if managed is not None else None,
        "fed_by": _origin_kind(found),
        "messages": state["messages"],
        "bytes": state["bytes"],
        "first_seq": state["first_seq"],
        "last_seq": state["last_seq"],
        "last_time": None
        if str(state.get("last_ts", "0001")).startswith("0001")
        else state["last_ts"],
        "consumers": state.get("consumer_count") or 0,
        "created": found.created,
        "cluster": describe_cluster(found),
        "thresholds": [breach.to_json() for breach in breaches],
    }


def _origin_kind(found: LiveObject) -> str | None:
    """Return `mirror`, `sources`, or None."""
    return "mirror" if found.raw.get("mirror") else "sources" if found.raw.get("sources") else None


def build_consumer_element(
    found: LiveObject, managed: set[Address] | None, breaches: list[Breach]
) -> dict[str, Any]:
    """Build an element of `consumers`."""
    state = found.state
    return {
        "address": str(found.address),
        "managed": found.address in managed if managed is not None else None,
        "pending": state.get("num_pending") or 0,
        "ack_pending": state.get("num_ack_pending") or 0,
        "redelivered": state.get("num_redelivered") or 0,
        "waiting": state.get("num_waiting") or 0,
        "delivered": _position_element(state.get("delivered")),
        "ack_floor": _position_element(state.get("ack_floor")),
        "cluster": describe_cluster(found),
        "thresholds": [breach.to_json() for breach in breaches],
    }


def _position_element(found: dict[str, Any] | None) -> dict[str, int]:
    return {name: int((found or {}).get(name) or 0) for name in ("consumer_seq", "stream_seq")}
