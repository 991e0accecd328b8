"""Builds the status document from what was read."""

from __future__ import annotations

import uuid
from collections.abc import Collection

from jsplan import __version__
from jsplan.address import Address, is_selected, matches
from jsplan.context import Context
from jsplan.diagnostics import Diagnostic
from jsplan.documents.status import Status
from jsplan.facts.live import Live, LiveObject, unreadable_hint
from jsplan.facts.replicas import note_unread_replicas
from jsplan.planning.domain_findings import check_never_answered, last_seen
from jsplan.planning.interruptions import list_interruptions
from jsplan.planning.losses import find_health
from jsplan.planning.model import PlanInputs
from jsplan.planning.transfer.progress import Transfer, list_relocations
from jsplan.replication.health import FlowHealth
from jsplan.status.elements import (
    build_consumer_element,
    build_domain_element,
    build_stream_element,
)
from jsplan.units import format_timestamp, parse_instant


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
    """Warn about objects that exist and could not be read."""
    found = [
        Diagnostic(
            "warning",
            "JS415",
            f"exists but cannot be read: {why}",
            unreadable_hint(why),
            str(address),
        )
        for address, why in sorted(live.unreadable.items())
        if address.domain in shown
    ]
    return found + [
        Diagnostic(
            "warning",
            "JS447",
            f"what it holds beyond this workspace cannot be listed: {why}",
            "Give the user of its connection permission to read.",
            f"{key}/**",
        )
        for key, why in sorted(live.unlisted.items())
        if key in shown
    ]
