"""A light hub with many leaves, for tests and benchmarks of fleets.

Each leaf has one link, that of the account with JetStream. With a second one for the system
account, a hundred servers exchange all that they know about themselves: measured, three times the
memory and five times the time to start.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

from msgspec.structs import replace

from jsplan.sandbox.foreground import set_on_signals
from jsplan.sandbox.sandbox import Sandbox
from jsplan.sandbox.shapes import ACC, Layout, PortOf, hub_and_leaf

if TYPE_CHECKING:
    from pathlib import Path

#: Leaves that start at the same time.
BATCH_LEAVES = 10
#: Seconds until all of a fleet must be linked; measured: 6 for a hundred leaves on two cores.
READY_TIMEOUT = 180.0


def leaf_names(count: int) -> tuple[str, ...]:
    """Return `store-001` and so on."""
    return tuple(f"store-{number:03}" for number in range(1, count + 1))


def build_fleet_layout(port_of: PortOf, leaves: tuple[str, ...]) -> Layout:
    """Return a hub and its leaves, linked only for the account ACC."""
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
    """Run a fleet and yield it once it is linked; raise SandboxError."""
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
    """Describe in one line how to reach a fleet."""
    return f"{sandbox['hub'].url} is the hub of {count} leaves; user acc, password acc."


def run_until_stopped(
    count: int, on_ready: Callable[[Sandbox], object], *, stop: Event | None = None
) -> None:
    """Run a fleet until Ctrl-C, SIGTERM or `stop`; report it through `on_ready`."""
    ended = stop or Event()
    with set_on_signals(ended), run_fleet(leaf_names(count)) as sandbox:
        on_ready(sandbox)
        while not ended.wait(0.2):
            pass


def main(count: int, say: Callable[[str], object]) -> None:
    """Run a fleet until Ctrl-C: `python -m jsplan.sandbox.fleet 20`."""
    run_until_stopped(
        count, lambda sandbox: say(f"{describe_access(sandbox, count)} Ctrl-C ends it.\n")
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, partial(print, end="", flush=True))
