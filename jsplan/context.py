"""Opens the workspace: files, state, connections. The first steps of nearly every workflow."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from jsplan.address import CONTENT_PARENTS, Address, matches, matches_any, names_content
from jsplan.config import load
from jsplan.config.model import LoadOptions, Workspace
from jsplan.diagnostics import Diagnostic, did_you_mean
from jsplan.errors import PlanError
from jsplan.facts.live import Live
from jsplan.jetstream import Pool
from jsplan.jetstream.identity import FindKnownObject, KnownObject
from jsplan.options import Observer
from jsplan.planning.build import candidate_addresses
from jsplan.planning.forgotten_entries import find_forgotten
from jsplan.planning.model import (
    InterruptedWork,
    PlanInputs,
    apply_moves,
    apply_moves_to_records,
    select_addresses,
)
from jsplan.planning.options import PlanningOptions
from jsplan.planning.relocation.contents import move_entries
from jsplan.planning.relocation.entries import find_relocations, select_together
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


def build_inputs(context: Context, options: PlanningOptions = PlanningOptions()) -> PlanInputs:  # noqa: B008 - it is immutable
    """Build the inputs of planning with an empty live side."""
    resources = {a: e for a, e in context.state.resources.items() if not a.is_content}
    steps = {text: step for text, step in context.state.pending.items() if not _is_entry(text)}
    entries, moved = apply_moves(context.workspace, resources)
    pending, pending_moved = apply_moves_to_records(context.workspace, steps)
    replacements, _ = apply_moves_to_records(context.workspace, context.state.replacements)
    inputs = PlanInputs(
        context.workspace,
        context.topology,
        context.state,
        Live(),
        options,
        entries,
        pending_moved | moved,
        interrupted=InterruptedWork(steps=pending, replacements=replacements),
        owner_tag=_owner_tag(context),
    )
    inputs = replace(inputs, relocations=find_relocations(inputs))
    candidates = candidate_addresses(inputs)
    selected = select_addresses(inputs, candidates)
    return replace(inputs, selected=select_together(inputs, selected, candidates))


def build_entry_inputs(context: Context, options: PlanningOptions) -> PlanInputs:
    """Build the inputs that hold the entries of buckets, objects and schedules, nothing else.

    An import takes those that it names.
    """
    workspace = replace(context.workspace, resources=context.workspace.contents)
    resources = {a: e for a, e in context.state.resources.items() if a.is_content}
    steps = {text: step for text, step in context.state.pending.items() if _is_entry(text)}
    entries, moved = apply_moves(workspace, resources)
    if context.workspace.relocate or context.state.replacements:
        buckets = build_inputs(context, options)
        entries, relocated = move_entries(
            context.workspace, buckets.relocations, buckets.entries, entries
        )
        moved |= {new: moved.get(old, old) for new, old in relocated.items()}
    pending, pending_moved = apply_moves_to_records(workspace, steps)
    topology = Topology(
        context.topology.routes,
        bodies={address: dict(found.body) for address, found in workspace.resources.items()},
        dependencies={
            address: {context.topology.find_declared(address.parent)}
            for address in workspace.resources
            if address.parent is not None
        },
    )
    inputs = PlanInputs(
        workspace,
        topology,
        context.state,
        Live(),
        replace(options, replace=()),
        entries,
        pending_moved | moved,
        interrupted=InterruptedWork(steps=pending),
    )
    chosen = candidate_addresses(inputs)
    if options.imports:
        named = [glob for glob in options.imports if names_content(glob)]
        chosen = frozenset(address for address in chosen if matches_any(named, address))
    return replace(inputs, selected=select_addresses(inputs, chosen))


def select_buckets(inputs: PlanInputs, entries: PlanInputs) -> PlanInputs:
    """Select the buckets of targeted entries too: these depend on them."""
    options = inputs.options
    if not options.targets or options.destroy or options.imports:
        return inputs
    after = entries.topology.dependencies
    wanted = {bucket for a in entries.selected for bucket in after.get(a, ())}
    known = wanted & candidate_addresses(inputs)
    known = {a for a in known if not matches_any(options.excludes, a)}
    candidates = candidate_addresses(inputs)
    return replace(inputs, selected=select_together(inputs, inputs.selected | known, candidates))


def _is_entry(address: str) -> bool:
    return address.split("/", 2)[1] in CONTENT_PARENTS


def _owner_tag(context: Context) -> str:
    """Return the owner tag of this workspace. Its id is made at the first use."""
    workspace, known = context.workspace, context.state.ownership.get("id")
    if known is None and not workspace.ownership_marker:
        return ""
    name = f"{workspace.name}.{workspace.environment}" if workspace.environment else workspace.name
    return f"{name}/{known or uuid.uuid4()}"


@dataclass(frozen=True, slots=True)
class Session:
    """An opened workspace with its connections, and the observer of the progress."""

    context: Context
    pool: Pool
    observer: Observer


@asynccontextmanager
async def open_session(load_options: LoadOptions, observer: Observer) -> AsyncIterator[Session]:
    """Open the workspace and connections that can only read. Raises ConfigError and StateError."""
    async with (
        open_context(load_options) as context,
        open_pool(context, read_only=True, guarded=True) as pool,
    ):
        yield Session(context, pool, observer)


@asynccontextmanager
async def hold_session(
    context: Context, operation: str, lock_timeout: int, observer: Observer
) -> AsyncIterator[Session]:
    """Hold the state's lock and connections that can write; `lock_timeout` is ns.

    Raises StateLockedError and StateError.
    """
    async with (
        hold_lock(context, operation, lock_timeout, observer),
        open_pool(context, read_only=False) as pool,
    ):
        yield Session(context, pool, observer)


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


def require_matching(
    inputs: PlanInputs, globs: Iterable[str], option: str, more: Iterable[Address] = ()
) -> None:
    """Raise PlanError for a glob that matches nothing, such as a misspelt one.

    `more` are addresses beside those of the inputs.
    """
    known = candidate_addresses(inputs) | find_forgotten(inputs) | {*more}
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
