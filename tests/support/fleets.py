"""Fleets of leaves for tests, and workspaces over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.raw import Raw, delete_all_streams, publish
from tests.support.workspaces import Space, new_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox


@dataclass
class Fleet:
    """A hub and its leaves, with the requests that tests send."""

    sandbox: Sandbox

    @property
    def stores(self) -> list[str]:
        """The names of the leaves."""
        return [name for name in self.sandbox.servers if name != "hub"]

    def clean(self) -> Fleet:
        """Start, link and empty all servers."""
        for server in self.sandbox.servers.values():
            server.resume()
            server.start()
        self.sandbox.wait_ready()
        for server in self.sandbox.servers.values():
            with Raw(server.url, server.user, server.password) as raw:
                delete_all_streams(raw)
        return self

    def ask(self, verb: str, domain: str = "hub", payload: Any = None) -> dict[str, Any]:
        """Send one request to the API of a domain on its own server; errors are returned."""
        server = self.sandbox[domain]
        with Raw(server.url, server.user, server.password) as raw:
            return raw.api(f"$JS.API.{verb}", payload)

    def publish(self, domain: str, subject: str, count: int = 1) -> None:
        """Publish to a stream of the domain, each message with its ack."""
        server = self.sandbox[domain]
        publish(
            server.url,
            server.user,
            server.password,
            subject,
            *(b"%d" % number for number in range(count)),
        )

    def wait(self, domain: str, stream: str, messages: int) -> None:
        """Wait until the stream has `messages` messages."""
        self.sandbox[domain].wait_until(
            lambda: self.messages(domain, stream) == messages,
            f"have {messages} messages in {stream}",
            60,
        )

    def messages(self, domain: str, stream: str) -> int:
        """Return the number of messages, or -1 where the stream does not exist."""
        return int(self.ask(f"STREAM.INFO.{stream}", domain).get("state", {}).get("messages", -1))


def fleet_space(folder: Path, fleet: Fleet, **domain: Any) -> Space:
    """A workspace over the fleet: each leaf has the label edge, the first also canary."""
    hub = fleet.sandbox["hub"]
    connection = {"url": hub.url, "user": hub.user, "password": hub.password, "timeout": "1s"}
    domains: dict[str, Any] = {"hub": {"connection": "hub"}}
    for number, name in enumerate(fleet.stores):
        domains[name] = {
            "connection": "hub",
            "labels": ["edge", "canary"] if number == 0 else ["edge"],
            **domain,
        }
    return new_space(folder, connections={"hub": connection}, domains=domains)


def sales_streams(**fields: Any) -> list[dict[str, Any]]:
    """A stream in each shop, and one in the hub with a source for each."""
    return [
        {"name": "SALES", "domain": "label:edge", "subjects": ["sales.${domain}.>"], **fields},
        {
            "name": "ALL_SALES",
            "domain": "hub",
            "sources": [{"name": "SALES", "domain": "label:edge"}],
        },
    ]
