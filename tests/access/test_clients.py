"""Real clients do what an application declares, with its permissions and without a denial."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest
from nats.js.errors import KeyNotFoundError

from jsplan.rehearsal.access_sites import ProofUser
from tests.access.conftest import BASE, PASSWORD, USES, derive, list_uses, servers_with, space_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nats.aio.client import Client

    from jsplan.sandbox import Sandbox

#: The packages of the JavaScript clients that the profile was recorded from.
PACKAGES = ("@nats-io/transport-node@3", "@nats-io/jetstream@3", "@nats-io/kv@3", "@nats-io/obj@3")


def program(name: str) -> str:
    """Return the path of a program that must be installed."""
    found = shutil.which(name)
    assert found is not None, f"{name} is not installed"
    return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Sandbox]]:
    """Start servers on which an application of this client may do all uses, from the hub."""
    running: list[Sandbox] = []

    def start_servers(client: str) -> Sandbox:
        app: dict[str, Any] = {"name": "a", "domain": "hub", "client": client}
        for key, use in list_uses("hub", client, USES):
            app.setdefault(key, []).append(use)
        space = space_with(tmp_path, app)
        servers = servers_with(ProofUser(derive(space)[0]))
        running.append(servers)
        servers.start()
        login = {"url": servers["hub"].url, "user": "SHOP", "password": PASSWORD}
        connections = {"hub": login | {"account": "SHOP"}}
        space.write(**{key: BASE[key] for key in ("streams", "kv", "object_stores")})
        space.write(connections=connections).apply()
        return servers

    yield start_servers
    for servers in running:
        servers.close()


async def use_everything(client: Client) -> None:
    """Do with nats-py what the application declares."""
    hub, leaf = client.jetstream(timeout=10), client.jetstream(domain="leaf", timeout=10)
    await hub.publish("orders.eu.1", b"1")
    await client.request("jobs.a", b"2", timeout=10)

    pull = await hub.pull_subscribe("orders.eu.>", durable="PULL", stream="ORDERS")
    await (await pull.fetch(1, timeout=10))[0].ack_sync(timeout=10)
    worker = await leaf.pull_subscribe("jobs.>", durable="WORKER", stream="JOBS")
    await (await worker.fetch(1, timeout=10))[0].ack_sync(timeout=10)
    consumer = await hub.consumer_info("ORDERS", "PUSH")  # `queue` must equal `durable` elsewhere
    push = await hub.subscribe_bind("ORDERS", consumer.config, "PUSH", manual_ack=True)
    await (await push.next_msg(timeout=10)).ack_sync(timeout=10)

    bucket = await hub.key_value("CONFIG")
    await bucket.put("eu.a", b"3")
    assert (await bucket.get("eu.a")).value == b"3"
    for other in (bucket, await leaf.key_value("LOCAL")):
        with pytest.raises(KeyNotFoundError):
            await other.get("eu.b")
    watcher: Any = await bucket.watch("eu.>")
    while (found := await watcher.updates(timeout=10)) is None:
        pass  # the end of what was there before
    assert found.key == "eu.a"
    await watcher.stop()
    assert await bucket.keys() == ["eu.a"]

    files = await hub.object_store("FILES")
    for content in (b"4" * 200_000, b"5"):
        await files.put("f", content)
        assert (await files.get("f")).data == content


@pytest.mark.matrix
async def test_nats_py(start: Callable[[str], Sandbox]) -> None:
    """nats-py publishes, consumes, reads, watches and writes, also in another domain."""
    servers, denied = await asyncio.to_thread(start, "py"), list[str]()

    async def on_error(error: Exception) -> None:
        denied.append(str(error))

    client = await nats.connect(
        servers["hub"].url,
        user="proof-a-all",
        password=PASSWORD,
        inbox_prefix=b"_INBOX_a",
        error_cb=on_error,
    )
    try:
        await use_everything(client)
    finally:
        await client.close()
        assert denied == []


@pytest.mark.download
def test_javascript_clients(start: Callable[[str], Sandbox], tmp_path: Path) -> None:
    """The JavaScript clients do the same."""
    servers = start("js")
    subprocess.run(
        [program("npm"), "install", "--silent", "--prefix", tmp_path, *PACKAGES],
        check=True,
        timeout=110,
    )
    script = Path(__file__).with_name("client.mjs").read_text()
    (tmp_path / "client.mjs").write_text(script)

    printed = subprocess.run(
        [program("node"), "client.mjs", servers["hub"].url, PASSWORD],
        cwd=tmp_path,
        check=True,
        timeout=60,
        capture_output=True,
    ).stdout

    assert json.loads(printed) == {"denied": [], "read": ["3", "3"], "objects": [200_000, 1]}
