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
from jsplan.context import Context
from jsplan.drift.advisory_listener import AdvisoryListener
from jsplan.drift.alerts import DescribeChange, format_fields
from jsplan.errors import ExitCode
from jsplan.event_loop import run_until_complete
from jsplan.options import Observer, WatchOptions
from jsplan.state import State, backend_of
from jsplan.topology import build_topology
from jsplan.workflows.drift_checker import DriftChecker
from jsplan.workflows.drift_outputs import DriftOutputs, Views, build_sinks

if TYPE_CHECKING:
    from jsplan.drift.metrics import Metrics

#: Seconds that the first check waits for the ears.
LISTEN_TIMEOUT: Final = 5.0


def watch(
    load: LoadOptions,
    options: WatchOptions,
    views: Views,
    observer: Observer,
    describe: DescribeChange = format_fields,
) -> ExitCode:
    """Run the job until SIGTERM (then 0) or Ctrl-C (then 130). Sends nothing that could change a server, but notices to its sinks.

    Raises ConfigError and ConnectError for what waiting does not mend, and JsplanError when the endpoint's address cannot be had.
    """
    return run_until_complete(_watch(load, options, views, observer, describe))


async def _watch(
    load: LoadOptions,
    options: WatchOptions,
    views: Views,
    observer: Observer,
    describe: DescribeChange,
) -> ExitCode:
    stop, ended = asyncio.Event(), list[int]()
    world = _open_context(load)
    try:
        outlets = DriftOutputs(
            build_sinks(world), options, world.workspace.state_name, views, observer
        )
        with _handle_signals(stop, ended):
            async with outlets.open():
                metrics = outlets.metrics
                hearing = AdvisoryListener(
                    world.workspace,
                    world.environ,
                    _make_connection_reporter(metrics, observer),
                    metrics.count_advisory if metrics else _ignore_count,
                )
                renew = _make_reload(load, world.workspace.config_hash)
                watcher = DriftChecker(
                    world,
                    options,
                    outlets,
                    hearing,
                    describe,
                    renew,
                    partial(_report_start, observer, world),
                )
                try:
                    await hearing.wait_connected(LISTEN_TIMEOUT)
                    await watcher.run(stop)
                finally:
                    world = watcher.context
                    await hearing.close()
    finally:
        await world.backend.close()
    return ExitCode.INTERRUPTED if signal.SIGINT in ended else ExitCode.OK


def _open_context(load: LoadOptions) -> Context:
    """The world without its state, which each check reads."""
    workspace = load_workspace(load)
    backend = backend_of(workspace, load.environ)
    return Context(
        workspace,
        build_topology(workspace),
        backend,
        State(workspace.name, workspace.environment),
        load.environ,
    )


def _make_reload(load: LoadOptions, first: str) -> Callable[[], Context | None]:
    """Reads the files again; a world comes of it only where they say something else."""
    known = [first]

    def renew() -> Context | None:
        workspace = load_workspace(load)
        if workspace.config_hash == known[0]:
            return None
        known[0] = workspace.config_hash
        return _open_context(load)

    return renew


def _make_connection_reporter(
    metrics: Metrics | None, observer: Observer
) -> Callable[[str, bool, str], None]:
    """Says once of each connection that it is not heard, and once that it is again."""
    silent: set[str] = set()

    def told(connection: str, up: bool, reason: str) -> None:
        if metrics is not None:
            metrics.set_listening(connection, up=up)
        if not up and connection not in silent:
            silent.add(connection)
            observer.warn(
                f"connection {connection}: advisories are not received; changes are found by schedule only: {reason}"
            )
        elif up and connection in silent:
            silent.discard(connection)
            observer.warn(f"connection {connection}: advisories are received again")

    return told


def _report_start(observer: Observer, world: Context) -> None:
    count = len(world.workspace.domains)
    observer.phase(f"Watching {count} domain{'' if count == 1 else 's'}")


def _ignore_count() -> None:
    """Without metrics nothing is counted."""


@contextmanager
def _handle_signals(stop: asyncio.Event, ended: list[int]) -> Iterator[None]:
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
