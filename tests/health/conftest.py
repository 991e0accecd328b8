"""A hub with two accounts and a leaf whose link can be cut, each over its own connection."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.sandbox import Sandbox
from jsplan.sandbox.shapes import HOST, Layout, Node
from tests.conftest import PROGRAM
from tests.support.account_sharing import static_accounts, static_user
from tests.support.raw import Raw, delete_all_streams
from tests.support.relay import Relay
from tests.support.workspaces import Space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: What account A offers B, and what it does not: FULL has everything, the others lack what they are named for.
CREATES, FLOWS = ("FULL", "UNDELIVERED", "STALLED"), ("FULL", "UNDELIVERED")
#: Which server, and which account, each connection leads to.
ROUTES = {"hub": ("hub", "a"), "leaf": ("leaf", "a"), "other": ("hub", "b")}


def accounts() -> str:
    """Return accounts: A owns the streams, B imports some of what a copy of them needs."""
    services = [
        (f"$JS.hub.API.CONSUMER.CREATE.{name}", f"JS.a.API.CONSUMER.CREATE.{name}")
        for name in CREATES
    ]
    services += [(f"$JS.FC.{name}.>", f"$JS.FC.{name}.>") for name in FLOWS]
    exports = [f"{{service: {json.dumps(subject)}}}" for subject, _ in services] + [
        '{stream: "deliver.a.>"}'
    ]
    imports = [
        f"{{service: {{account: A, subject: {json.dumps(s)}}}, to: {json.dumps(to)}}}"
        for s, to in services
    ]
    imports += ['{stream: {account: A, subject: "deliver.a.>"}}']
    return static_accounts(
        {"A": f"exports: [{', '.join(exports)}]", "B": f"imports: [{', '.join(imports)}]"}
    )


@dataclass
class LinkedServers:
    """The servers, the link between them, and a raw connection for each way."""

    sandbox: Sandbox
    relay: Relay
    raws: dict[str, Raw] = field(default_factory=dict)

    def request(self, way: str, verb: str, payload: Any = None) -> dict[str, Any]:
        """Send one request to the JetStream of a way, which succeeds."""
        return self.raws[way].api_ok(f"$JS.API.{verb}", payload)

    def stream(
        self, way: str, name: str, messages: int = 0, *, size: int = 8, **config: Any
    ) -> None:
        """Create a stream that stores `<name>.>`, with messages of so many bytes."""
        self.request(
            way, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]} | config
        )
        self.publish(way, f"{name}.a", messages, size=size)

    def publish(self, way: str, subject: str, messages: int, *, size: int = 8) -> None:
        """Publish, each message with its ack."""
        for _ in range(messages):
            assert b'"seq"' in self.raws[way].request(subject, bytes(size))[1]

    def state(self, way: str, stream: str) -> dict[str, Any]:
        """Return the state of a stream."""
        found = self.request(way, f"STREAM.INFO.{stream}")["state"]
        assert isinstance(found, dict)
        return found

    def wait_until(self, ready: Callable[[], bool], what: str, seconds: float = 60) -> None:
        """Wait for something on the servers."""
        self.sandbox["hub"].wait_until(ready, what, seconds)

    def wait_until_copied(self, way: str, stream: str, last: int) -> None:
        """Wait until a downstream stream has so many messages."""
        self.wait_until(
            lambda: self.state(way, stream)["last_seq"] >= last, f"have {last} messages in {stream}"
        )

    def is_linked(self) -> bool:
        """Check whether the hub reaches its leaf, and the leaf its hub.

        Raises OSError if a side neither answers nor reports that no responder is there.
        """
        return all(
            self.sandbox[way].request(f"$JS.{to}.API.INFO") is not None
            for way, to in (("hub", "leaf"), ("leaf", "hub"))
        )

    def clean(self) -> LinkedServers:
        """Restore the link and delete every stream."""
        self.relay.mend()
        self.wait_until(self.is_linked, "be linked")
        for raw in self.raws.values():
            delete_all_streams(raw)
        return self

    def space(self, folder: Path) -> Space:
        """Write a workspace over all of it; requests are waited for 2 s."""
        connections = {
            key: {
                "url": self.sandbox[server].url,
                "user": name,
                "password": name,
                "account": name.upper(),
                "timeout": "2s",
            }
            for key, (server, name) in ROUTES.items()
        }
        domains = {
            "hub": {"connection": "hub"},
            "leaf": {"connection": "leaf"},
            "other": {"connection": "other", "js_domain": "hub"},
        }
        imports = [{"from": "hub", "into": "other", "api": "JS.a.API", "deliver": "deliver.a"}]
        base = {
            "jsplan": 1,
            "workspace": "test",
            "connections": connections,
            "domains": domains,
            "imports": imports,
        }
        return Space(folder, base | {"defaults": {"domain": "hub"}})


@pytest.fixture(scope="module")
def _linked_servers() -> Iterator[LinkedServers]:
    with Relay() as relay:

        def layout(port_of: Callable[[str], int]) -> Layout:
            relay.target = port_of("hub.leafnodes")
            # Without `advertise` the leaf would learn the hub's own address and go round the relay.
            listen = f'leafnodes {{ listen: "{HOST}:{relay.target}", advertise: "{HOST}:{relay.port}" }}\n'
            hub = Node(
                "hub",
                port_of("hub"),
                domain="hub",
                login=static_user("A"),
                extra=listen + accounts(),
            )
            remote = f'{{urls: ["nats://a:a@{HOST}:{relay.port}"], account: A}}'
            text = f"leafnodes {{\n    reconnect: 1\n    remotes = [{remote}]\n}}\n{static_accounts({'A': ''})}"
            return Layout(
                "hub-and-leaf",
                (
                    hub,
                    Node(
                        "leaf", port_of("leaf"), domain="leaf", login=static_user("A"), extra=text
                    ),
                ),
            )

        with Sandbox(layout, binary=PROGRAM) as sandbox:
            land = LinkedServers(
                sandbox,
                relay,
                {
                    way: Raw(sandbox[server].url, name, name)
                    for way, (server, name) in ROUTES.items()
                },
            )
            try:
                land.wait_until(land.is_linked, "be linked")
                yield land
            finally:
                for raw in land.raws.values():
                    raw.close()


@pytest.fixture
def linked_servers(_linked_servers: LinkedServers) -> LinkedServers:
    """Start all of it, linked and empty."""
    return _linked_servers.clean()
