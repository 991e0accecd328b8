"""Servers of any shape: domains, clusters, accounts with limits, links between them.

A site is one JetStream: a server or a cluster, with its domain and the accounts that use it. A leaf
site is linked to its hub once per account that both have.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct, field

from jsplan.sandbox.shapes import Layout, Node, PortOf, User

#: Large enough that only the limits of accounts matter.
STORE_LIMITS = "max_memory_store: 4EB, max_file_store: 4EB"


class Account(Struct, frozen=True):
    """An account with JetStream.

    `limits` are those of the `jetstream` block of an account, in nats-server's words; bytes and
    counts. `users` are users beside its own, and `extra` is more of its block, as text.
    """

    name: str
    limits: Mapping[str, int | bool] = field(default_factory=dict)
    users: tuple[str, ...] = ()
    extra: str = ""


class Site(Struct, frozen=True):
    """One JetStream.

    `cluster` is the name of its cluster, None for a single server; `size` the number of its
    servers. `tags` are server tags, per server. `hub` names the hub site of a leaf. `strict` as in
    `Node`; `binary` is the program if it is not that of the sandbox. `extra` is more of the
    configuration of its servers, as text.
    """

    name: str
    accounts: tuple[Account, ...]
    domain: str | None = None
    cluster: str | None = None
    size: int = 1
    tags: tuple[tuple[str, ...], ...] = ()
    hub: str | None = None
    strict: bool | None = None
    binary: Path | None = None
    extra: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the names of its servers; clients connect to the first one."""
        if self.cluster is None:
            return (self.name,)
        return tuple(f"{self.name}-{number}" for number in range(1, self.size + 1))


def build_site_layout(port_of: PortOf, wanted: Iterable[Site], password: str) -> Layout:
    """Return the servers of all sites, hubs first.

    The user of an account has the account's name, and all have this password.
    """
    found = {site.name: site for site in wanted}
    hubs = {site.hub for site in found.values()}
    ordered = sorted(found.values(), key=lambda site: site.name not in hubs)
    return Layout(
        "sites",
        tuple(
            node for site in ordered for node in _build_nodes(port_of, site, found, hubs, password)
        ),
    )


def account_user(account: str, password: str) -> User:
    """Return the user of the account's clients."""
    return User(account, account, password)


def _build_nodes(
    port_of: PortOf, site: Site, found: Mapping[str, Site], hubs: set[str | None], password: str
) -> Iterable[Node]:
    hub = found[site.hub] if site.hub else None
    shared = [
        a.name
        for a in site.accounts
        if hub is not None and a.name in {other.name for other in hub.accounts}
    ]
    routes = (
        {name: port_of(f"{name}.routes") for name in site.nodes} if site.cluster is not None else {}
    )
    for number, name in enumerate(site.nodes):
        yield Node(
            name,
            port_of(name),
            domain=site.domain,
            strict=site.strict,
            extra=f"{_render_accounts(site.accounts, password)}{site.extra}",
            leafnodes=port_of(f"{name}.leafnodes") if site.name in hubs and number == 0 else None,
            hub=port_of(f"{hub.nodes[0]}.leafnodes") if hub is not None and shared else None,
            remotes=tuple(account_user(account, password) for account in shared),
            routes=(routes[name], *(port for other, port in routes.items() if other != name))
            if routes
            else (),
            cluster=site.cluster or "",
            tags=_server_tags(site, number),
            limits=STORE_LIMITS,
            login=account_user(shared[0] if shared else site.accounts[0].name, password),
            system=account_user("SYS", password),
            binary=site.binary,
        )


def _server_tags(site: Site, number: int) -> tuple[str, ...]:
    """Return the tags of one server; in a cluster also a unique one, for the readiness check."""
    given = site.tags[number] if number < len(site.tags) else ()
    return given if site.cluster is None else (*given, f"jsplan:{site.nodes[number]}")


def _render_accounts(accounts: Iterable[Account], password: str) -> str:
    rows = [f"    SYS: {{users: [{_render_user('SYS', password)}]}}"]
    for account in accounts:
        limits = ", ".join(f"{name}: {json.dumps(value)}" for name, value in account.limits.items())
        jetstream = f"{{{limits}}}" if limits else "enabled"
        users = "\n".join((_render_user(account.name, password), *account.users))
        extra = f"\n{account.extra}" if account.extra else ""
        rows.append(f"    {account.name}: {{users: [{users}], jetstream: {jetstream}{extra}}}")
    return "accounts {\n" + "\n".join(rows) + "\n}\nsystem_account: SYS\n"


def _render_user(name: str, password: str) -> str:
    return f"{{user: {name}, password: {json.dumps(password)}}}"
