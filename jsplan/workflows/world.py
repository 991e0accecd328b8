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
from jsplan.facts.discover import visible_domains
from jsplan.facts.live import Live
from jsplan.facts.measure import measure_all
from jsplan.facts.neighbours import read_neighbours
from jsplan.facts.places import places
from jsplan.facts.recopied import count_copied_again
from jsplan.facts.survey import survey
from jsplan.jetstream import Pool
from jsplan.jetstream.identity import Sighting, Sightings
from jsplan.planning.backfills import places_of, streams_of
from jsplan.planning.build import candidates
from jsplan.planning.choices import Choices
from jsplan.planning.downstream import copies_left_out
from jsplan.planning.given_up import given_up
from jsplan.planning.inputs import Inputs, Request, rename, rename_pending, select
from jsplan.planning.leaving import leaving, with_unknown
from jsplan.planning.left_out import left_out_places
from jsplan.planning.neighbours import wanted as wanted_neighbours
from jsplan.planning.preserve.resumed import stand_ins
from jsplan.planning.questions import questions
from jsplan.planning.recopies import recopies
from jsplan.planning.recovered import recover
from jsplan.planning.source_cycles import unread_origins
from jsplan.planning.unanswered import never_answered
from jsplan.planning.verdict import Verdict
from jsplan.state import Backend, LockInfo, State, backend_of
from jsplan.topology import Topology, resolve
from jsplan.workflows.options import Observer, PlanOptions


@dataclass(slots=True)
class World:
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
async def open_world(options: LoadOptions) -> AsyncIterator[World]:
    """Read files and state, and let go of the backend in the end. Raises ConfigError and StateError."""
    async with open_backend(options) as (workspace, backend):
        yield World(workspace, resolve(workspace), backend, await backend.read(), options.environ)


def state_bucket(workspace: Workspace) -> set[Address]:
    """Where the state is, if it is among the things that are planned and listed: it never is one of them."""
    backend = workspace.backend
    return {Address(backend.domain, "kv", backend.bucket)} if backend.domain and backend.bucket else set()


@asynccontextmanager
async def locked(world: World, operation: str, timeout: int, observer: Observer | None = None) -> AsyncIterator[None]:
    """Hold the state's lock, with the state as it is under it; `timeout` is ns. Raises StateLockedError and StateError."""
    async with world.backend.lock(LockInfo.here(operation), timeout, telling(world.backend, observer)):
        world.state = await world.backend.read()
        yield


def telling(backend: Backend, observer: Observer | None) -> Callable[[LockInfo], None] | None:
    """Says to whom waits for the lock who has it, and since when."""
    if observer is None:
        return None
    return lambda info: observer.warn(f"waiting for {backend.place}: it is locked by {info.describe()}")


def known_domains(world: World) -> frozenset[str]:
    """Domains that answered an apply under the JetStream name they still have in the files: such a one may be away.

    One whose name was changed since is new: if it does not answer, the name may simply be wrong.
    """
    declared = world.workspace.domains
    return frozenset(k for k, server in world.state.domains.items() if k in declared and server.get("js_domain") == declared[k].js_domain)


def request_of(options: PlanOptions) -> Request:
    """The planning options as planning takes them."""
    asked = {each.name: getattr(options, each.name) for each in fields(Choices)}
    return Request(now=datetime.now(UTC), **asked)


def inputs_of(world: World, request: Request) -> Inputs:
    """The desired and last applied sides, and what is to be planned; the live side is still empty."""
    entries, moved = rename(world.workspace, world.state.resources)
    pending, pending_moved = rename_pending(world.workspace, world.state.pending)
    replacements, _ = rename_pending(world.workspace, world.state.replacements)
    inputs = Inputs(
        world.workspace,
        world.topology,
        world.state,
        Live(),
        request,
        entries,
        pending_moved | moved,
        pending=pending,
        replacements=replacements,
        owner=_owner(world),
    )
    inputs.selected = select(inputs, candidates(inputs))
    return inputs


def _owner(world: World) -> str:
    """What this workspace writes into metadata; its id is made when it first does."""
    workspace, known = world.workspace, world.state.ownership.get("id")
    if known is None and not workspace.ownership_marker:
        return ""
    name = f"{workspace.name}.{workspace.environment}" if workspace.environment else workspace.name
    return f"{name}/{known or uuid.uuid4()}"


def open_pool(world: World, *, read_only: bool, sealed: bool = False) -> Pool:
    """The connections of the workspace; nothing is connected yet."""
    return Pool(world.workspace.connections, world.environ, read_only=read_only, sealed=sealed, sightings=_sightings(world))


def _sightings(world: World) -> Sightings:
    """What state knows of each object, under the address that `moved` blocks give it; always of the state as it is by now."""
    moved: tuple[State, dict[Address, Address]] | None = None

    def find(domain: str, stream: str, consumer: str | None) -> Sighting | None:
        nonlocal moved
        address = Address.of_stream(domain, stream) if consumer is None else Address(domain, "consumer", f"{stream}/{consumer}")
        entry = world.state.resources.get(address)
        if entry is None and world.workspace.moved:
            if moved is None or moved[0] is not world.state:
                moved = world.state, rename(world.workspace, world.state.resources)[1]
            entry = world.state.resources.get(moved[1].get(address, address))
        return Sighting(entry.created, entry.seen) if entry is not None and entry.seen else None

    return find


async def refresh(world: World, inputs: Inputs, pool: Pool, options: PlanOptions, observer: Observer) -> None:
    """Fill in the live side of everything selected. Raises ConnectError when a domain is away and must not be."""
    wanted = with_streams(inputs.selected | _consumers_of(inputs) | _origins_of(inputs) | stand_ins(inputs) | streams_of(inputs))
    wanted = sorted({*wanted, *(old for new, old in inputs.moved_from.items() if new in inputs.selected)})
    count = len({address.domain for address in wanted})
    observer.phase(f"Reading {len(wanted):,} object{'' if len(wanted) == 1 else 's'} in {count} domain{'' if count == 1 else 's'}")
    inputs.live = await survey(pool, world.workspace.domains, wanted, known_domains(world))
    recover(inputs)
    await name_domains(inputs, pool)
    planned = {address.domain for address in inputs.selected}
    away = [facts for facts in inputs.live.domains.values() if not facts.reachable and facts.key in planned]
    if away and options.offline == "fail":
        raise ConnectError(away[0].absence, hint="Without --offline fail its resources would be deferred.")


async def name_domains(inputs: Inputs, pool: Pool) -> None:
    """Ask which domains there are behind the connections of those that never answered: a name may be a typing error."""
    if unknown := never_answered(inputs):
        inputs.live.visible = await visible_domains(pool, {domain.connection for domain in unknown})


async def look_around(world: World, inputs: Inputs, verdicts: dict[Address, Verdict], pool: Pool) -> None:
    """Read what the changes may run into: copies that were left out of the plan, and what nobody here manages, where the server's
    counts say that there is any.
    """
    await _read_copies(world, inputs, verdicts, pool)
    await _read_origins(world, inputs, verdicts, pool)
    await read_neighbours(pool, world.workspace.domains, wanted_neighbours(inputs, verdicts), inputs.live)


async def _read_copies(world: World, inputs: Inputs, verdicts: dict[Address, Verdict], pool: Pool) -> None:
    """Copies in the workspace, not in the plan, of streams that go: asked together with those, which are known to answer."""
    unread = copies_left_out(inputs, verdicts)
    if not unread:
        return
    found = await survey(pool, world.workspace.domains, {*unread, *unread.values()}, known_domains(world))
    inputs.live.domains = found.domains | inputs.live.domains
    inputs.live.objects |= {address: live for address, live in found.objects.items() if address in unread}
    inputs.live.broken |= {address: why for address, why in found.broken.items() if address in unread}


async def _read_origins(world: World, inputs: Inputs, verdicts: dict[Address, Verdict], pool: Pool) -> None:
    """What nobody here manages and several sources of a stream lead to, level by level: the server looks for cycles there too."""
    while unread := unread_origins(inputs, verdicts):
        found = await survey(pool, world.workspace.domains, unread, known_domains(world))
        inputs.live.objects |= found.objects
        inputs.live.broken |= found.broken
        inputs.live.asked |= unread


async def measure(world: World, inputs: Inputs, verdicts: dict[Address, Verdict], pool: Pool, observer: Observer) -> None:
    """Count what the changes would make the servers delete. Reads only what planning asks about, and so much as it may."""
    asked, twice = questions(inputs, verdicts), recopies(inputs, verdicts)
    levels, limit = {key: facts.level for key, facts in inputs.live.domains.items()}, inputs.request.measure_limit
    if twice:
        inputs.copied_again = await count_copied_again(pool, world.workspace.domains, twice, levels, limit)
    if gone := leaving(inputs, verdicts):
        inputs.left_behind = await count_copied_again(pool, with_unknown(world.workspace.domains, gone), gone, levels, limit)
    await _find_places(world, inputs, verdicts, pool, levels)
    if asked:
        observer.phase(f"Measuring what {len(asked):,} change{'' if len(asked) == 1 else 's'} may delete")
        inputs.measured = await measure_all(pool, world.workspace.domains, asked, levels, limit, inputs.unread)


async def _find_places(world: World, inputs: Inputs, verdicts: dict[Address, Verdict], pool: Pool, levels: dict[str, int]) -> None:
    """Where in their streams the times are from and to which backfills go."""
    wanted = sorted(places_of(inputs) | left_out_places(inputs, verdicts))
    known = [(live, time) for address, time in wanted if (live := inputs.live.get(address)) is not None]
    if known:
        inputs.places = await places(pool, world.workspace.domains, known, levels)


def _consumers_of(inputs: Inputs) -> set[Address]:
    """Consumers that were left out while their stream was not: they go with it when it goes."""
    return {address for address in candidates(inputs) - inputs.selected if address.parent in inputs.selected}


def _origins_of(inputs: Inputs) -> set[Address]:
    """Streams that selected ones copy: inside a domain they decide something about the copy, elsewhere they should be there."""
    return set() if inputs.request.destroy else {edge.origin for edge in inputs.topology.edges if edge.copy in inputs.selected}


def with_streams(addresses: Iterable[Address]) -> list[Address]:
    """The addresses and the streams of their consumers, in order."""
    found = set(addresses)
    return sorted(found | {a.parent for a in found if a.parent is not None})


def require_known(inputs: Inputs, globs: Iterable[str], option: str) -> None:
    """Raise PlanError for a glob that names nothing, since a typing error must not pass for "nothing to do"."""
    known = candidates(inputs) | given_up(inputs)
    found = [
        Diagnostic(
            "error",
            "JS417",
            f"{option} {glob} names nothing in the files or in state",
            did_you_mean(glob, map(str, known)).strip() or "`jsplan plan` and `jsplan state list` show what there is.",
        )
        for glob in globs
        if not any(matches(glob, address) for address in known)
    ]
    if found:
        raise PlanError(found, found[0].summary)
