"""The servers of a row: where each domain is, and a workspace that reaches them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tests.relocate.test_accounts import Accounts
from tests.support.raw import Raw
from tests.support.workspaces import Space, hub_leaf_space, new_space, single_space

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from jsplan.sandbox import Sandbox, Server


class Place(NamedTuple):
    """A domain, as a client reaches it."""

    url: str
    user: str | None = None
    password: str | None = None

    def raw(self, timeout: float = 60) -> Raw:
        """Open a connection; `timeout` is in seconds."""
        return Raw(self.url, self.user, self.password, timeout=timeout)


@dataclass
class Servers:
    """A workspace and the places of its domains; `port` is that of the server it connects to."""

    space: Space
    places: dict[str, Place]
    port: int
    sandbox: Sandbox | None = None

    def url(self) -> str:
        """Return the URL of the files."""
        return str(next(iter(self.space.base["connections"].values()))["url"])

    def connect(self, url: str) -> None:
        """Reach all domains by this URL; nothing else in the files changes."""
        for connection in self.space.base["connections"].values():
            connection["url"] = url


def open_servers(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Servers]:
    """Yield servers of this kind, as a fixture does."""
    match kind:
        case "single":
            server: Server = request.getfixturevalue("server")
            yield Servers(single_space(folder, server), {"main": Place(server.url)}, server.port)
        case "hub and leaf":
            yield hub_and_leaf(folder, request.getfixturevalue("clean_hub_leaf"))
        case "two systems":
            make = request.getfixturevalue("make_server")
            both = {"old": make(), "new": make()}
            space = new_space(
                folder,
                connections={key: {"url": each.url} for key, each in both.items()},
                domains={key: {"connection": key, "js_domain": None} for key in both},
            )
            yield Servers(space, {key: Place(each.url) for key, each in both.items()}, 0)
        case "two accounts":
            accounts = Accounts(folder)
            url, port = accounts.sandbox["hub"].url, accounts.sandbox["hub"].port
            places = {"hub": Place(url, "acc", "acc"), "imp": Place(url, "imp", "imp")}
            yield Servers(accounts.space, places, port)
            accounts.sandbox.close()
        case _:
            raise ValueError(kind)


def hub_and_leaf(folder: Path, sandbox: Sandbox) -> Servers:
    """Return the servers of a hub and a leaf."""
    places = {key: Place(s.url, s.user, s.password) for key, s in sandbox.servers.items()}
    return Servers(hub_leaf_space(folder, sandbox), places, sandbox["hub"].port, sandbox)
