"""A sandbox in the foreground, for `jsplan sandbox up`: a shape, or a hub with many leaves.

Each leaf has one link, that of the account with JetStream. With a second one for the system
account, a hundred servers exchange all that they know about themselves: measured, three times the
memory and five times the time to start.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from jsplan.errors import SandboxError
from jsplan.sandbox import shapes
from jsplan.sandbox.sandbox import Sandbox
from jsplan.sandbox.shapes import ACC, Layout, PortOf, hub_and_leaf

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


#: The ports of the NATS documentation, so that its examples work with the sandbox.
DOCUMENTED_PORTS: Mapping[shapes.Shape, Mapping[str, int]] = {
    "hub-and-leaf": {"hub": 4222, "hub.leafnodes": 7422, "leaf": 4111},
    "single": {"server": 4222},
    "cluster": {"n1": 4222, "n2": 4223, "n3": 4224},
}
#: Leaves that start at the same time.
BATCH_LEAVES = 10
#: Seconds until all of a fleet must be linked; measured: 6 for a hundred leaves on two cores.
READY_TIMEOUT = 180.0


class SandboxDescription(Struct, frozen=True):
    """Addresses and logins of a running sandbox.

    `servers` are {name, url, domain, pid, log, version}; `users` are {account, user, password};
    `workspace` is the text of a `jsplan.yaml` that reaches every domain.
    """

    shape: shapes.Shape
    folder: str
    servers: tuple[dict[str, Any], ...]
    users: tuple[dict[str, str | None], ...]
    workspace: str

    def to_json(self) -> dict[str, Any]:
        """Return the result of `jsplan sandbox up --format json`."""
        return {
            "kind": "sandbox",
            "shape": self.shape,
            "folder": self.folder,
            "servers": list(self.servers),
            "users": list(self.users),
            "workspace": self.workspace,
        }


def describe(sandbox: Sandbox) -> SandboxDescription:
    """Return the running sandbox as data.

    Raises SandboxError for a server that is not running, OSError for one that does not answer.
    """
    servers = [
        {
            "name": server.name,
            "url": server.url,
            "domain": server.node.domain,
            "pid": server.pid,
            "log": str(server.log_path),
            "version": server.info()["version"],
        }
        for server in sandbox.servers.values()
    ]
    accounts = sandbox.layout.nodes[0].accounts
    users = [
        {"account": user.account, "user": user.user, "password": user.password}
        for user in (shapes.ACC, shapes.SYS)
    ]
    return SandboxDescription(
        sandbox.layout.shape,
        str(sandbox.folder),
        tuple(servers),
        tuple(users if accounts else ()),
        shapes.render_workspace(sandbox.layout),
    )


def make_sandbox(
    shape: shapes.Shape,
    *,
    ports: Mapping[str, int] | None = None,
    folder: Path | None = None,
    leaves: tuple[str, ...] = ("leaf",),
    domain: str | None = None,
) -> Sandbox:
    """Create a sandbox that is not started.

    `leaves` is for hub-and-leaf, `domain` for the other shapes.
    """
    where: dict[str, Any] = {"ports": ports, "folder": folder}
    if shape == "hub-and-leaf":
        return Sandbox.hub_and_leaf(leaves=leaves, **where)
    if shape == "cluster":
        return Sandbox.cluster(domain=domain, **where)
    return Sandbox.single(domain=domain, **where)


def run_in_foreground(
    running: AbstractContextManager[Sandbox],
    on_ready: Callable[[SandboxDescription], None],
    *,
    stop: threading.Event | None = None,
) -> None:
    """Run a sandbox until Ctrl-C, SIGTERM or `stop`; call `on_ready` once it is ready.

    `running` starts it, and stops it at the end: a sandbox itself, or `run_fleet`. Raises
    SandboxError when it cannot start or when one of its servers ends by itself. Outside of the main
    thread only `stop` ends it, since signals arrive in the main thread.
    """
    ended = stop or threading.Event()
    with note_signals() as signals, running as sandbox:
        on_ready(describe(sandbox))
        while not (signals or ended.wait(0.2)):
            lost = [server for server in sandbox.servers.values() if not server.is_running]
            if lost:
                raise SandboxError(
                    f"nats-server {lost[0].name} has ended by itself",
                    hint=f"Its log: {lost[0].log_path}",
                )


@contextmanager
def note_signals() -> Iterator[list[int]]:
    """Let Ctrl-C and SIGTERM add their numbers to a list instead of ending the process.

    They set no event: the main thread may hold its lock while it waits for it, and would wait for
    itself. Outside of the main thread nothing is changed.
    """
    found = list[int]()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    before = {
        number: signal.signal(number, lambda got, _: found.append(got))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield found
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


def describe_access(url: str, leaves: int) -> str:
    """Describe in one line how to reach a fleet by the URL of its hub."""
    return f"{url} is the hub of {leaves} leaves; user acc, password acc."
