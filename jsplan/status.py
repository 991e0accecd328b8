"""Builds the status document from what was read: domains, streams, consumers, flows."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import datetime
from typing import Any

from jsplan import __version__
from jsplan.address import Address, is_selected, matches
from jsplan.context import Context
from jsplan.diagnostics import Diagnostic, Severity
from jsplan.documents.status import Status
from jsplan.facts.live import DomainFacts, Live, LiveObject, unreadable_hint
from jsplan.facts.replicas import note_unread_replicas
from jsplan.health import describe_cluster
from jsplan.health.thresholds import Breach
from jsplan.planning.domain_findings import check_never_answered, is_within_offline_limit, last_seen
from jsplan.planning.interruptions import list_interruptions
from jsplan.planning.losses import find_health
from jsplan.planning.model import PlanInputs
from jsplan.planning.transfer.progress import Transfer, list_relocations
from jsplan.replication import FlowHealth
from jsplan.units import count_text, format_timestamp, parse_instant


def build_document(
    context: Context,
    inputs: PlanInputs,
    chosen: list[LiveObject],
    flows: list[FlowHealth],
    targets: Collection[str],
) -> Status:
    """Build the document: all domains, and the live objects that the targets name."""
    workspace = context.workspace
    out = Status(
        __version__, workspace.name, workspace.environment, format_timestamp(), str(uuid.uuid4())
    )
    managed = _managed_addresses(context, inputs) if not context.state_error else None
    seen = last_seen(inputs)
    shown = [
        key
        for key in sorted(inputs.live.domains)
        if not targets or any(matches(t.split("/", 1)[0], key) for t in targets)
    ]
    out.domains = [
        build_domain_element(inputs, inputs.live.domains[key], seen.get(key)) for key in shown
    ]
    out.interrupted = [
        item for item in list_interruptions(inputs) if is_selected(item["address"], targets)
    ]
    out.relocations = list_relocations(
        r
        for r in inputs.relocations.values()
        if is_selected(r.origin, targets) or is_selected(r.target, targets)
    )
    down = {item["address"] for item in out.interrupted if item["rejected"]}
    replaced = [
        _replaced_stream(Address.parse(a), inputs.interrupted.streams[Address.parse(a)])
        for a in down
        if Address.parse(a) in inputs.interrupted.streams
        and inputs.live.get(Address.parse(a)) is None
    ]
    listed = sorted(
        [*(o for o in chosen if o.address.kind != "consumer"), *replaced], key=lambda o: o.address
    )
    now = parse_instant(out.timestamp)
    busy = {Address.parse(item["address"]) for item in out.interrupted}
    out.streams = [
        build_stream_element(o, managed, find_health(inputs, o, now, busy))
        | {"down": str(o.address) in down}
        for o in listed
    ]
    out.consumers = [
        build_consumer_element(o, managed, find_health(inputs, o, now, busy))
        for o in chosen
        if o.address.kind == "consumer"
    ]
    out.replication = [found.to_json() for found in flows]
    out.diagnostics = [
        *_state_diagnostics(context),
        *_unreadable_diagnostics(inputs.live, shown),
        *note_unread_replicas(inputs.live),
        *check_never_answered(inputs),
    ]
    return out


def _managed_addresses(context: Context, inputs: PlanInputs) -> set[Address]:
    domains = context.workspace.domains
    managed = {context.topology.canonicalize(a) for a in inputs.entries if a.domain in domains}
    return managed | {target for target, found in inputs.relocations.items() if found.record}


def _state_diagnostics(context: Context) -> list[Diagnostic]:
    if not context.state_error:
        return []
    text = (
        f"{context.state_error}. What is managed, interrupted or lost since the last apply is not "
        "known"
    )
    detail = "What the domains answer is shown. plan, apply and drift need the state."
    return [Diagnostic("warning", "JS477", text, detail)]


def _replaced_stream(address: Address, found: Transfer) -> LiveObject:
    """Return a live object for a stream that is being replaced, with its staged messages."""
    old, staging = found.record["old"], found.staging_now
    empty = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0}
    return LiveObject(
        address,
        old["config"],
        old["created"],
        empty | (staging.state if staging is not None else {}) | {"consumer_count": 0},
    )


def _unreadable_diagnostics(live: Live, shown: Collection[str]) -> list[Diagnostic]:
    """Warn about objects that exist and could not be read.

    A domain that lets this user read nothing is an error: the status of what it has is not known.
    """
    found = [
        Diagnostic(
            "warning",
            "JS415",
            f"exists but cannot be read: {why}",
            unreadable_hint(why),
            str(address),
        )
        for address, why in sorted(live.unreadable.items())
        if address.domain in shown and why != live.unlisted.get(address.domain)
    ]
    for key, why in sorted(live.unlisted.items()):
        unread = sum(a.domain == key and text == why for a, text in live.unreadable.items())
        text = f"what it holds beyond this workspace cannot be listed: {why}"
        if unread:
            text = f"{count_text(unread, 'resource')} of this workspace cannot be read: {why}"
        if key in shown:
            hint = "Give the user of its connection permission to read."
            severity: Severity = "error" if unread else "warning"
            found.append(Diagnostic(severity, "JS447", text, hint, f"{key}/**"))
    return found


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
    if tiers:
        return sum(int(tier.get(name) or 0) for tier in tiers.values())
    return int(info.get(name) or 0)


def _sum_limit(info: dict[str, Any], name: str) -> int | None:
    """Return a limit of the account, added up over its tiers, or None."""
    tiers = info.get("tiers") or {}
    found = [
        int((part.get("limits") or {}).get(name, -1))
        for part in (tiers.values() if tiers else [info])
    ]
    if all(limit >= 0 for limit in found) and (found != [0] or name == "max_streams"):
        return sum(found)
    return None


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
