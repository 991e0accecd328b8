"""Embedded servers that belong together, from the first start to the last stop."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from jsplan.errors import SandboxError
from jsplan.sandbox import shapes
from jsplan.sandbox.guardian import get_guardian
from jsplan.sandbox.servers import START_TIMEOUT, Ports, Server
from jsplan.sandbox.sites import Site, build_site_layout
from jsplan.sandbox.versions import find_binary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType


#: The stream that shows that a cluster can place one.
_TRIAL_STREAM = "JSPLAN_SANDBOX_TRIAL"
#: The answers of a cluster that is not ready: no peers, no leader, no resources.
NOT_READY_CODES = (10005, 10008, 10009, 10023)
#: Seconds after which a server that has not joined its cluster is restarted.
_JOIN_TIMEOUT = 3.0


class Sandbox:
    """Embedded nats-servers of one shape; `sandbox["hub"]` is a `Server`. Use it in a `with`.

    Make one with `hub_and_leaf`, `single`, `cluster` or `of_sites`. `ports` asks for ports by
    listener (`hub`, `hub.leafnodes`, `leaf`, `server`, `n1`, `n1.routes`); the others are free
    ones. `folder` keeps the data; without it a temporary folder is used and removed. All methods
    raise SandboxError. No process outlives this one, also after kill -9.
    """

    def __init__(
        self,
        make_layout: Callable[[shapes.PortOf], shapes.Layout],
        *,
        binary: Path | None = None,
        folder: Path | None = None,
        ports: Mapping[str, int] | None = None,
    ) -> None:
        self.binary = binary or find_binary()
        self._ports = Ports(ports)
        try:
            self.layout = make_layout(self._ports)
        except SandboxError:
            self._ports.release()
            raise
        self._temporary = folder is None
        self.folder = _temporary_folder() if folder is None else folder.absolute()
        self.servers = {
            node.name: Server(node, node.binary or self.binary, self.folder)
            for node in self.layout.nodes
        }

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
        """Return one server, `server`; see `shapes.single`. `where`: binary, folder, ports."""
        options: dict[str, Any] = {
            "domain": domain,
            "accounts": accounts,
            "jetstream": jetstream,
            "strict": strict,
            "extra": extra,
        }
        return cls(lambda ports: shapes.single(ports, **options), **where)

    @classmethod
    def hub_and_leaf(
        cls,
        *,
        leaves: tuple[str, ...] = ("leaf",),
        strict: bool | None = None,
        extra: Mapping[str, str] | None = None,
        **where: Any,
    ) -> Self:
        """Return a hub and its leaves; see `shapes.hub_and_leaf`. `where`: as `single`."""
        return cls(
            lambda ports: shapes.hub_and_leaf(ports, leaves=leaves, strict=strict, extra=extra),
            **where,
        )

    @classmethod
    def cluster(
        cls,
        *,
        size: int = 3,
        domain: str | None = None,
        strict: bool | None = None,
        extra: str = "",
        **where: Any,
    ) -> Self:
        """Return a cluster; see `shapes.cluster`. `where`: binary, folder, ports."""
        return cls(
            lambda ports: shapes.cluster(
                ports, size=size, domain=domain, strict=strict, extra=extra
            ),
            **where,
        )

    @classmethod
    def of_sites(cls, wanted: Iterable[Site], password: str, **where: Any) -> Self:
        """Return domains, clusters and accounts of any kind; see `build_site_layout`.

        `where`: binary, folder, ports.
        """
        chosen = tuple(wanted)
        return cls(lambda ports: build_site_layout(ports, chosen, password), **where)

    def __getitem__(self, name: str) -> Server:
        return self.servers[name]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the stopped servers and wait until all are ready; stop all on failure."""
        try:
            self._ports.release_for_start()
            for server in self.servers.values():
                server.launch()
                if server.node.leafnodes is not None:
                    # a leaf that reaches its hub at once is linked in milliseconds
                    server.wait_accepting()
            self.wait_ready()
        except BaseException:
            self.close()
            raise

    def wait_ready(self, timeout: float = START_TIMEOUT) -> None:
        """Wait until every started server answers and every link carries requests.

        For leaves: both sides reach the other's domain. For a cluster: a leader sees all as
        current.
        """
        end = time.monotonic() + timeout
        running = [server for server in self.servers.values() if server.should_run]
        for server in running:
            server.wait_accepting(_remaining_seconds(end))
        for members in _group_by_cluster(running):
            _wait_for_leader(members, end)
            for wanted in _trial_configs(members):
                members[0].wait_until(
                    partial(_can_place, members[0], wanted),
                    "place a stream on every server",
                    _remaining_seconds(end),
                )
        hubs = {
            server.node.leafnodes: server for server in running if server.node.leafnodes is not None
        }
        for leaf in running:
            if leaf.node.hub in hubs:
                _wait_for_link(hubs[leaf.node.hub], leaf, end)

    def stop(self) -> None:
        """Stop all servers in order; data and ports stay."""
        for server in self.servers.values():
            server.interrupt()
        for server in self.servers.values():
            server.stop()

    def close(self) -> None:
        """Stop all servers, release the ports, remove a temporary folder. May be called twice."""
        self.stop()
        self._ports.release()
        if self._temporary and self.folder.exists():
            shutil.rmtree(self.folder)
            get_guardian().unregister_folder(self.folder)


def _temporary_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="jsplan-sandbox-"))
    get_guardian().register_folder(folder)
    return folder


def _wait_for_link(hub: Server, leaf: Server, end: float) -> None:
    if not (hub.node.jetstream and leaf.node.jetstream):
        return
    user = leaf.node.user
    if hub.node.domain is not None:
        leaf.wait_until(
            lambda: leaf.request(f"$JS.{hub.node.domain}.API.INFO", user=user) is not None,
            "reach the hub",
            _remaining_seconds(end),
        )
    hub.wait_until(
        lambda: hub.request(f"$JS.{leaf.node.domain}.API.INFO", user=user) is not None,
        f"reach {leaf.name}",
        _remaining_seconds(end),
    )


def _group_by_cluster(servers: list[Server]) -> list[list[Server]]:
    """Group the servers that are routed to each other, a list for each cluster."""
    found: dict[frozenset[int], list[Server]] = {}
    for server in servers:
        if server.node.routes:
            found.setdefault(frozenset(server.node.routes), []).append(server)
    return list(found.values())


def _wait_for_leader(servers: list[Server], end: float) -> None:
    """Wait until a leader sees all others as current.

    nats-server 2.10 sometimes begins a cluster of three as one of two and never adds the third
    (measured: one start in twelve). After a restart, that one joins at once.
    """
    while True:
        try:
            servers[0].wait_until(
                partial(_has_leader, servers),
                "agree with the others on a leader",
                min(_JOIN_TIMEOUT, _remaining_seconds(end)),
            )
            return
        except SandboxError:
            if _remaining_seconds(end) <= 0 or not all(server.is_running for server in servers):
                raise
        for server in _unjoined_servers(servers):
            server.restart()


def _has_leader(servers: list[Server]) -> bool:
    return any(
        len(peers) == len(servers) - 1 and all(peer["current"] for peer in peers)
        for peers in map(_read_peers, servers)
    )


def _unjoined_servers(servers: list[Server]) -> list[Server]:
    """Return servers that the leader does not count; none without a leader."""
    try:
        leader, peers = next(
            ((server, peers) for server in servers if (peers := _read_peers(server))), (None, [])
        )
    except OSError:
        return []
    known = {peer["name"] for peer in peers}
    return [
        server
        for server in servers
        if leader not in (None, server) and f"{server.name}-server" not in known
    ]


def _read_peers(server: Server) -> list[dict[str, Any]]:
    """Return the other servers of the cluster as its leader sees them.

    Nothing from a server that does not lead. Raises OSError.
    """
    answer = (
        server.request(f"$SYS.REQ.SERVER.{server.info()['server_id']}.JSZ", user=server.node.system)
        or {}
    )
    peers: list[dict[str, Any]] = (
        answer.get("data", {}).get("meta_cluster", {}).get("replicas") or []
    )
    return peers


def _trial_configs(servers: list[Server]) -> list[dict[str, Any]]:
    """Return streams that together need every server.

    One per server if tags identify each; otherwise one with as many replicas as allowed.
    """
    distinct = len({server.node.tags for server in servers}) == len(servers)
    if not distinct:
        return [{"num_replicas": min(len(servers), 5)}]
    return [{"placement": {"tags": server.node.tags}} for server in servers]


def _can_place(server: Server, wanted: dict[str, Any]) -> bool:
    """Return True if the leader knows the servers that it needs for such a stream.

    It learns of them only after it leads. The stream is deleted at once. Other refusals do not
    matter for readiness.
    """
    answer = (
        server.request(
            f"$JS.API.STREAM.CREATE.{_TRIAL_STREAM}",
            json.dumps({"name": _TRIAL_STREAM, "subjects": [_TRIAL_STREAM]} | wanted).encode(),
        )
        or {}
    )
    if "error" in answer:
        return bool(answer["error"].get("err_code") not in NOT_READY_CODES)
    return (server.request(f"$JS.API.STREAM.DELETE.{_TRIAL_STREAM}") or {}).get("success") is True


def _remaining_seconds(end: float) -> float:
    return max(0.0, end - time.monotonic())
