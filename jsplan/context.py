"""Opens the workspace: files, state, connections. The first steps of nearly every workflow."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime

from jsplan.address import Address, matches
from jsplan.config import load
from jsplan.config.model import LoadOptions, Workspace
from jsplan.diagnostics import Diagnostic, did_you_mean
from jsplan.errors import ConnectError, PlanError
from jsplan.facts.discover import list_visible_domains
from jsplan.facts.duplicate_count import count_duplicates
from jsplan.facts.live import Live
from jsplan.facts.measure import measure_all
from jsplan.facts.reader import read_live
from jsplan.facts.seq_by_time import find_seqs_by_time
from jsplan.facts.unmanaged import read_unmanaged
from jsplan.jetstream import Pool
from jsplan.jetstream.identity import FindKnownObject, KnownObject
from jsplan.options import Observer, PlanOptions
from jsplan.planning.backfill.entries import list_streams, list_time_lookups
from jsplan.planning.backfill.source_history import source_history_times
from jsplan.planning.build import candidate_addresses
from jsplan.planning.crash_recovery import recover_interrupted, staging_streams
from jsplan.planning.forgotten_entries import find_forgotten
from jsplan.planning.measurements import list_measurements
from jsplan.planning.model import (
    PlanInputs,
    PlanRequest,
    ResourceDecision,
    apply_moves,
    apply_moves_to_records,
    select_addresses,
)
from jsplan.planning.never_answered_domains import find_never_answered
from jsplan.planning.options import PlanningOptions
from jsplan.planning.replication.duplicates import list_duplicates
from jsplan.planning.replication.impact import unplanned_downstream
from jsplan.planning.replication.removed_sources import add_unknown_domains, list_removed_sources
from jsplan.planning.source_cycles import find_unread_origins
from jsplan.planning.unmanaged import required_reads as unmanaged_reads
from jsplan.state import Backend, LockInfo, State, backend_of
from jsplan.topology import Topology, build_topology


@dataclass(slots=True)
class Context:
    """The opened workspace before any request to a server."""

    workspace: Workspace
    topology: Topology
    backend: Backend
    state: State
    environ: Mapping[str, str]


@asynccontextmanager
async def open_backend(options: LoadOptions) -> AsyncIterator[tuple[Workspace, Backend]]:
    """Read the files and open the backend, without reading the state. Raises ConfigError."""
    workspace = load(options)
    backend = backend_of(workspace, options.environ)
    try:
        yield workspace, backend
    finally:
        await backend.close()


@asynccontextmanager
async def open_context(options: LoadOptions) -> AsyncIterator[Context]:
    """Read files and state; close the backend at the end. Raises ConfigError and StateError."""
    async with open_backend(options) as (workspace, backend):
        yield Context(
            workspace, build_topology(workspace), backend, await backend.read(), options.environ
        )


def state_bucket(workspace: Workspace) -> set[Address]:
    """Return the bucket of the state, if any: it is never planned or listed."""
    backend = workspace.backend
    return (
        {Address(backend.domain, "kv", backend.bucket)}
        if backend.domain and backend.bucket
        else set()
    )


@asynccontextmanager
async def hold_lock(
    context: Context, operation: str, timeout: int, observer: Observer | None = None
) -> AsyncIterator[None]:
    """Hold the state's lock, and read the state again under it; `timeout` is ns.

    Raises StateLockedError and StateError.
    """
    async with context.backend.lock(
        LockInfo.for_this_process(operation), timeout, make_wait_reporter(context.backend, observer)
    ):
        context.state = await context.backend.read()
        yield


def make_wait_reporter(
    backend: Backend, observer: Observer | None
) -> Callable[[LockInfo], None] | None:
    """Return a function that warns the user who holds the lock, and since when."""
    if observer is None:
        return None
    return lambda info: observer.warn(
        f"waiting for {backend.location}: it is locked by {info.describe()}"
    )


def known_domains(context: Context) -> frozenset[str]:
    """Return domains that answered an apply under the JetStream name of the files.

    Such a domain may be offline. One whose name changed since counts as new: if it does not answer,
    the name may be wrong.
    """
    declared = context.workspace.domains
    return frozenset(
        k
        for k, server in context.state.domains.items()
        if k in declared and server.get("js_domain") == declared[k].js_domain
    )


def build_request(options: PlanOptions) -> PlanRequest:
    """Build the request for planning from the options."""
    values = {each.name: getattr(options, each.name) for each in fields(PlanningOptions)}
    return PlanRequest(now=datetime.now(UTC), **values)


def build_inputs(context: Context, request: PlanRequest) -> PlanInputs:
    """Build the inputs of planning with an empty live side."""
    entries, moved = apply_moves(context.workspace, context.state.resources)
    pending, pending_moved = apply_moves_to_records(context.workspace, context.state.pending)
    replacements, _ = apply_moves_to_records(context.workspace, context.state.replacements)
    inputs = PlanInputs(
        context.workspace,
        context.topology,
        context.state,
        Live(),
        request,
        entries,
        pending_moved | moved,
        unfinished_steps=pending,
        replacement_records=replacements,
        owner_tag=_owner_tag(context),
    )
    inputs.selected = select_addresses(inputs, candidate_addresses(inputs))
    return inputs


def _owner_tag(context: Context) -> str:
    """Return the owner tag of this workspace. Its id is made at the first use."""
    workspace, known = context.workspace, context.state.ownership.get("id")
    if known is None and not workspace.ownership_marker:
        return ""
    name = f"{workspace.name}.{workspace.environment}" if workspace.environment else workspace.name
    return f"{name}/{known or uuid.uuid4()}"


def open_pool(context: Context, *, read_only: bool, guarded: bool = False) -> Pool:
    """Return the connections of the workspace, not yet opened."""
    return Pool(
        context.workspace.connections,
        context.environ,
        read_only=read_only,
        guarded=guarded,
        known_objects=_known_objects(context),
    )


def _known_objects(context: Context) -> FindKnownObject:
    """Return a lookup of objects in the current state, by the addresses after `moved` blocks."""
    moved: tuple[State, dict[Address, Address]] | None = None

    def find(domain: str, stream: str, consumer: str | None) -> KnownObject | None:
        nonlocal moved
        address = (
            Address.of_stream(domain, stream)
            if consumer is None
            else Address(domain, "consumer", f"{stream}/{consumer}")
        )
        entry = context.state.resources.get(address)
        if entry is None and context.workspace.moved:
            if moved is None or moved[0] is not context.state:
                moved = context.state, apply_moves(context.workspace, context.state.resources)[1]
            entry = context.state.resources.get(moved[1].get(address, address))
        return KnownObject(entry.created, entry.seen) if entry is not None and entry.seen else None

    return find


async def refresh(
    context: Context, inputs: PlanInputs, pool: Pool, options: PlanOptions, observer: Observer
) -> None:
    """Read the live side of the selection. Raises ConnectError for --offline fail."""
    wanted = with_parent_streams(
        inputs.selected
        | _excluded_consumers(inputs)
        | _origin_addresses(inputs)
        | staging_streams(inputs)
        | list_streams(inputs)
    )
    wanted = sorted(
        {*wanted, *(old for new, old in inputs.moved_from.items() if new in inputs.selected)}
    )
    count = len({address.domain for address in wanted})
    objects, domains = "" if len(wanted) == 1 else "s", "" if count == 1 else "s"
    observer.phase(f"Reading {len(wanted):,} object{objects} in {count} domain{domains}")
    inputs.live = await read_live(pool, context.workspace.domains, wanted, known_domains(context))
    recover_interrupted(inputs)
    await read_domain_names(inputs, pool)
    planned = {address.domain for address in inputs.selected}
    offline = [
        facts
        for facts in inputs.live.domains.values()
        if not facts.reachable and facts.key in planned
    ]
    if offline and options.offline == "fail":
        raise ConnectError(
            offline[0].offline_text,
            hint="Without --offline fail its resources would be deferred.",
        )


async def read_domain_names(inputs: PlanInputs, pool: Pool) -> None:
    """List the visible domains where a domain never answered: its name may be misspelt."""
    if unknown := find_never_answered(inputs):
        inputs.live.visible_domains = await list_visible_domains(
            pool, {domain.connection for domain in unknown}
        )


async def read_affected(
    context: Context, inputs: PlanInputs, decisions: dict[Address, ResourceDecision], pool: Pool
) -> None:
    """Read what the changes affect: downstream streams outside the plan, and unmanaged objects.

    The counts of the server decide whether there are unmanaged ones.
    """
    await _read_downstreams(context, inputs, decisions, pool)
    await _read_origins(context, inputs, decisions, pool)
    await read_unmanaged(
        pool, context.workspace.domains, unmanaged_reads(inputs, decisions), inputs.live
    )


async def _read_downstreams(
    context: Context, inputs: PlanInputs, decisions: dict[Address, ResourceDecision], pool: Pool
) -> None:
    """Read unselected downstream streams of deleted streams, together with these."""
    unread = unplanned_downstream(inputs, decisions)
    if not unread:
        return
    found = await read_live(
        pool, context.workspace.domains, {*unread, *unread.values()}, known_domains(context)
    )
    inputs.live.domains = found.domains | inputs.live.domains
    inputs.live.objects |= {
        address: live for address, live in found.objects.items() if address in unread
    }
    inputs.live.unreadable |= {
        address: why for address, why in found.unreadable.items() if address in unread
    }


async def _read_origins(
    context: Context, inputs: PlanInputs, decisions: dict[Address, ResourceDecision], pool: Pool
) -> None:
    """Read unmanaged origins level by level, because the server searches them for cycles too."""
    while unread := find_unread_origins(inputs, decisions):
        found = await read_live(pool, context.workspace.domains, unread, known_domains(context))
        inputs.live.objects |= found.objects
        inputs.live.unreadable |= found.unreadable
        inputs.live.requested |= unread


async def measure(
    context: Context,
    inputs: PlanInputs,
    decisions: dict[Address, ResourceDecision],
    pool: Pool,
    observer: Observer,
) -> None:
    """Count the messages that the changes would delete, within the limit of reads."""
    measurements, duplicates = (
        list_measurements(inputs, decisions),
        list_duplicates(inputs, decisions),
    )
    levels, limit = (
        {key: facts.level for key, facts in inputs.live.domains.items()},
        inputs.request.measure_limit,
    )
    if duplicates:
        inputs.duplicate_counts = await count_duplicates(
            pool, context.workspace.domains, duplicates, levels, limit
        )
    if removed := list_removed_sources(inputs, decisions):
        inputs.uncopied_counts = await count_duplicates(
            pool, add_unknown_domains(context.workspace.domains, removed), removed, levels, limit
        )
    await _resolve_times(context, inputs, decisions, pool, levels)
    if measurements:
        changes = f"{len(measurements):,} change{'' if len(measurements) == 1 else 's'}"
        observer.phase(f"Measuring what {changes} may delete")
        inputs.measurements = await measure_all(
            pool, context.workspace.domains, measurements, levels, limit, inputs.unreadable_origins
        )


async def _resolve_times(
    context: Context,
    inputs: PlanInputs,
    decisions: dict[Address, ResourceDecision],
    pool: Pool,
    levels: dict[str, int],
) -> None:
    """Find the sequences for the times at which backfills begin or end."""
    wanted = sorted(list_time_lookups(inputs) | source_history_times(inputs, decisions))
    known = [
        (live, time) for address, time in wanted if (live := inputs.live.get(address)) is not None
    ]
    if known:
        inputs.seqs_by_time = await find_seqs_by_time(
            pool, context.workspace.domains, known, levels
        )


def _excluded_consumers(inputs: PlanInputs) -> set[Address]:
    """Return consumers outside the selection whose stream is selected: they share its fate."""
    return {
        address
        for address in candidate_addresses(inputs) - inputs.selected
        if address.parent in inputs.selected
    }


def _origin_addresses(inputs: PlanInputs) -> set[Address]:
    """Return the origins of selected streams: they affect these, and they should exist."""
    return (
        set()
        if inputs.request.destroy
        else {edge.origin for edge in inputs.topology.edges if edge.downstream in inputs.selected}
    )


def with_parent_streams(addresses: Iterable[Address]) -> list[Address]:
    """Return the addresses and the streams of their consumers, sorted."""
    found = set(addresses)
    return sorted(found | {a.parent for a in found if a.parent is not None})


def require_matching(inputs: PlanInputs, globs: Iterable[str], option: str) -> None:
    """Raise PlanError for a glob that matches nothing, such as a misspelt one."""
    known = candidate_addresses(inputs) | find_forgotten(inputs)
    found = [
        Diagnostic(
            "error",
            "JS417",
            f"{option} {glob} names nothing in the files or in state",
            did_you_mean(glob, map(str, known)).strip()
            or "`jsplan plan` and `jsplan state list` show what there is.",
        )
        for glob in globs
        if not any(matches(glob, address) for address in known)
    ]
    if found:
        raise PlanError(found, found[0].summary)
