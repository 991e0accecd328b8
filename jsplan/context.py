"""Opens the workspace: files, state, connections. The first steps of nearly every workflow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from msgspec import Struct

from jsplan.address import Address
from jsplan.config import load
from jsplan.config.model import LoadOptions, Workspace
from jsplan.errors import StateError
from jsplan.identity import FindKnownObjects, KnownObject
from jsplan.jetstream import Pool
from jsplan.options import Observer
from jsplan.planning.model import (
    apply_moves,
)
from jsplan.state import Backend, LockInfo, State, backend_of
from jsplan.topology import Topology, build_topology


class Context(Struct):
    """The opened workspace before any request to a server.

    `state_error` says why the state could not be read, where a command works without it.
    """

    workspace: Workspace
    topology: Topology
    backend: Backend
    state: State
    environ: Mapping[str, str]
    state_error: str = ""


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
    if backend.domain and backend.bucket:
        return {Address(backend.domain, "kv", backend.bucket)}
    return set()


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
    the name may be wrong. So does one whose account is still to be created, or was deleted.
    """
    declared, connections = context.workspace.domains, context.workspace.connections
    missing = {
        name
        for address, account in context.workspace.accounts.items()
        if address not in context.state.resources
        if account.key is not None
        for name in (account.name, account.key)
    }
    return frozenset(
        k
        for k, server in context.state.domains.items()
        if k in declared
        and declared[k].connection in connections
        and server.get("js_domain") == declared[k].js_domain
        and connections[declared[k].connection].account not in missing
    )


class Session(Struct, frozen=True):
    """An opened workspace with its connections, and the observer of the progress."""

    context: Context
    pool: Pool
    observer: Observer


@asynccontextmanager
async def open_stateless_context(options: LoadOptions) -> AsyncIterator[Context]:
    """Open a context as `open_context` does; with an empty state where it cannot be read."""
    async with open_backend(options) as (workspace, backend):
        state, problem = State(workspace.name, workspace.environment), ""
        try:
            state = await backend.read()
        except StateError as error:
            problem = str(error)
        yield Context(
            workspace, build_topology(workspace), backend, state, options.environ, problem
        )


@asynccontextmanager
async def open_session(
    load_options: LoadOptions,
    observer: Observer,
    opened: Callable[[LoadOptions], AbstractAsyncContextManager[Context]] = open_context,
) -> AsyncIterator[Session]:
    """Open the workspace and connections that can only read. Raises ConfigError and StateError."""
    async with (
        opened(load_options) as context,
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


def _known_objects(context: Context) -> FindKnownObjects:
    """Return a lookup of objects in the current state, by the addresses after `moved` blocks.

    A stream that an interrupted replacement or relocation has made is known by its record.
    """
    moved: tuple[State, dict[Address, Address]] | None = None

    def find(domain: str, stream: str, consumer: str | None) -> list[KnownObject]:
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
        record = context.state.replacements.get(str(address), {})
        made = record.get("new_created") or record.get("target_created")
        return [
            KnownObject(created, seen)
            for created, seen in (
                (entry.created, entry.seen) if entry is not None else ("", ""),
                (made, record.get("made_seen")),
            )
            if created and seen
        ]

    return find
