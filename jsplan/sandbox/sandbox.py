"""Embedded servers that belong together, from the first start to the last stop; their text is left to `shapes`."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from jsplan.errors import SandboxError
from jsplan.sandbox import shapes
from jsplan.sandbox.binary import find
from jsplan.sandbox.guardian import guardian
from jsplan.sandbox.ports import Ports
from jsplan.sandbox.servers import START_TIMEOUT, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType


class Sandbox:
    """Embedded nats-servers of one shape; `sandbox["hub"]` is a `Server`. Use it in a `with`, also inside async code.

    Make one with `hub_and_leaf`, `single` or `cluster`. `ports` asks for ports by listener (`hub`, `hub.leafnodes`,
    `leaf`, `server`, `n1`, `n1.routes`); the others are free ones. `folder` keeps the data; without it a temporary
    folder is used and removed. All methods raise SandboxError; nothing is left running, also after kill -9.
    """

    def __init__(
        self,
        make_layout: Callable[[shapes.PortOf], shapes.Layout],
        *,
        binary: Path | None = None,
        folder: Path | None = None,
        ports: Mapping[str, int] | None = None,
    ) -> None:
        self.binary = binary or find()
        self._ports = Ports(ports)
        try:
            self.layout = make_layout(self._ports)
        except SandboxError:
            self._ports.release()
            raise
        self._temporary = folder is None
        self.folder = _temporary_folder() if folder is None else folder.absolute()
        self.servers = {node.name: Server(node, self.binary, self.folder) for node in self.layout.nodes}

    @classmethod
    def single(
        cls,
        *,
        domain: str | None = None,
        accounts: bool = False,
        jetstream: bool = True,
        strict: bool | None = None,
        extra: str = "",
        **where: Any,
    ) -> Self:
        """One server, `server`; see `shapes.single`. `where`: binary, folder, ports."""
        options: dict[str, Any] = {"domain": domain, "accounts": accounts, "jetstream": jetstream, "strict": strict, "extra": extra}
        return cls(lambda ports: shapes.single(ports, **options), **where)

    @classmethod
    def hub_and_leaf(
        cls, *, leaves: tuple[str, ...] = ("leaf",), strict: bool | None = None, extra: Mapping[str, str] | None = None, **where: Any
    ) -> Self:
        """A hub and its leaves; see `shapes.hub_and_leaf`. `where`: binary, folder, ports."""
        return cls(lambda ports: shapes.hub_and_leaf(ports, leaves=leaves, strict=strict, extra=extra), **where)

    @classmethod
    def cluster(cls, *, size: int = 3, domain: str | None = None, strict: bool | None = None, extra: str = "", **where: Any) -> Self:
        """A cluster; see `shapes.cluster`. `where`: binary, folder, ports."""
        return cls(lambda ports: shapes.cluster(ports, size=size, domain=domain, strict=strict, extra=extra), **where)

    def __getitem__(self, name: str) -> Server:
        return self.servers[name]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Start what does not run and wait until all of it is ready; on failure everything is stopped."""
        try:
            self._ports.before_start()
            for server in self.servers.values():
                server.launch()
                if server.node.leafnodes is not None:
                    # A leaf that finds its hub at the first try is linked in milliseconds, else only after a second.
                    server.wait_accepting()
            self.wait_ready()
        except BaseException:
            self.close()
            raise

    def wait_ready(self, timeout: float = START_TIMEOUT) -> None:
        """Wait until every started server answers and every link between two of them carries requests.

        For leaves: both sides reach the other's domain. For a cluster: there is a leader that sees all as current.
        """
        end = time.monotonic() + timeout
        running = [server for server in self.servers.values() if server.wanted]
        for server in running:
            server.wait_accepting(_left(end))
        if self.layout.shape == "cluster" and running:
            running[0].wait_until(lambda: _one_leads(running), "agree with the others on a leader", _left(end))
        hub = self.servers.get("hub")
        if self.layout.shape == "hub-and-leaf" and hub is not None and hub.wanted:
            for leaf in running[1:]:
                _wait_linked(hub, leaf, end)

    def stop(self) -> None:
        """Stop all servers in order; data and ports stay."""
        for server in self.servers.values():
            server.interrupt()
        for server in self.servers.values():
            server.stop()

    def close(self) -> None:
        """Stop all servers, give the ports back, remove a temporary folder. May be called twice."""
        self.stop()
        self._ports.release()
        if self._temporary and self.folder.exists():
            shutil.rmtree(self.folder)
            guardian().drop_folder(self.folder)


def _temporary_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="jsplan-sandbox-"))
    guardian().keep_folder(folder)
    return folder


def _wait_linked(hub: Server, leaf: Server, end: float) -> None:
    if not (hub.node.jetstream and leaf.node.jetstream):
        return
    leaf.wait_until(lambda: leaf.ask(f"$JS.{hub.node.domain}.API.INFO") is not None, "reach the hub", _left(end))
    hub.wait_until(lambda: hub.ask(f"$JS.{leaf.node.domain}.API.INFO") is not None, f"reach {leaf.name}", _left(end))


def _one_leads(servers: list[Server]) -> bool:
    for server in servers:
        with_id = server.info()["server_id"]
        answer = server.ask(f"$SYS.REQ.SERVER.{with_id}.JSZ", user=shapes.SYS) or {}
        peers = answer.get("data", {}).get("meta_cluster", {}).get("replicas") or []
        if len(peers) == len(servers) - 1 and all(peer["current"] for peer in peers):
            return True
    return False


def _left(end: float) -> float:
    return max(0.0, end - time.monotonic())
