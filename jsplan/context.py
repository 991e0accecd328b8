"""Loading the three sides of a comparison: files, state, servers. The first steps of nearly every workflow."""

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
from jsplan.planning.backfills import list_streams, list_time_lookups
from jsplan.planning.build import candidate_addresses
from jsplan.planning.crash_recovery import recover_interrupted
from jsplan.planning.decide import ResourceDecision
from jsplan.planning.forgotten_entries import find_forgotten
from jsplan.planning.measurements import list_measurements
from jsplan.planning.model import (
    PlanInputs,
    PlanRequest,
    apply_moves,
    apply_moves_to_records,
    select_addresses,
)
from jsplan.planning.never_answered_domains import find_never_answered
from jsplan.planning.options import PlanningOptions
from jsplan.planning.preserve.interrupted import staging_streams
from jsplan.planning.replication.duplicates import list_duplicates
from jsplan.planning.replication.impact import unplanned_downstream
from jsplan.planning.replication.removed_sources import add_unknown_domains, list_removed_sources
from jsplan.planning.source_cycles import find_unread_origins
from jsplan.planning.source_history import source_history_times
from jsplan.planning.unmanaged import required_reads as wanted_neighbours
from jsplan.state import Backend, LockInfo, State, backend_of
from jsplan.topology import Topology, build_topology


@dataclass(slots=True)
class Context:
    """What is known before anything was asked of a server."""

    workspace: Workspace
    topology: Topology
    backend: Backend
    state: State
    environ: Mapping[str, str]


@asynccontextmanager
async def open_backend(options: LoadOptions) -> AsyncIterator[tuple[Workspace, Backend]]:
    """Read the files, and have the backend at hand with nothing read from it yet. Raises ConfigError."""
    workspace = load(options)
    backend = backend_of(workspace, options.environ)
    try:
        yield workspace, backend
    finally:
        await backend.close()


@asynccontextmanager
async def open_context(options: LoadOptions) -> AsyncIterator[Context]:
    """Read files and state, and let go of the backend in the end. Raises ConfigError and StateError."""
    async with open_backend(options) as (workspace, backend):
        yield Context(
            workspace, build_topology(workspace), backend, await backend.read(), options.environ
        )


def state_bucket(workspace: Workspace) -> set[Address]:
    """Where the state is, if it is among the things that are planned and listed: it never is one of them."""
    backend = workspace.backend
    return (
        {Address(backend.domain, "kv", backend.bucket)}
        if backend.domain and backend.bucket
        else set()
    )


@asynccontextmanager
async def hold_lock(
    world: Context, operation: str, timeout: int, observer: Observer | None = None
) -> AsyncIterator[None]:
    """Hold the state's lock, with the state as it is under it; `timeout` is ns. Raises StateLockedError and StateError."""
    async with world.backend.lock(
        LockInfo.for_this_process(operation), timeout, make_wait_reporter(world.backend, observer)
    ):
        world.state = await world.backend.read()
        yield


def make_wait_reporter(
    backend: Backend, observer: Observer | None
) -> Callable[[LockInfo], None] | None:
    """Says to whom waits for the lock who has it, and since when."""
    if observer is None:
        return None
    return lambda info: observer.warn(
        f"waiting for {backend.location}: it is locked by {info.describe()}"
    )


def known_domains(world: Context) -> frozenset[str]:
    """Domains that answered an apply under the JetStream name they still have in the files: such a one may be away.

    One whose name was changed since is new: if it does not answer, the name may simply be wrong.
    """
    declared = world.workspace.domains
    return frozenset(
        k
        for k, server in world.state.domains.items()
        if k in declared and server.get("js_domain") == declared[k].js_domain
    )


def build_request(options: PlanOptions) -> PlanRequest:
    """The planning options as planning takes them."""
    asked = {each.name: getattr(options, each.name) for each in fields(PlanningOptions)}
    return PlanRequest(now=datetime.now(UTC), **asked)


def build_inputs(world: Context, request: PlanRequest) -> PlanInputs:
    """The desired and last applied sides, and what is to be planned; the live side is still empty."""
    entries, moved = apply_moves(world.workspace, world.state.resources)
    pending, pending_moved = apply_moves_to_records(world.workspace, world.state.pending)
    replacements, _ = apply_moves_to_records(world.workspace, world.state.replacements)
    inputs = PlanInputs(
        world.workspace,
        world.topology,
        world.state,
        Live(),
        request,
        entries,
        pending_moved | moved,
        unfinished_steps=pending,
        replacement_records=replacements,
        owner_tag=_owner_tag(world),
    )
    inputs.selected = select_addresses(inputs, candidate_addresses(inputs))
    return inputs


def _owner_tag(world: Context) -> str:
    """What this workspace writes into metadata; its id is made when it first does."""
    workspace, known = world.workspace, world.state.ownership.get("id")
    if known is None and not workspace.ownership_marker:
        return ""
    name = f"{workspace.name}.{workspace.environment}" if workspace.environment else workspace.name
    return f"{name}/{known or uuid.uuid4()}"


def open_pool(world: Context, *, read_only: bool, guarded: bool = False) -> Pool:
    """The connections of the workspace; nothing is connected yet."""
    return Pool(
        world.workspace.connections,
        world.environ,
        read_only=read_only,
        guarded=guarded,
        known_objects=_known_objects(world),
    )


def _known_objects(world: Context) -> FindKnownObject:
    """What state knows of each object, under the address that `moved` blocks give it; always of the state as it is by now."""
    moved: tuple[State, dict[Address, Address]] | None = None

    def find(domain: str, stream: str, consumer: str | None) -> KnownObject | None:
        nonlocal moved
        address = (
            Address.of_stream(domain, stream)
            if consumer is None
            else Address(domain, "consumer", f"{stream}/{consumer}")
        )
        entry = world.state.resources.get(address)
        if entry is None and world.workspace.moved:
            if moved is None or moved[0] is not world.state:
                moved = world.state, apply_moves(world.workspace, world.state.resources)[1]
            entry = world.state.resources.get(moved[1].get(address, address))
        return KnownObject(entry.created, entry.seen) if entry is not None and entry.seen else None

    return find


async def refresh(
    world: Context, inputs: PlanInputs, pool: Pool, options: PlanOptions, observer: Observer
) -> None:
    """Fill in the live side of everything selected. Raises ConnectError when a domain is away and must not be."""
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
    observer.phase(
        f"Reading {len(wanted):,} object{'' if len(wanted) == 1 else 's'} in {count} domain{'' if count == 1 else 's'}"
    )
    inputs.live = await read_live(pool, world.workspace.domains, wanted, known_domains(world))
    recover_interrupted(inputs)
    await read_domain_names(inputs, pool)
    planned = {address.domain for address in inputs.selected}
    away = [
        facts
        for facts in inputs.live.domains.values()
        if not facts.reachable and facts.key in planned
    ]
    if away and options.offline == "fail":
        raise ConnectError(
            away[0].offline_text, hint="Without --offline fail its resources would be deferred."
        )


async def read_domain_names(inputs: PlanInputs, pool: Pool) -> None:
    """Ask which domains there are behind the connections of those that never answered: a name may be a typing error."""
    if unknown := find_never_answered(inputs):
        inputs.live.visible_domains = await list_visible_domains(
            pool, {domain.connection for domain in unknown}
        )


async def read_affected(
    world: Context, inputs: PlanInputs, verdicts: dict[Address, ResourceDecision], pool: Pool
) -> None:
    """Read what the changes may run into: copies that were left out of the plan, and what nobody here manages, where the server's
    counts say that there is any.
    """
    await _read_downstreams(world, inputs, verdicts, pool)
    await _read_origins(world, inputs, verdicts, pool)
    await read_unmanaged(
        pool, world.workspace.domains, wanted_neighbours(inputs, verdicts), inputs.live
    )


async def _read_downstreams(
    world: Context, inputs: PlanInputs, verdicts: dict[Address, ResourceDecision], pool: Pool
) -> None:
    """Copies in the workspace, not in the plan, of streams that go: asked together with those, which are known to answer."""
    unread = unplanned_downstream(inputs, verdicts)
    if not unread:
        return
    found = await read_live(
        pool, world.workspace.domains, {*unread, *unread.values()}, known_domains(world)
    )
    inputs.live.domains = found.domains | inputs.live.domains
    inputs.live.objects |= {
        address: live for address, live in found.objects.items() if address in unread
    }
    inputs.live.unreadable |= {
        address: why for address, why in found.unreadable.items() if address in unread
    }


async def _read_origins(
    world: Context, inputs: PlanInputs, verdicts: dict[Address, ResourceDecision], pool: Pool
) -> None:
    """What nobody here manages and several sources of a stream lead to, level by level: the server looks for cycles there too."""
    while unread := find_unread_origins(inputs, verdicts):
        found = await read_live(pool, world.workspace.domains, unread, known_domains(world))
        inputs.live.objects |= found.objects
        inputs.live.unreadable |= found.unreadable
        inputs.live.requested |= unread


async def measure(
    world: Context,
    inputs: PlanInputs,
    verdicts: dict[Address, ResourceDecision],
    pool: Pool,
    observer: Observer,
) -> None:
    """Count what the changes would make the servers delete. Reads only what planning asks about, and so much as it may."""
    asked, twice = list_measurements(inputs, verdicts), list_duplicates(inputs, verdicts)
    levels, limit = (
        {key: facts.level for key, facts in inputs.live.domains.items()},
        inputs.request.measure_limit,
    )
    if twice:
        inputs.duplicate_counts = await count_duplicates(
            pool, world.workspace.domains, twice, levels, limit
        )
    if gone := list_removed_sources(inputs, verdicts):
        inputs.uncopied_counts = await count_duplicates(
            pool, add_unknown_domains(world.workspace.domains, gone), gone, levels, limit
        )
    await _resolve_times(world, inputs, verdicts, pool, levels)
    if asked:
        observer.phase(
            f"Measuring what {len(asked):,} change{'' if len(asked) == 1 else 's'} may delete"
        )
        inputs.measurements = await measure_all(
            pool, world.workspace.domains, asked, levels, limit, inputs.unreadable_origins
        )


async def _resolve_times(
    world: Context,
    inputs: PlanInputs,
    verdicts: dict[Address, ResourceDecision],
    pool: Pool,
    levels: dict[str, int],
) -> None:
    """Where in their streams the times are from and to which backfills go."""
    wanted = sorted(list_time_lookups(inputs) | source_history_times(inputs, verdicts))
    known = [
        (live, time) for address, time in wanted if (live := inputs.live.get(address)) is not None
    ]
    if known:
        inputs.seqs_by_time = await find_seqs_by_time(pool, world.workspace.domains, known, levels)


def _excluded_consumers(inputs: PlanInputs) -> set[Address]:
    """Consumers that were left out while their stream was not: they go with it when it goes."""
    return {
        address
        for address in candidate_addresses(inputs) - inputs.selected
        if address.parent in inputs.selected
    }


def _origin_addresses(inputs: PlanInputs) -> set[Address]:
    """Streams that selected ones copy: inside a domain they decide something about the copy, elsewhere they should be there."""
    return (
        set()
        if inputs.request.destroy
        else {edge.origin for edge in inputs.topology.edges if edge.downstream in inputs.selected}
    )


def with_parent_streams(addresses: Iterable[Address]) -> list[Address]:
    """The addresses and the streams of their consumers, in order."""
    found = set(addresses)
    return sorted(found | {a.parent for a in found if a.parent is not None})


def require_matching(inputs: PlanInputs, globs: Iterable[str], option: str) -> None:
    """Raise PlanError for a glob that names nothing, since a typing error must not pass for "nothing to do"."""
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
