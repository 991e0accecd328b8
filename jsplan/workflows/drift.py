"""drift: one read-only check for changed, missing and unmanaged resources."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from datetime import UTC, datetime

from jsplan import __version__
from jsplan.address import Address, matches
from jsplan.config.model import LoadOptions, Workspace
from jsplan.context import (
    Context,
    build_inputs,
    known_domains,
    open_context,
    open_pool,
    read_domain_names,
    state_bucket,
    with_parent_streams,
)
from jsplan.diagnostics import Diagnostic
from jsplan.documents.drift import Drift
from jsplan.documents.plan import Deferred
from jsplan.drift.mutes import apply_mutes
from jsplan.drift.replication_severity import with_severity
from jsplan.drift.unmanaged import build_unmanaged_element
from jsplan.errors import ExitCode, combine_exit_codes
from jsplan.event_loop import run_until_complete
from jsplan.facts.inventory import ask_if_permitted, is_state_bucket, list_unmanaged, may_be_listed
from jsplan.facts.live import Live, LiveObject
from jsplan.facts.reader import read_into, read_live
from jsplan.jetstream import Pool
from jsplan.options import DriftOptions, Observer
from jsplan.planning.crash_recovery import (
    describe_interruption,
    recover_interrupted,
    staging_streams,
)
from jsplan.planning.drift import detect_drift
from jsplan.planning.model import PlanInputs, PlanRequest
from jsplan.planning.never_answered_domains import check_never_answered
from jsplan.planning.offline_domains import is_within_offline_limit, last_seen
from jsplan.planning.preserve.interrupted import list_interrupted
from jsplan.planning.replication.impact import source_names
from jsplan.replication.health import FlowHealth, ReplicationChecker
from jsplan.units import format_timestamp

#: The reason why a resource is deferred although its domain answers.
INTERRUPTED_REPLACEMENT = "it is in the middle of a replacement"


def drift(load: LoadOptions, options: DriftOptions, observer: Observer) -> Drift:
    """Compare live with last applied. Sends nothing that could change a server; takes no lock.

    Raises ConfigError, StateError, ConnectError (no domain at all can be reached) and ApiError.
    """
    return run_until_complete(_load_and_drift(load, options, observer))


async def _load_and_drift(load: LoadOptions, options: DriftOptions, observer: Observer) -> Drift:
    async with (
        open_context(load) as context,
        open_pool(context, read_only=True, guarded=True) as pool,
    ):
        return await check_drift(context, pool, options, observer)


async def check_drift(
    context: Context, pool: Pool, options: DriftOptions, observer: Observer
) -> Drift:
    """Check everything selected over guarded connections, for `drift` and the drift job."""
    request = PlanRequest(now=datetime.now(UTC), targets=options.targets, excludes=options.excludes)
    inputs = build_inputs(context, request)
    checked = sorted(
        a
        for a in {*inputs.entries, *inputs.unfinished_steps}
        if a in inputs.selected and not _is_ignored(context.workspace, a)
    )
    observer.phase(f"Reading {len(checked):,} resource{'' if len(checked) == 1 else 's'}")
    needed, domains = (
        [*with_parent_streams(checked), *sorted(staging_streams(inputs))],
        context.workspace.domains,
    )
    also = (
        ()
        if options.targets
        else [key for key, domain in domains.items() if domain.same_as is None]
    )
    inputs.live = await read_live(pool, domains, needed, known_domains(context), also)
    recover_interrupted(inputs)
    await read_domain_names(inputs, pool)
    unmanaged = (
        []
        if options.targets
        else await list_unmanaged(pool, domains, inputs.live, _known_addresses(context, inputs))
    )
    managed = [a for a in checked if a in inputs.entries]
    flows = await _check_flows(context, pool, inputs, managed) if options.replication else ()
    return _build_document(context, inputs, managed, unmanaged, options, flows)


async def check_replication(context: Context, pool: Pool) -> Drift:
    """Check only mirrors and sources, which takes longer for one that does not follow."""
    inputs = build_inputs(context, PlanRequest(now=datetime.now(UTC)))
    copying = [
        a
        for a, entry in inputs.entries.items()
        if entry.config.get("mirror") or entry.config.get("sources")
    ]
    copying = sorted(
        a
        for a in copying
        if a.domain in context.workspace.domains and not _is_ignored(context.workspace, a)
    )
    flows: Iterable[FlowHealth] = ()
    if copying:
        inputs.live = await read_live(
            pool,
            context.workspace.domains,
            [*copying, *sorted(staging_streams(inputs))],
            known_domains(context),
        )
        recover_interrupted(inputs)
        flows = await _check_flows(context, pool, inputs, copying)
    return _build_document(context, inputs, [], [], DriftOptions(), flows)


async def _check_flows(
    context: Context, pool: Pool, inputs: PlanInputs, managed: Iterable[Address]
) -> list[FlowHealth]:
    health = ReplicationChecker(context, pool, inputs.live)
    return await health.check_until_conclusive(
        _list_downstreams(inputs, managed), {*inputs.interrupted, *inputs.detached_sources}
    )


def _list_downstreams(inputs: PlanInputs, managed: Iterable[Address]) -> list[Address]:
    """Return the streams that may have flows. One in a replacement has them afterwards."""
    return [
        a
        for a in managed
        if a.kind != "consumer" and a not in inputs.interrupted and a not in inputs.detached_sources
    ]


async def check_addresses(
    context: Context, pool: Pool, addresses: Collection[Address], options: DriftOptions
) -> Drift:
    """Check only these addresses, managed or not, as `check_drift` would check them."""
    request = PlanRequest(now=datetime.now(UTC))
    inputs = build_inputs(context, request)
    requested = {
        a
        for a in addresses
        if a.domain in context.workspace.domains and not _is_ignored(context.workspace, a)
    }
    checked = sorted(requested & {*inputs.entries, *inputs.unfinished_steps})
    known = _known_addresses(context, inputs)
    others = {a for a in requested - known if may_be_listed(a)}
    if requested:
        needed = [*with_parent_streams(checked), *sorted(staging_streams(inputs))]
        inputs.live = await read_live(
            pool,
            context.workspace.domains,
            needed,
            known_domains(context),
            {a.domain for a in requested},
        )
        await _read_unmanaged(context, pool, inputs, with_parent_streams(others))
        recover_interrupted(inputs)
    managed = [a for a in checked if a in inputs.entries]
    found = (inputs.live.get(a) for a in sorted(others))
    return _build_document(
        context,
        inputs,
        managed,
        [o for o in found if o is not None and not is_state_bucket(o)],
        options,
    )


async def _read_unmanaged(
    context: Context, pool: Pool, inputs: PlanInputs, addresses: Iterable[Address]
) -> None:
    """Read unmanaged objects, as far as this user may and they are not read yet."""
    for address in addresses:
        if inputs.live.is_reachable(address.domain) and inputs.live.get(address) is None:
            api = pool.api(context.workspace.domains[address.domain])
            await ask_if_permitted(
                read_into(api, inputs.live, address), address.domain, inputs.live
            )


def _known_addresses(context: Context, inputs: PlanInputs) -> set[Address]:
    """Return addresses of the files, of state, and of the state's bucket, with `same_as` ones."""
    known = {*context.workspace.resources, *inputs.entries, *state_bucket(context.workspace)}
    return known | {
        context.topology.canonicalize(a) for a in known if a.domain in context.workspace.domains
    }


def _is_ignored(workspace: Workspace, address: Address) -> bool:
    return any(matches(glob, address) for glob in workspace.drift.ignore)


def _build_document(
    context: Context,
    inputs: PlanInputs,
    managed: list[Address],
    unmanaged: list[LiveObject],
    options: DriftOptions,
    flows: Iterable[FlowHealth] = (),
) -> Drift:
    live, workspace = inputs.live, context.workspace
    out = Drift(
        __version__, workspace.name, workspace.environment, format_timestamp(), str(uuid.uuid4())
    )
    for address in managed:
        _compare_managed(out, inputs, address)
    out.interrupted.sort(key=lambda item: not item["rejected"])
    out.replication = [
        with_severity(found.to_json())
        for found in flows
        if not _is_ignored(workspace, found.flow.downstream)
    ]
    out.unmanaged = [
        build_unmanaged_element(o, live) for o in unmanaged if not _is_ignored(workspace, o.address)
    ]
    seen = last_seen(inputs)
    out.offline = [
        _offline_element(inputs, key, seen.get(key))
        for key, facts in sorted(live.domains.items())
        if not facts.reachable
    ]
    out.pending = _count_pending(inputs)
    out.diagnostics += check_never_answered(inputs)
    apply_mutes(out, workspace.drift.mute, inputs.request.now)
    out.declared_at = {
        r.address: d.range
        for r in out.resource_drift
        if (d := workspace.resources.get(Address.parse(r.address))) is not None
    }
    out.diagnostics += _unlisted_diagnostics(live)
    out.exit_code = int(_exit_code(out, options, live))
    return out


def _compare_managed(out: Drift, inputs: PlanInputs, address: Address) -> None:
    """Add the drift of one resource, or the reason why it cannot be compared now."""
    if reason := _unreadable_reason(inputs, address):
        out.deferred.append(Deferred(str(address), reason))
        return
    interrupted = inputs.interrupted.get(address)
    if interrupted is not None and interrupted.next_step != "clear":
        out.interrupted += list_interrupted({address: interrupted})
        return
    if progress := describe_interruption(inputs, address):
        out.deferred.append(Deferred(str(address), f"{INTERRUPTED_REPLACEMENT}: {progress}"))
        return
    declared = inputs.workspace.resources.get(address)
    found = detect_drift(
        address,
        inputs.entries[address],
        inputs.live.get(address),
        inputs.level(address),
        declared.lifecycle.ignore_changes if declared else (),
        now=inputs.request.now,
    )
    if found is not None:
        out.resource_drift.append(found)
    elif address in inputs.detached_sources:
        names = source_names(inputs.detached_sources[address])
        reason = f"{INTERRUPTED_REPLACEMENT}: {names} is to be put back into it"
        out.deferred.append(Deferred(str(address), reason))


def _unreadable_reason(inputs: PlanInputs, address: Address) -> str:
    """Return why the resource cannot be read; empty if it can."""
    live = inputs.live
    if not live.is_reachable(address.domain):
        return live.domains[address.domain].offline_text
    if address in live.unreadable:
        return f"it is offline on its server: {live.unreadable[address]}"
    return ""


def _offline_element(inputs: PlanInputs, key: str, seen: datetime | None) -> dict[str, object]:
    return {
        "domain": key,
        "reason": inputs.live.domains[key].short_reason,
        "may_be_offline": inputs.workspace.domains[key].may_be_offline,
        "last_seen": format_timestamp(seen) if seen else None,
        "excused": is_within_offline_limit(inputs, key, seen),
    }


def _count_pending(inputs: PlanInputs) -> int:
    """Count the resources whose files differ from the last applied configuration."""
    resources = inputs.workspace.resources
    count = sum(1 for a in resources if a in inputs.selected and a not in inputs.entries)
    for address, entry in inputs.entries.items():
        if address in inputs.selected:
            same = address in resources and inputs.declared_fields(address) == entry.declared
            count += not same
    return count


def _unlisted_diagnostics(live: Live) -> Iterable[Diagnostic]:
    for domain, reason in sorted(live.unlisted.items()):
        text = (
            f"what else is in domain {domain} cannot be listed,"
            f" so what is unmanaged there is not known: {reason}"
        )
        yield Diagnostic(
            "warning",
            "JS447",
            text,
            "Let this user ask STREAM.NAMES, CONSUMER.NAMES and their INFO.",
            f"{domain}/**",
        )


def _exit_code(out: Drift, options: DriftOptions, live: Live) -> ExitCode:
    """Return the exit code. For drift, 2 comes before 1 (contract, section 3)."""
    counts = out.summary
    names = {
        "changed": "changed",
        "missing": "missing",
        "replication": "unhealthy",
        "unmanaged": "unmanaged",
    }
    if (out.interrupted and options.fail_on) or any(
        counts[names[what]] for what in options.fail_on
    ):
        return ExitCode.CHANGES
    unread = any(not domain["excused"] for domain in out.offline) or (
        live.unlisted and "unmanaged" in options.fail_on
    )
    return combine_exit_codes([ExitCode.ERROR] if unread else [])
