"""drift watch: put the scheduled job together, let it run until it is told to end, and take it apart again."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from jsplan.config import load as load_workspace
from jsplan.config.model import LoadOptions
from jsplan.drift.hearing import Hearing
from jsplan.drift.situations import Describe, plainly
from jsplan.errors import ExitCode
from jsplan.state import State, backend_of
from jsplan.topology import resolve
from jsplan.workflows.drift_outlets import Outlets, Views, sinks_of
from jsplan.workflows.drift_watcher import Watcher
from jsplan.workflows.options import Observer, WatchOptions
from jsplan.workflows.running import run
from jsplan.workflows.world import World

if TYPE_CHECKING:
    from jsplan.drift.metrics import Metrics

#: Seconds that the first check waits for the ears.
FIRST: Final = 5.0


def watch(load: LoadOptions, options: WatchOptions, views: Views, observer: Observer, describe: Describe = plainly) -> ExitCode:
    """Run the job until SIGTERM (then 0) or Ctrl-C (then 130). Sends nothing that could change a server, but notices to its sinks.

    Raises ConfigError and ConnectError for what waiting does not mend, and JsplanError when the endpoint's address cannot be had.
    """
    return run(_watch(load, options, views, observer, describe))


async def _watch(load: LoadOptions, options: WatchOptions, views: Views, observer: Observer, describe: Describe) -> ExitCode:
    stop, ended = asyncio.Event(), list[int]()
    world = _open(load)
    try:
        outlets = Outlets(sinks_of(world), options, world.workspace.state_name, views, observer)
        with _signals(stop, ended):
            async with outlets.open():
                metrics = outlets.metrics
                hearing = Hearing(world.workspace, world.environ, _ears(metrics, observer), metrics.heard if metrics else _nothing)
                renew = _renewer(load, world.workspace.config_hash)
                watcher = Watcher(world, options, outlets, hearing, describe, renew, partial(_begun, observer, world))
                try:
                    await hearing.listening(FIRST)
                    await watcher.run(stop)
                finally:
                    world = watcher.world
                    await hearing.close()
    finally:
        await world.backend.close()
    return ExitCode.INTERRUPTED if signal.SIGINT in ended else ExitCode.OK


def _open(load: LoadOptions) -> World:
    """The world without its state, which each check reads."""
    workspace = load_workspace(load)
    backend = backend_of(workspace, load.environ)
    return World(workspace, resolve(workspace), backend, State(workspace.name, workspace.environment), load.environ)


def _renewer(load: LoadOptions, first: str) -> Callable[[], World | None]:
    """Reads the files again; a world comes of it only where they say something else."""
    known = [first]

    def renew() -> World | None:
        workspace = load_workspace(load)
        if workspace.config_hash == known[0]:
            return None
        known[0] = workspace.config_hash
        return _open(load)

    return renew


def _ears(metrics: Metrics | None, observer: Observer) -> Callable[[str, bool, str], None]:
    """Says once of each connection that it is not heard, and once that it is again."""
    silent: set[str] = set()

    def told(connection: str, up: bool, reason: str) -> None:
        if metrics is not None:
            metrics.listening(connection, up=up)
        if not up and connection not in silent:
            silent.add(connection)
            observer.warn(f"connection {connection}: advisories are not received; changes are found by schedule only: {reason}")
        elif up and connection in silent:
            silent.discard(connection)
            observer.warn(f"connection {connection}: advisories are received again")

    return told


def _begun(observer: Observer, world: World) -> None:
    count = len(world.workspace.domains)
    observer.phase(f"Watching {count} domain{'' if count == 1 else 's'}")


def _nothing() -> None:
    """Without metrics nothing is counted."""


@contextmanager
def _signals(stop: asyncio.Event, ended: list[int]) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def end(number: int) -> None:
        ended.append(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
