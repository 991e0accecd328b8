"""Builds the drift job, runs it until a signal, and closes it."""

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
from jsplan.drift.service.advisories import AdvisoryListener
from jsplan.drift.service.alerts import DescribeChange
from jsplan.drift.service.checker import DriftChecker
from jsplan.drift.service.options import WatchOptions
from jsplan.drift.service.outputs import DriftOutputs, Views, build_sinks
from jsplan.errors import ExitCode
from jsplan.options import Observer
from jsplan.state import State, backend_of
from jsplan.topology import build_topology
from jsplan.units import count_text

if TYPE_CHECKING:
    from jsplan.drift.service.metrics import Metrics

#: Seconds that the first check waits for the advisory listener.
LISTEN_TIMEOUT: Final = 5.0


async def run_service(
    load: LoadOptions,
    options: WatchOptions,
    views: Views,
    observer: Observer,
    describe: DescribeChange,
) -> ExitCode:
    """Run the job until a signal: open the outputs, listen, check, and close everything."""
    stop, received = asyncio.Event(), list[int]()
    context = _open_context(load)
    try:
        outputs = DriftOutputs(
            build_sinks(context), options, context.workspace.state_name, views, observer
        )
        with _handle_signals(stop, received):
            async with outputs.open():
                metrics = outputs.metrics
                listener = AdvisoryListener(
                    context.workspace,
                    context.environ,
                    _make_connection_reporter(metrics, observer),
                    metrics.count_advisory if metrics else _ignore_count,
                )
                reload_context = _make_reload(load, context.workspace.config_hash)
                checker = DriftChecker(
                    context,
                    options,
                    outputs,
                    listener,
                    describe,
                    reload_context,
                    partial(_report_start, observer, context),
                )
                try:
                    await listener.wait_connected(LISTEN_TIMEOUT)
                    await checker.run(stop)
                finally:
                    context = checker.context
                    await listener.close()
    finally:
        await context.backend.close()
    return ExitCode.INTERRUPTED if signal.SIGINT in received else ExitCode.OK


def _open_context(load: LoadOptions) -> Context:
    """Open the context with an empty state, which each check reads."""
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
    """Return a function that reads the files again, and returns a context if they changed."""
    known = [first]

    def reload_context() -> Context | None:
        workspace = load_workspace(load)
        if workspace.config_hash == known[0]:
            return None
        known[0] = workspace.config_hash
        return _open_context(load)

    return reload_context


def _make_connection_reporter(
    metrics: Metrics | None, observer: Observer
) -> Callable[[str, bool, str], None]:
    """Return a reporter that warns once per connection when it is down, and when it is back."""
    silent: set[str] = set()

    def report(connection: str, up: bool, reason: str) -> None:
        if metrics is not None:
            metrics.set_listening(connection, up=up)
        if not up and connection not in silent:
            silent.add(connection)
            observer.warn(
                f"connection {connection}: advisories are not received;"
                f" changes are found by schedule only: {reason}"
            )
        elif up and connection in silent:
            silent.discard(connection)
            observer.warn(f"connection {connection}: advisories are received again")

    return report


def _report_start(observer: Observer, context: Context) -> None:
    count = len(context.workspace.domains)
    observer.phase(f"Watching {count_text(count, 'domain')}")


def _ignore_count() -> None:
    """Count nothing, without metrics."""


@contextmanager
def _handle_signals(stop: asyncio.Event, received: list[int]) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def end(number: int) -> None:
        received.append(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
