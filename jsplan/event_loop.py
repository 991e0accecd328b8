"""Runs the event loop of a workflow, and lets a signal stop it. The only place that does."""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager, suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

Args = ParamSpec("Args")
Result = TypeVar("Result")


def run_until_complete(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a workflow to its end and return its result.

    The result does not go through the task: when asyncio restores the signal handler it makes the
    `repr` of the task with its result. That takes 0.3 s for a plan of 20,000 resources.
    """
    box: list[Result] = []

    async def main() -> None:
        box.append(await work)

    asyncio.run(main())
    return box[0]


def runs_to_end(
    workflow: Callable[Args, Coroutine[Any, Any, Result]],
) -> Callable[Args, Result]:
    """Make an asynchronous workflow a function that returns its result."""

    @wraps(workflow)
    def run(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        return run_until_complete(workflow(*args, **kwargs))

    return run


@asynccontextmanager
async def stop_on_signal(stop: asyncio.Event, on_stop: Callable[[], object]) -> AsyncIterator[None]:
    """Set the event on the first Ctrl-C, SIGTERM or SIGHUP; the second one raises as usual.

    `on_stop` is called at once, before what runs has ended.
    """
    loop = asyncio.get_running_loop()
    undo: list[Callable[[], object]] = []

    def on_signal() -> None:
        stop.set()
        for restore in undo:
            restore()
        undo.clear()
        on_stop()

    hangup = getattr(signal, "SIGHUP", None)
    ignored = hangup is None or signal.getsignal(hangup) is signal.SIG_IGN  # nohup
    for number in (signal.SIGINT, signal.SIGTERM, *(() if ignored else (hangup,))):
        # Not in the main thread, or the platform has no such signal.
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, on_signal)
            undo.append(partial(loop.remove_signal_handler, number))
    try:
        yield
    finally:
        for restore in undo:
            restore()
