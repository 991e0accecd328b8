"""state list|show|rm|mv|pull: looking at and correcting what this workspace remembers. Never asks a server."""

from __future__ import annotations

from typing import Any

from jsplan.address import Address, matches
from jsplan.config.model import LoadOptions
from jsplan.documents.base import dumps
from jsplan.errors import JsplanError, UsageError
from jsplan.planning.inputs import moved_address, with_names
from jsplan.state import LockInfo
from jsplan.workflows.world import World, load_world


def show(load: LoadOptions) -> dict[str, Any]:
    """The state document as plain data."""
    return load_world(load).state.to_json()


def list_(load: LoadOptions, globs: tuple[str, ...]) -> list[str]:
    """The addresses in state that one of the globs matches; all of them without a glob."""
    addresses = sorted(load_world(load).state.resources)
    return [str(a) for a in addresses if not globs or any(matches(glob, a) for glob in globs)]


def pull(load: LoadOptions) -> bytes:
    """The state document as JSON, its journal carried out."""
    return dumps(show(load))


def rm(load: LoadOptions, addresses: tuple[str, ...], lock_timeout: int) -> list[str]:
    """Forget what the addresses or globs name; nothing on a server is touched. Returns what was forgotten.

    Raises JsplanError when one of them names nothing.
    """
    world = load_world(load)
    with world.backend.lock(LockInfo.here("state rm"), lock_timeout):
        world.state = world.backend.read()
        gone = [a for text in addresses for a in _named(world, text)]
        _record(world, [{"drop": str(address)} for address in dict.fromkeys(gone)])
    return [str(address) for address in dict.fromkeys(gone)]


def mv(load: LoadOptions, source: str, target: str, lock_timeout: int) -> list[tuple[str, str]]:
    """Rename entries; our name changes, the thing on the server does not. Both sides may be globs: `leaf/**`, `edge/**`.

    Returns (old, new) of each. Raises UsageError for something that is no address, JsplanError when an old one is
    not in state, a new one is, or both are different things on a server.
    """
    world = load_world(load)
    with world.backend.lock(LockInfo.here("state mv"), lock_timeout):
        world.state = world.backend.read()
        moves = [(old, _new_address(source, target, old)) for old in _named(world, source)]
        for old, new in moves:
            _check_move(world, old, new)
        _record(world, _renamed(world, dict(moves)))
    return [(str(old), str(new)) for old, new in moves]


def _renamed(world: World, moves: dict[Address, Address]) -> list[dict[str, Any]]:
    """The journal lines: old names go, new ones come, and what depends on them knows them by their new names."""
    names = {str(old): str(new) for old, new in moves.items()}
    changed = {a: e for a, e in world.state.resources.items() if a in moves or not names.keys().isdisjoint(e.depends_on)}
    puts = [{"put": {"address": str(moves.get(a, a)), "entry": with_names(e, names).to_json()}} for a, e in changed.items()]
    return [*({"drop": old} for old in names), *puts]


def _new_address(source: str, target: str, old: Address) -> Address:
    try:
        return moved_address(source, target, old)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _check_move(world: World, old: Address, new: Address) -> None:
    if new in world.state.resources:
        raise JsplanError(f"{new} is in state already", hint="Forget it first: jsplan state rm")
    if (old.kind, old.name) != (new.kind, new.name):
        raise JsplanError(f"{old} and {new} are different things on a server: only the domain can change", hint="See lifecycle.on_replace.")


def _named(world: World, text: str) -> list[Address]:
    known = {*world.state.resources, *map(Address.parse, world.state.pending)}
    found = [a for a in sorted(known) if matches(text, a)]
    if not found:
        raise JsplanError(f"{text} is not in state", hint="See: jsplan state list")
    return found


def _record(world: World, changes: list[dict[str, Any]]) -> None:
    world.backend.start(world.state)
    try:
        world.backend.append(world.state, *changes)
    finally:
        world.backend.finish(world.state)
