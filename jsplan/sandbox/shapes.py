"""Configuration of embedded servers as text, per shape.

The hub and leaf are those of the NATS documentation: accounts SYS (admin/admin) and ACC (acc/acc,
with JetStream), domains `hub` and `leaf`, one leafnode remote per account.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

Shape = Literal["hub-and-leaf", "single", "cluster", "sites"]
PortOf = Callable[[str], int]

HOST = "127.0.0.1"
ACCOUNTS = """\
accounts {
    SYS: {
        users: [{user: admin, password: admin}]
    },
    ACC: {
        users: [{user: acc, password: acc}],
        jetstream: enabled
    }
}
system_account: SYS
"""
#: The server counts `max_bytes` against this, not the disk, so free space does not matter.
_STORE_LIMITS = "max_memory_store: 8GB, max_file_store: 8TB"


class User(Struct, frozen=True):
    """A user of the embedded servers.

    `account` is None on a server without accounts. `creds` is the file of a JWT user.
    """

    account: str | None
    user: str | None
    password: str | None
    creds: Path | None = None


ACC = User("ACC", "acc", "acc")
SYS = User("SYS", "admin", "admin")
ANONYMOUS = User(None, None, None)


class Node(Struct, frozen=True):
    """The configuration of one server. Ports are on 127.0.0.1.

    `leafnodes` is the port for leafnode connections, `hub` the leafnode port of its hub, `routes`
    the route ports of its cluster with its own first. `jetstream=False` leaves JetStream out.
    `strict` is the server's JSON strictness (2.11 and later; None leaves the server's default).
    `extra` is configuration text that is appended unchanged; `login` and `system` are the users
    where that text has accounts of its own. `cluster` and `tags` are for placement. `limits` are
    the JetStream limits of the server. `remotes` are the users, one per account, that a leaf uses
    at its hub. `binary` is the program if it is not that of the sandbox.
    """

    name: str
    port: int
    domain: str | None = None
    accounts: bool = False
    jetstream: bool = True
    strict: bool | None = None
    leafnodes: int | None = None
    hub: int | None = None
    routes: tuple[int, ...] = ()
    extra: str = ""
    login: User | None = None
    system: User = SYS
    cluster: str = "sandbox"
    tags: tuple[str, ...] = ()
    limits: str = _STORE_LIMITS
    remotes: tuple[User, ...] = (SYS, ACC)
    binary: Path | None = None

    @property
    def url(self) -> str:
        """The client URL, without credentials."""
        return f"nats://{HOST}:{self.port}"

    @property
    def user(self) -> User:
        """The user of JetStream clients."""
        return self.login or (ACC if self.accounts else ANONYMOUS)


class Layout(Struct, frozen=True):
    """The servers of one shape, in the order in which they start."""

    shape: Shape
    nodes: tuple[Node, ...] = field(default=())


def single(
    port_of: PortOf,
    *,
    domain: str | None = None,
    accounts: bool = False,
    jetstream: bool = True,
    strict: bool | None = None,
    extra: str = "",
) -> Layout:
    """Return one server called `server`.

    Without `accounts` no login is needed, as with `nats-server -js`.
    """
    node = Node(
        "server",
        port_of("server"),
        domain=domain,
        accounts=accounts,
        jetstream=jetstream,
        strict=strict,
        extra=extra,
    )
    return Layout("single", (node,))


def hub_and_leaf(
    port_of: PortOf,
    *,
    leaves: tuple[str, ...] = ("leaf",),
    strict: bool | None = None,
    extra: Mapping[str, str] | None = None,
) -> Layout:
    """Return a hub and its leaves; a server's name is its domain.

    `extra` is raw configuration by server name.
    """
    texts = dict(extra or {})
    hub = Node(
        "hub",
        port_of("hub"),
        domain="hub",
        accounts=True,
        strict=strict,
        leafnodes=port_of("hub.leafnodes"),
        extra=texts.get("hub", ""),
    )
    edges = [
        Node(
            leaf,
            port_of(leaf),
            domain=leaf,
            accounts=True,
            strict=strict,
            hub=hub.leafnodes,
            extra=texts.get(leaf, ""),
        )
        for leaf in leaves
    ]
    return Layout("hub-and-leaf", (hub, *edges))


def cluster(
    port_of: PortOf,
    *,
    size: int = 3,
    domain: str | None = None,
    strict: bool | None = None,
    extra: str = "",
) -> Layout:
    """Return a cluster of `n1`, `n2`, `n3` with routes between all; `extra` goes to each."""
    names = [f"n{number}" for number in range(1, size + 1)]
    routes = {name: port_of(f"{name}.routes") for name in names}
    nodes = [
        Node(
            name,
            port_of(name),
            domain=domain,
            accounts=True,
            strict=strict,
            routes=(routes[name], *(port for other, port in routes.items() if other != name)),
            extra=extra,
        )
        for name in names
    ]
    return Layout("cluster", tuple(nodes))


def render_server_config(node: Node, store: str) -> str:
    """Return the configuration file; it includes `accounts.conf` beside it.

    `store` is the data folder.
    """
    blocks = [
        f"listen: {_quote(f'{HOST}:{node.port}')}\nserver_name: {_quote(f'{node.name}-server')}\n"
    ]
    if node.tags:
        blocks.append(f"server_tags: [{', '.join(map(_quote, node.tags))}]\n")
    if node.jetstream:
        blocks.append(_render_jetstream(node, store))
    if node.leafnodes is not None:
        blocks.append(f"leafnodes {{\n    listen: {_quote(f'{HOST}:{node.leafnodes}')}\n}}\n")
    if node.hub is not None:
        blocks.append(_render_remotes(node.hub, node.remotes))
    if node.routes:
        blocks.append(_render_cluster(node.cluster, node.routes))
    if node.accounts:
        blocks.append("include ./accounts.conf\n")
    if node.extra:
        blocks.append(node.extra.rstrip("\n") + "\n")
    return "".join(blocks)


def render_workspace(layout: Layout) -> str:
    """Return a `jsplan.yaml` that reaches every domain of the shape, ready to add streams to."""
    first = layout.nodes[0]
    credentials = (
        f", user: {first.user.user}, password: {first.user.password}" if first.user.user else ""
    )
    lines = [
        "jsplan: 1",
        "workspace: sandbox",
        "connections:",
        f'  {first.name}: {{url: "{_client_urls(layout)}"{credentials}}}',
        "domains:",
    ]
    if layout.shape == "hub-and-leaf":
        lines += [f"  {node.domain}: {{connection: {first.name}}}" for node in layout.nodes]
    else:
        key, js_domain = (first.domain, "") if first.domain else ("main", ", js_domain: null")
        lines.append(f"  {key}: {{connection: {first.name}{js_domain}}}")
    return "\n".join(lines) + "\n"


def _client_urls(layout: Layout) -> str:
    nodes = layout.nodes if layout.shape == "cluster" else layout.nodes[:1]
    return ",".join(node.url for node in nodes)


def _render_jetstream(node: Node, store: str) -> str:
    lines = [f"store_dir: {_quote(store)}", node.limits]
    if node.domain is not None:
        lines.append(f"domain: {_quote(node.domain)}")
    if node.strict is not None:
        lines.append(f"strict: {str(node.strict).lower()}")
    return "jetstream {\n" + "".join(f"    {line}\n" for line in lines) + "}\n"


def _render_remotes(port: int, users: tuple[User, ...]) -> str:
    rows = [
        (
            f'        {{urls: ["nats://{user.user}:{user.password}@{HOST}:{port}"], account: '
            f'"{user.account}"}}'
        )
        for user in users
    ]
    # The server's smallest interval: tests cut links on purpose and wait for them.
    return "leafnodes {\n    reconnect: 1\n    remotes = [\n" + ",\n".join(rows) + "\n    ]\n}\n"


def _render_cluster(name: str, routes: tuple[int, ...]) -> str:
    own, *others = routes
    urls = ", ".join(_quote(f"nats://{HOST}:{port}") for port in others)
    # One route to each. With the default pool, the answer to STREAM.CREATE takes another route than
    # the interest in its subjects. Messages that are published at once without an ack are then
    # dropped (measured on 2.15.1: 9 of 18 new clusters, none without a pool).
    lines = [
        f"name: {_quote(name)}",
        f"listen: {_quote(f'{HOST}:{own}')}",
        "pool_size: -1",
        f"routes: [{urls}]",
    ]
    return "cluster {\n" + "".join(f"    {line}\n" for line in lines) + "}\n"


def _quote(text: str) -> str:
    return json.dumps(text)
