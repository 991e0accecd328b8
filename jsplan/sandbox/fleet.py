"""A hub with many leaves, as light as they can be: for tests and benchmarks of fleets. Single servers are left to `servers`.

Each leaf has one link, that of the account with JetStream. With a second one for the system account a hundred servers
tell each other all that they know about themselves: measured, three times the memory and five times the time to start.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

from jsplan.sandbox.foreground import set_on_signals
from jsplan.sandbox.sandbox import Sandbox
from jsplan.sandbox.shapes import ACC, Layout, PortOf, hub_and_leaf

if TYPE_CHECKING:
    from pathlib import Path

#: Leaves that start at the same time.
BATCH_LEAVES = 10
#: Seconds that a fleet may take until all of it is linked; measured: 6 for a hundred leaves on two cores.
READY_TIMEOUT = 180.0


def leaf_names(count: int) -> tuple[str, ...]:
    """`store-001` and on."""
    return tuple(f"store-{number:03}" for number in range(1, count + 1))


def build_fleet_layout(port_of: PortOf, leaves: tuple[str, ...]) -> Layout:
    """A hub and its leaves, linked for the account ACC alone."""
    whole = hub_and_leaf(port_of, leaves=leaves)
    return replace(
        whole,
        nodes=tuple(
            replace(node, remotes=(ACC,)) if node.hub is not None else node for node in whole.nodes
        ),
    )


@contextmanager
def run_fleet(
    leaves: tuple[str, ...], *, binary: Path | None = None, folder: Path | None = None
) -> Iterator[Sandbox]:
    """The fleet, running and linked; raises SandboxError."""
    sandbox = Sandbox(lambda ports: build_fleet_layout(ports, leaves), binary=binary, folder=folder)
    try:
        sandbox["hub"].start()
        for first in range(0, len(leaves), BATCH_LEAVES):
            some = [sandbox[name] for name in leaves[first : first + BATCH_LEAVES]]
            for leaf in some:
                leaf.launch()
            for leaf in some:
                leaf.wait_accepting()
        sandbox.wait_ready(READY_TIMEOUT)
        yield sandbox
    finally:
        sandbox.close()


def describe_access(sandbox: Sandbox, count: int) -> str:
    """How to reach a fleet, in one line."""
    return f"{sandbox['hub'].url} is the hub of {count} leaves; user acc, password acc."


def run_until_stopped(
    count: int, on_ready: Callable[[Sandbox], object], *, stop: Event | None = None
) -> None:
    """Start a fleet, report it through `on_ready`, keep it until Ctrl-C, SIGTERM or `stop`, then stop all of it."""
    ended = stop or Event()
    with set_on_signals(ended), run_fleet(leaf_names(count)) as sandbox:
        on_ready(sandbox)
        while not ended.wait(0.2):
            pass


def main(count: int, say: Callable[[str], object]) -> None:
    """Keep a fleet until Ctrl-C: what `python -m jsplan.sandbox.fleet 20` does."""
    run_until_stopped(
        count, lambda sandbox: say(f"{describe_access(sandbox, count)} Ctrl-C ends it.\n")
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, partial(print, end="", flush=True))
