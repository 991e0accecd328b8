"""state list|show|rm|mv|pull|push|unlock: looking at and correcting what this workspace remembers. Never asks about a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jsplan.address import Address, matches, move_address
from jsplan.config.model import LoadOptions, Workspace
from jsplan.config.moves import rename_problem
from jsplan.context import Context, hold_lock, make_wait_reporter, open_backend, open_context
from jsplan.documents.base import dumps
from jsplan.errors import JsplanError, StateError, UsageError
from jsplan.event_loop import run_until_complete
from jsplan.options import Observer
from jsplan.planning.model import rename_dependencies
from jsplan.state import Backend, LockInfo, State
from jsplan.state.history import merge_histories
from jsplan.workflows.history_writer import build_state_entry


def show(load: LoadOptions) -> dict[str, Any]:
    """The state document as plain data."""
    return run_until_complete(_show(load))


async def _show(load: LoadOptions) -> dict[str, Any]:
    async with open_context(load) as world:
        return world.state.to_json()


def list_(load: LoadOptions, globs: tuple[str, ...]) -> list[str]:
    """The addresses in state that one of the globs matches; all of them without a glob."""
    addresses = map(Address.parse, show(load)["resources"])
    return [str(a) for a in addresses if not globs or any(matches(glob, a) for glob in globs)]


def pull(load: LoadOptions, serial: int | None = None) -> bytes:
    """The state document as JSON, its journal carried out; or the document of a serial before, if it is still kept."""
    return run_until_complete(_pull(load, serial))


async def _pull(load: LoadOptions, serial: int | None) -> bytes:
    async with open_backend(load) as (_, backend):
        state = await backend.read() if serial is None else await backend.read_previous(serial)
        state.require_writable(
            backend.location
        )  # it is printed to be kept, and what is unknown here would be missing
        return dumps(state.to_json())


@dataclass(frozen=True, slots=True)
class PushResult:
    """What `push` did: the state's lineage and new serial, and what it overrode because it was told to."""

    lineage: str
    serial: int
    overrode: list[str]


def push(
    load: LoadOptions,
    data: bytes,
    name: str,
    *,
    force: bool,
    lock_timeout: int,
    observer: Observer | None = None,
) -> PushResult:
    """Put a state document in place; it gets a serial of its own, later than both. `name` is what it is called in messages.

    Raises StateError for a document of another workspace; and, without `force`, for one that is older than what is
    there or of another lineage, and where what is there cannot be read.
    """
    pushed = State.parse(
        data,
        name,
        "Nothing was written. Give a document that jsplan state pull printed.",
        "is no JSON",
    )
    return run_until_complete(_push(load, pushed, name, force, lock_timeout, observer))


async def _push(
    load: LoadOptions,
    pushed: State,
    name: str,
    force: bool,
    lock_timeout: int,
    observer: Observer | None = None,
) -> PushResult:
    async with open_backend(load) as (workspace, backend):
        _require_same_workspace(pushed, workspace, name)
        async with backend.lock(
            LockInfo.for_this_process("state push"),
            lock_timeout,
            make_wait_reporter(backend, observer),
        ):
            present, reasons = await _read_present(backend, force)
            reasons += _push_conflicts(pushed, present)
            if reasons and not force:
                raise StateError(
                    f"{name} {'; it '.join(reasons)}. Nothing was written",
                    hint="Look at both: jsplan state pull. To put it in place all the same: --force",
                )
            pushed.serial = max(pushed.serial, present.serial if present else 0)
            pushed.begin_session()
            _record_push(pushed, present)
            await backend.replace(pushed)
    return PushResult(pushed.lineage, pushed.serial, reasons)


def _record_push(pushed: State, present: State | None) -> None:
    """The history of this place goes on, with one more entry; another lineage brings its own."""
    here = present.history if present is not None and present.lineage == pushed.lineage else []
    known = present.resources if present is not None else {}
    pushed.history = merge_histories(here, pushed.history)
    gone = [
        {"address": str(a), "actions": ["forget"]}
        for a in sorted(known.keys() - pushed.resources.keys())
    ]
    come = [
        {"address": str(a), "actions": ["no-op"]}
        for a, e in sorted(pushed.resources.items())
        if e != known.get(a)
    ]
    pushed.apply_change(build_state_entry(pushed, "state push", [*gone, *come]))


async def _read_present(backend: Backend, force: bool) -> tuple[State | None, list[str]]:
    """What is there; with `force` it may be unreadable, which is a reason against overwriting it."""
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


def _require_same_workspace(state: State, workspace: Workspace, name: str) -> None:
    if (state.workspace, state.environment) != (workspace.name, workspace.environment):
        raise StateError(
            f"{name} is the state of workspace {state.workspace}, environment {state.environment or 'none'}",
            hint="Push it in that workspace, with its -e.",
        )


def unlock(load: LoadOptions, lock_id: str) -> LockInfo:
    """Take away the lock with this id, and say whose it was.

    Raises StateError where there is no such one, StateLockedError where it is a living process's and cannot be taken away.
    """
    return run_until_complete(_unlock(load, lock_id))


async def _unlock(load: LoadOptions, lock_id: str) -> LockInfo:
    async with open_backend(load) as (_, backend):
        return await backend.unlock(lock_id)


def rm(
    load: LoadOptions,
    addresses: tuple[str, ...],
    lock_timeout: int,
    observer: Observer | None = None,
) -> list[str]:
    """Forget what the addresses or globs name, and replacements of it that were interrupted; nothing on a server is touched.

    Returns what was forgotten.

    Raises JsplanError when one of them names nothing.
    """
    return run_until_complete(_rm(load, addresses, lock_timeout, observer))


async def _rm(
    load: LoadOptions,
    addresses: tuple[str, ...],
    lock_timeout: int,
    observer: Observer | None = None,
) -> list[str]:
    async with open_context(load) as world, hold_lock(world, "state rm", lock_timeout, observer):
        gone = dict.fromkeys(str(a) for text in addresses for a in _match_addresses(world, text))
        await _write_session(
            world,
            [{"drop": address, "replaced": address} for address in gone],
            "state rm",
            [{"address": a, "actions": ["forget"]} for a in gone],
        )
    return list(gone)


def mv(
    load: LoadOptions, source: str, target: str, lock_timeout: int, observer: Observer | None = None
) -> list[tuple[str, str]]:
    """Rename entries; our name changes, the thing on the server does not. Both sides may be globs: `leaf/**`, `edge/**`.

    Returns (old, new) of each. Raises UsageError for something that is no address, JsplanError when an old one is
    not in state, a new one is, or both are different things on a server.
    """
    return run_until_complete(_mv(load, source, target, lock_timeout, observer))


async def _mv(
    load: LoadOptions, source: str, target: str, lock_timeout: int, observer: Observer | None = None
) -> list[tuple[str, str]]:
    async with open_context(load) as world, hold_lock(world, "state mv", lock_timeout, observer):
        moves = [
            (old, _new_address(source, target, old)) for old in _match_addresses(world, source)
        ]
        for old, new in moves:
            _require_movable(world, old, new)
        renamed = [
            {"address": str(new), "actions": ["no-op"], "moved_from": str(old)}
            for old, new in moves
        ]
        await _write_session(world, _rename_changes(world, dict(moves)), "state mv", renamed)
    return [(str(old), str(new)) for old, new in moves]


def _rename_changes(world: Context, moves: dict[Address, Address]) -> list[dict[str, Any]]:
    """The journal lines: old names go, new ones come, and what depends on them knows them by their new names."""
    names = {str(old): str(new) for old, new in moves.items()}
    changed = {
        a: e
        for a, e in world.state.resources.items()
        if a in moves or not names.keys().isdisjoint(e.depends_on)
    }
    puts = [
        {"put": {"address": str(moves.get(a, a)), "entry": rename_dependencies(e, names).to_json()}}
        for a, e in changed.items()
    ]
    return [*({"drop": old} for old in names), *puts]


def _new_address(source: str, target: str, old: Address) -> Address:
    try:
        return move_address(source, target, old)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _require_movable(world: Context, old: Address, new: Address) -> None:
    if new in world.state.resources:
        raise JsplanError(f"{new} is in state already", hint="Forget it first: jsplan state rm")
    if (refused := rename_problem(str(old), str(new))) is not None:
        raise JsplanError(refused[0], hint=refused[1])


def _match_addresses(world: Context, text: str) -> list[Address]:
    known = {*world.state.resources, *map(Address.parse, world.state.pending)}
    found = [a for a in sorted(known) if matches(text, a)]
    if not found:
        raise JsplanError(f"{text} is not in state", hint="See: jsplan state list")
    return found


async def _write_session(
    world: Context, changes: list[dict[str, Any]], operation: str, recorded: list[dict[str, Any]]
) -> None:
    await world.backend.start(world.state)
    try:
        world.backend.append(
            world.state, *changes, build_state_entry(world.state, operation, recorded)
        )
    finally:
        await world.backend.finish(world.state)
