"""state list|show|rm|mv|take|pull|push|unlock: read and correct the state.

Only a backend in a bucket needs its server.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AsyncExitStack
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from jsplan.address import Address, is_selected, matches, move_address
from jsplan.config.model import LoadOptions, Workspace
from jsplan.config.moves import rename_problem
from jsplan.context import Context, hold_lock, make_wait_reporter, open_backend, open_context
from jsplan.diagnostics import Diagnostic, quote_shell
from jsplan.documents.base import dumps, plain
from jsplan.errors import JsplanError, StateError, UsageError
from jsplan.event_loop import runs_to_end
from jsplan.history import build_state_entry
from jsplan.options import Observer
from jsplan.planning.model import rename_dependencies
from jsplan.state import Backend, LockInfo, State, backend_of
from jsplan.state.history import merge_histories
from jsplan.units import count_text

_OPERATION = "state take"


@runs_to_end
async def show(load: LoadOptions) -> dict[str, Any]:
    """Return the state document as plain data."""
    async with open_context(load) as context:
        return context.state.to_json()


def list_(load: LoadOptions, globs: tuple[str, ...]) -> list[str]:
    """List the addresses in state that match a glob; all of them without a glob."""
    addresses = map(Address.parse, show(load)["resources"])
    return [str(a) for a in addresses if is_selected(a, globs)]


@runs_to_end
async def pull(load: LoadOptions, serial: int | None = None) -> bytes:
    """Return the state as JSON with its journal applied, or an earlier serial if it is kept."""
    async with open_backend(load) as (_, backend):
        state = await backend.read() if serial is None else await backend.read_previous(serial)
        # A newer document would lose fields that this version does not know.
        state.require_writable(backend.location)
        return dumps(state.to_json())


class PushResult(Struct, frozen=True):
    """The lineage and new serial of a pushed state, and the reasons that `force` overrode."""

    lineage: str
    serial: int
    overrode: list[str]


@runs_to_end
async def push(
    load: LoadOptions,
    data: bytes,
    name: str,
    *,
    force: bool,
    lock_timeout: int,
    observer: Observer | None = None,
) -> PushResult:
    """Put a state document in place, with a serial later than both. Messages call it `name`.

    Raises StateError for a document of another workspace; without `force` also for one that is
    older or of another lineage, and if the present state cannot be read.
    """
    pushed = State.parse(
        data,
        name,
        "Nothing was written. Give a document that jsplan state pull printed.",
        "is no JSON",
    )
    async with open_backend(load) as (workspace, backend):
        moved = _environment_reasons(pushed, workspace, name)
        async with backend.lock(
            LockInfo.for_this_process("state push"),
            lock_timeout,
            make_wait_reporter(backend, observer),
        ):
            present, reasons = await _read_present(backend, force)
            reasons += [*moved, *_push_conflicts(pushed, present)]
            if reasons and not force:
                raise StateError(
                    f"{name} {'; it '.join(reasons)}. Nothing was written",
                    hint="Compare both: jsplan state pull. To put it in place anyway: --force",
                )
            pushed.environment = workspace.environment
            pushed.serial = max(pushed.serial, present.serial if present else 0)
            pushed.begin_session()
            _record_push(pushed, present)
            await backend.replace(pushed)
    return PushResult(pushed.lineage, pushed.serial, reasons)


def _record_push(pushed: State, present: State | None) -> None:
    """Continue the history here with one more entry; another lineage brings its own."""
    here = present.history if present is not None and present.lineage == pushed.lineage else []
    known = present.resources if present is not None else {}
    pushed.history = merge_histories(here, pushed.history)
    removed = [
        {"address": str(a), "actions": ["forget"]}
        for a in sorted(known.keys() - pushed.resources.keys())
    ]
    added = [
        {"address": str(a), "actions": ["no-op"]}
        for a, e in sorted(pushed.resources.items())
        if e != known.get(a)
    ]
    pushed.apply_change(build_state_entry(pushed, "state push", [*removed, *added]))


async def _read_present(backend: Backend, force: bool) -> tuple[State | None, list[str]]:
    """Read the present state; with `force` an unreadable one becomes a reason."""
    try:
        return await backend.read(), []
    except StateError as error:
        if not force:
            raise
        return None, [f"takes the place of something that cannot be read ({error})"]


def _push_conflicts(pushed: State, present: State | None) -> list[str]:
    if present is None or not present.exists:
        return []
    reasons = []
    if pushed.lineage != present.lineage:
        reasons.append(
            f"has lineage {pushed.lineage or 'none'}, and the state here has {present.lineage}"
        )
    if pushed.serial < present.serial:
        reasons.append(f"has serial {pushed.serial}, and the state here is at {present.serial}")
    return reasons


def _environment_reasons(state: State, workspace: Workspace, name: str) -> list[str]:
    """Return the reason to refuse a document of another environment, if it is of one.

    Raises StateError for one of another workspace.
    """
    theirs = state.environment or "none"
    if state.workspace != workspace.name:
        raise StateError(
            f"{name} is the state of workspace {state.workspace}, environment {theirs}",
            hint="Push it in that workspace, with its -e.",
        )
    if state.environment != workspace.environment:
        return [f"is the state of environment {theirs}"]
    return []


@runs_to_end
async def unlock(load: LoadOptions, lock_id: str) -> LockInfo | None:
    """Remove the lock with this id, and return its holder.

    None if no such lock is held. Raises StateLockedError if its process is alive.
    """
    async with open_backend(load) as (_, backend):
        return await backend.unlock(lock_id)


@runs_to_end
async def rm(
    load: LoadOptions,
    addresses: tuple[str, ...],
    lock_timeout: int,
    observer: Observer | None = None,
) -> list[str]:
    """Forget matching entries with their interrupted replacements; servers are not touched.

    Returns the forgotten addresses. Raises JsplanError for an address or glob without a match.
    """
    async with open_backend(load) as (_, backend):
        waiting = make_wait_reporter(backend, observer)
        async with backend.lock(LockInfo.for_this_process("state rm"), lock_timeout, waiting):
            try:
                state, globs, removed = await backend.read(), addresses, {}
            except StateError:
                # What it has under these very addresses may be what cannot be read.
                state, globs = await backend.read(without=addresses), ()
                removed = dict.fromkeys(addresses)
            interrupted = {Address.parse(name) for name in state.replacements}
            changes = {
                str(a): None for text in globs for a in _match_addresses(state, text, interrupted)
            }
            await _write_session(
                backend,
                state,
                [{"drop": address, "replaced": address} for address in changes],
                "state rm",
                [{"address": a, "actions": ["forget"]} for a in changes],
            )
    return [*removed, *changes]


@runs_to_end
async def mv(
    load: LoadOptions, source: str, target: str, lock_timeout: int, observer: Observer | None = None
) -> list[tuple[str, str]]:
    """Rename entries in state; servers are not touched. Both sides may be globs.

    As in `leaf/**` to `edge/**`. Returns (old, new) of each. Raises UsageError for an invalid
    address, JsplanError if an old one is not in state, a new one is, or both are different objects
    on a server.
    """
    async with (
        open_context(load) as context,
        hold_lock(context, "state mv", lock_timeout, observer),
    ):
        moves = [
            (old, _new_address(source, target, old))
            for old in _match_addresses(context.state, source)
        ]
        for old, new in moves:
            _require_movable(context, old, new)
        renamed = [
            {"address": str(new), "actions": ["no-op"], "moved_from": str(old)}
            for old, new in moves
        ]
        await _write_session(
            context.backend,
            context.state,
            _rename_changes(context, dict(moves)),
            "state mv",
            renamed,
        )
    return [(str(old), str(new)) for old, new in moves]


def _rename_changes(context: Context, moves: dict[Address, Address]) -> list[dict[str, Any]]:
    """Return the journal lines that rename entries and their dependents' references."""
    names = {str(old): str(new) for old, new in moves.items()}
    changed = {
        a: e
        for a, e in context.state.resources.items()
        if a in moves or not names.keys().isdisjoint(e.depends_on)
    }
    puts = [
        {"put": {"address": str(moves.get(a, a)), "entry": plain(rename_dependencies(e, names))}}
        for a, e in changed.items()
    ]
    return [*({"drop": old} for old in names), *puts]


def _new_address(source: str, target: str, old: Address) -> Address:
    try:
        return move_address(source, target, old)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _require_movable(context: Context, old: Address, new: Address) -> None:
    if new in context.state.resources:
        raise JsplanError(f"{new} is in state already", hint="Forget it first: jsplan state rm")
    if (refused := rename_problem(str(old), str(new))) is not None:
        raise JsplanError(refused[0], hint=refused[1])


def _match_addresses(state: State, text: str, others: Collection[Address] = ()) -> list[Address]:
    known = {*state.resources, *map(Address.parse, state.pending), *others}
    found = [a for a in sorted(known) if matches(text, a)]
    if not found:
        raise JsplanError(f"{text} is not in state", hint="See: jsplan state list")
    return found


async def _write_session(
    backend: Backend,
    state: State,
    changes: list[dict[str, Any]],
    operation: str,
    recorded: list[dict[str, Any]],
) -> None:
    await backend.start(state)
    try:
        backend.append(state, *changes, build_state_entry(state, operation, recorded))
    finally:
        await backend.finish(state)


class Taken(Struct, frozen=True):
    """The moved state: from `environment` into another one, and the number of its resources."""

    environment: str | None
    into: str | None
    lineage: str
    serial: int
    resources: int


@runs_to_end
async def take(
    load: LoadOptions,
    environment: str | None,
    lock_timeout: int,
    observer: Observer | None = None,
) -> Taken:
    """Move the state of `environment` (None: without one) into that of the loaded workspace.

    The other one is empty afterwards. No server is changed. A run that was killed is finished by
    the next one. Raises StateError where there is nothing to move, or where the state here has
    resources of its own. `lock_timeout` is ns.
    """
    async with open_backend(load) as (workspace, backend), AsyncExitStack() as stack:
        if environment == workspace.environment:
            raise StateError(
                "the state is in this environment already",
                hint="Choose the new environment with -e, and name the old one with --from.",
            )
        other = backend_of(_in_environment(workspace, environment), load.environ)
        stack.push_async_callback(other.close)
        for each in [backend] if backend.location == other.location else [other, backend]:
            info = LockInfo.for_this_process(_OPERATION)
            wait = make_wait_reporter(each, observer)
            await stack.enter_async_context(each.lock(info, lock_timeout, wait))
        return await _move(workspace, other, backend, environment)


async def find_state_to_take(context: Context) -> list[Diagnostic]:
    """Note the state without an environment, where this environment has none yet."""
    workspace = context.workspace
    if context.state.exists or workspace.environment is None:
        return []
    other = backend_of(_in_environment(workspace, None), context.environ)
    try:
        found = await other.read()
    except StateError:
        return []
    finally:
        await other.close()
    if not found.resources:
        return []
    text = (
        f"environment {workspace.environment} has no state, and {other.location}, without an "
        f"environment, has {count_text(len(found.resources), 'resource')}"
    )
    move = f"To move it here: jsplan state take -e {quote_shell(workspace.environment)}."
    return [Diagnostic("warning", "JS479", text, move)]


def _in_environment(workspace: Workspace, environment: str | None) -> Workspace:
    """Return the workspace as it was there: a state in the default place has its name there."""
    there = replace(workspace, environment=environment)
    default = workspace.root / "state" / f"{workspace.state_name}.json"
    if workspace.backend.path != default:
        return there
    path = workspace.root / "state" / f"{there.state_name}.json"
    return replace(there, backend=replace(workspace.backend, path=path))


async def _move(
    workspace: Workspace, other: Backend, backend: Backend, environment: str | None
) -> Taken:
    there = await other.read()
    shares_place = backend.location == other.location
    here = State(workspace.name, workspace.environment) if shares_place else await backend.read()
    is_finished = bool(here.resources) and here.lineage == there.lineage
    if not there.resources and not is_finished:
        raise StateError(
            f"{other.location} has no resources: there is nothing to move",
            hint="Name the environment that has them with --from; none is that without a name. "
            "From another backend: jsplan state pull there, then jsplan state push --force here.",
        )
    if here.resources and not is_finished:
        raise StateError(
            f"{backend.location} has {len(here.resources):,} resources of its own. "
            "Nothing was moved",
            hint="See what they are: jsplan state list. To replace them: jsplan state push --force",
        )
    if not is_finished:
        moved = replace(there, environment=workspace.environment, history=[*there.history])
        here = await _write(backend, moved)
    if not shares_place:
        emptied = State(there.workspace, environment, there.lineage, there.serial)
        await _write(other, emptied)
    return Taken(environment, workspace.environment, here.lineage, here.serial, len(here.resources))


async def _write(backend: Backend, state: State) -> State:
    state.begin_session()
    changes = [{"address": str(a), "actions": ["no-op"]} for a in sorted(state.resources)]
    state.apply_change(build_state_entry(state, _OPERATION, changes))
    await backend.replace(state)
    return state
