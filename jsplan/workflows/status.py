"""status: live streams, consumers and flows. Read-only; does not compare with the files."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NoReturn, Protocol

from jsplan import __version__
from jsplan.address import Address, matches
from jsplan.config.model import LoadOptions
from jsplan.context import (
    Context,
    build_inputs,
    known_domains,
    open_session,
    state_bucket,
)
from jsplan.diagnostics import Diagnostic
from jsplan.documents.status import Status
from jsplan.errors import ApiError, ConnectError, JsplanError
from jsplan.event_loop import run_until_complete
from jsplan.facts.inventory import is_state_bucket
from jsplan.facts.listing import list_live
from jsplan.facts.live import DomainFacts, Live, LiveObject
from jsplan.facts.reader import read_object
from jsplan.jetstream import Pool
from jsplan.options import NullObserver, Observer
from jsplan.planning.model import PlanInputs, PlanRequest
from jsplan.planning.never_answered_domains import check_never_answered
from jsplan.planning.offline_domains import is_within_offline_limit, last_seen
from jsplan.planning.preserve.interrupted import (
    InterruptedReplacement,
    determine_progress,
    list_interrupted,
)
from jsplan.replication.health import FlowHealth, ReplicationChecker, SampleHistory
from jsplan.server_reader import read_domain_names, with_parent_streams
from jsplan.units import format_timestamp


def status(load: LoadOptions, observer: Observer, targets: Collection[str] = ()) -> Status:
    """Read the live status. Raises ConfigError, StateError, ConnectError (no domain), ApiError."""
    return run_until_complete(_status(load, observer, targets))


class StatusScreen(Protocol):
    """The display of `watch`."""

    def show(self, status: Status) -> None:
        """Show the current status."""

    def show_error(self, error: JsplanError) -> None:
        """Show that nothing could be read this time."""


def watch(
    load: LoadOptions, screen: StatusScreen, every: float, targets: Collection[str] = ()
) -> NoReturn:
    """Show the status again and again, every `every` seconds, until interrupted.

    Each time it takes one sample of the flows, and uses the earlier ones. Raises the errors of
    `status` for the first time only.
    """
    run_until_complete(_watch(load, screen, every, targets))
    raise AssertionError


async def _watch(
    load: LoadOptions, screen: StatusScreen, every: float, targets: Collection[str]
) -> NoReturn:
    seen: SampleHistory = {}
    screen.show(await _status(load, NullObserver(), targets, seen))
    while True:
        await asyncio.sleep(every)
        try:
            screen.show(await _status(load, NullObserver(), targets, seen))
        except (ApiError, ConnectError) as error:
            screen.show_error(error)


async def _status(
    load: LoadOptions,
    observer: Observer,
    targets: Collection[str],
    seen: SampleHistory | None = None,
) -> Status:
    async with open_session(load, observer) as session:
        context, pool = session.context, session.pool
        inputs = build_inputs(context, PlanRequest(now=datetime.now(UTC)))
        named = sum(1 for domain in context.workspace.domains.values() if domain.same_as is None)
        observer.phase(f"Asking {named:,} domain{'' if named == 1 else 's'}")
        wanted = with_parent_streams({*context.workspace.resources, *inputs.entries})
        live = await list_live(pool, context.workspace.domains, known_domains(context), wanted)
        inputs = await _read_staging_streams(pool, replace(inputs, live=live))
        inputs = await read_domain_names(inputs, pool)
        own = state_bucket(context.workspace)
        listed = {
            a: o
            for a, o in inputs.live.objects.items()
            if not (is_state_bucket(o) or own & {a, a.parent})
        }
        chosen = [
            o
            for a, o in sorted(listed.items())
            if not targets or any(matches(t, a) for t in targets)
        ]
        downstreams = [o.address for o in chosen if o.flows]
        if downstreams:
            observer.phase(
                f"Looking at {len(downstreams):,} downstream stream"
                f"{'' if len(downstreams) == 1 else 's'}"
            )
        health = ReplicationChecker(session, inputs.live, {} if seen is None else seen)
        flows = await (
            health.check_until_conclusive(downstreams)
            if seen is None
            else health.check_again(downstreams)
        )
    return _build_document(context, inputs, chosen, flows, targets)


async def _read_staging_streams(pool: Pool, inputs: PlanInputs) -> PlanInputs:
    """Determine the progress of interrupted replacements by their staging streams."""
    streams: dict[Address, InterruptedReplacement] = {}
    for address, record in inputs.interrupted.replacements.items():
        if "staging" in record and inputs.live.is_reachable(address.domain):
            api, staging = (
                pool.api(inputs.workspace.domains[address.domain]),
                Address.parse(record["staging"]),
            )
            streams[address] = determine_progress(
                address, record, inputs.live.get(address), await read_object(api, staging)
            )
    return replace(inputs, interrupted=replace(inputs.interrupted, streams=streams))


def _build_document(
    context: Context,
    inputs: PlanInputs,
    chosen: list[LiveObject],
    flows: list[FlowHealth],
    targets: Collection[str],
) -> Status:
    workspace = context.workspace
    out = Status(
        __version__, workspace.name, workspace.environment, format_timestamp(), str(uuid.uuid4())
    )
    managed = {
        context.topology.canonicalize(a) for a in inputs.entries if a.domain in workspace.domains
    }
    seen = last_seen(inputs)
    shown = [
        key
        for key in sorted(inputs.live.domains)
        if not targets or any(matches(t.split("/", 1)[0], key) for t in targets)
    ]
    out.domains = [
        _domain_element(inputs, inputs.live.domains[key], seen.get(key)) for key in shown
    ]
    out.interrupted = list_interrupted(
        {
            a: u
            for a, u in inputs.interrupted.streams.items()
            if not targets or any(matches(t, a) for t in targets)
        }
    )
    down = {item["address"] for item in out.interrupted if item["rejected"]}
    replaced = [
        _replaced_stream(Address.parse(a), inputs.interrupted.streams[Address.parse(a)])
        for a in down
        if inputs.live.get(Address.parse(a)) is None
    ]
    listed = sorted(
        [*(o for o in chosen if o.address.kind != "consumer"), *replaced], key=lambda o: o.address
    )
    out.streams = [_stream_element(o, managed) | {"down": str(o.address) in down} for o in listed]
    out.consumers = [_consumer_element(o, managed) for o in chosen if o.address.kind == "consumer"]
    out.replication = [found.to_json() for found in flows]
    out.diagnostics = [*_unreadable_diagnostics(inputs.live, shown), *check_never_answered(inputs)]
    return out


def _replaced_stream(address: Address, found: InterruptedReplacement) -> LiveObject:
    """Return a live object for a stream that is being replaced, with its staged messages."""
    old, staging = found.record["old"], found.staging
    empty = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0}
    return LiveObject(
        address,
        old["config"],
        old["created"],
        empty | (staging.state if staging is not None else {}) | {"consumer_count": 0},
    )


def _domain_element(
    inputs: PlanInputs, facts: DomainFacts, seen: datetime | None
) -> dict[str, Any]:
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


def _stream_element(found: LiveObject, managed: set[Address]) -> dict[str, Any]:
    state = found.state
    return {
        "address": str(found.address),
        "type": found.address.kind,
        "managed": found.address in managed,
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
    }


def _origin_kind(found: LiveObject) -> str | None:
    """Return `mirror`, `sources`, or None."""
    return "mirror" if found.raw.get("mirror") else "sources" if found.raw.get("sources") else None


def _consumer_element(found: LiveObject, managed: set[Address]) -> dict[str, Any]:
    state = found.state
    return {
        "address": str(found.address),
        "managed": found.address in managed,
        "pending": state.get("num_pending") or 0,
        "ack_pending": state.get("num_ack_pending") or 0,
        "redelivered": state.get("num_redelivered") or 0,
        "waiting": state.get("num_waiting") or 0,
        "delivered": _position_element(state.get("delivered")),
        "ack_floor": _position_element(state.get("ack_floor")),
    }


def _position_element(found: dict[str, Any] | None) -> dict[str, int]:
    return {name: int((found or {}).get(name) or 0) for name in ("consumer_seq", "stream_seq")}


def _unreadable_diagnostics(live: Live, shown: Collection[str]) -> list[Diagnostic]:
    """Warn about objects that exist and could not be read."""
    found = [
        Diagnostic(
            "warning",
            "JS415",
            f"exists on the server but is offline there: {why}",
            "It uses a feature this server does not know.",
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
