"""Move the state of a workspace from one environment into another, in the same backend."""

from __future__ import annotations

from contextlib import AsyncExitStack

from msgspec import Struct
from msgspec.structs import replace

from jsplan.config.model import LoadOptions, Workspace
from jsplan.context import Context, make_wait_reporter, open_backend
from jsplan.diagnostics import Diagnostic, quote_shell
from jsplan.errors import StateError
from jsplan.event_loop import run_until_complete
from jsplan.history.record import build_state_entry
from jsplan.options import Observer
from jsplan.state import Backend, LockInfo, State, backend_of
from jsplan.units import count_text

_OPERATION = "state take"


class Taken(Struct, frozen=True):
    """The moved state: from `environment` into another one, and the number of its resources."""

    environment: str | None
    into: str | None
    lineage: str
    serial: int
    resources: int


def take(
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
    return run_until_complete(_take(load, environment, lock_timeout, observer))


async def _take(
    load: LoadOptions, environment: str | None, lock_timeout: int, observer: Observer | None
) -> Taken:
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
        here = await _write(backend, _moved(there, workspace.environment))
    if not shares_place:
        emptied = State(there.workspace, environment, there.lineage, there.serial)
        await _write(other, emptied)
    return Taken(environment, workspace.environment, here.lineage, here.serial, len(here.resources))


def _moved(state: State, environment: str | None) -> State:
    return replace(state, environment=environment, history=list(state.history))


async def _write(backend: Backend, state: State) -> State:
    state.begin_session()
    changes = [{"address": str(a), "actions": ["no-op"]} for a in sorted(state.resources)]
    state.apply_change(build_state_entry(state, _OPERATION, changes))
    await backend.replace(state)
    return state
