"""Real clients do what an application declares, with its permissions and without a denial."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import nats
import pytest
from nats.js.errors import KeyNotFoundError

from jsplan.rehearsal.access_sites import ProofUser
from jsplan.rehearsal.prove_access import FLAG_SINCE
from jsplan.subjects import is_subset
from jsplan.topology.access import REPLY_FLAG
from tests.access.conftest import (
    BASE,
    PASSWORD,
    RECORDED_JAVA,
    USES,
    derive,
    list_uses,
    servers_with,
    space_with,
)
from tests.support.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsplan.sandbox import Sandbox

#: The packages of the JavaScript clients that the profile was recorded from.
PACKAGES = ("@nats-io/transport-node@3", "@nats-io/jetstream@3", "@nats-io/kv@3", "@nats-io/obj@3")
#: Where nats.java is, and what it needs: no package index that the tests reach has it.
JNATS = os.environ.get("JSPLAN_JNATS_CLASSPATH")
_LATER_REPLY = re.compile(r"(\$JS\.(?:ACK|FC))\.(?:hub|leaf)\.\w{8}")


def program(name: str) -> str:
    """Return the path of a program that must be installed."""
    found = shutil.which(name)
    assert found is not None, f"{name} is not installed"
    return found


class Start(Protocol):
    """Starts servers on which these applications may do what they declare."""

    def __call__(self, *apps: dict[str, Any], extra: str = "") -> Sandbox:
        """Return the servers, with `extra` in their configuration."""
        ...


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start servers with applications and what they use."""
    running: list[Sandbox] = []

    def start_servers(*apps: dict[str, Any], extra: str = "") -> Sandbox:
        folder = tmp_path / str(len(running))
        folder.mkdir()
        space = space_with(folder, *apps)
        servers = servers_with(*map(ProofUser, derive(space)), extra=extra)
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


def app_with_all_uses(client: str) -> dict[str, Any]:
    """Return an application of the hub that does everything that its client can."""
    app: dict[str, Any] = {"name": "a", "domain": "hub", "client": client}
    for key, use in list_uses("hub", client, USES):
        app.setdefault(key, []).append(use)
    return app


@pytest.mark.matrix
async def test_nats_py(start: Start) -> None:
    """nats-py publishes, consumes, reads, watches and writes, also in another domain."""
    servers, denied = await asyncio.to_thread(start, app_with_all_uses("py")), list[str]()

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
        # Do with nats-py what the application declares.
        hub, leaf = client.jetstream(timeout=10), client.jetstream(domain="leaf", timeout=10)
        await hub.publish("orders.eu.1", b"1")
        await client.request("jobs.a", b"2", timeout=10)

        pull = await hub.pull_subscribe("orders.eu.>", durable="PULL", stream="ORDERS")
        await (await pull.fetch(1, timeout=10))[0].ack_sync(timeout=10)
        worker = await leaf.pull_subscribe("jobs.>", durable="WORKER", stream="JOBS")
        await (await worker.fetch(1, timeout=10))[0].ack_sync(timeout=10)
        consumer = await hub.consumer_info(
            "ORDERS", "PUSH"
        )  # `queue` must equal `durable` elsewhere
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
    finally:
        await client.close()
        assert denied == []


@pytest.mark.download
def test_javascript_clients(start: Start, tmp_path: Path) -> None:
    """The JavaScript clients do the same."""
    servers = start(app_with_all_uses("js"))
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


async def fill(url: str) -> None:
    """Store what the Java client reads; so much that servers ask for flow control."""
    client = await nats.connect(url, user="SHOP", password=PASSWORD)
    hub, large = client.jetstream(timeout=10), b"1" * 100_000
    for number in range(60):
        await hub.publish(f"orders.eu.{number}", large)
    for name in ("CONFIG", "OLD"):
        for key in ("a", *range(30)):
            await hub.publish(f"$KV.{name}.eu.{key}", large)
    for subject in ("jobs.a", "$JS.leaf.API.$KV.LOCAL.eu.a"):
        await client.request(subject, b"1", timeout=10)
    files = await hub.object_store("FILES")
    for name, content in (("small", b"1"), ("large", large * 40)):
        await files.put(name, content)
    await client.close()


@pytest.mark.jnats
def test_java_client(start: Start, tmp_path: Path, server_version: tuple[int, ...]) -> None:
    """The Java client asks for each use what was recorded, with the permissions for that alone."""
    assert JNATS, "JSPLAN_JNATS_CLASSPATH does not say where nats.java is"
    classpath = f"{tmp_path}{os.pathsep}{JNATS}"
    source = Path(__file__).with_name("Client.java")
    subprocess.run([program("javac"), "-d", tmp_path, "-cp", classpath, source], check=True)
    apps = {
        name: {"name": name.replace(" ", "-"), "domain": "hub", "client": "java"} | recorded["app"]
        for name, recorded in RECORDED_JAVA.items()
    }
    flag = f"feature_flags {{ {REPLY_FLAG}: true }}\n"
    for extra in ("", flag) if server_version >= FLAG_SINCE else ("",):
        servers = start(*apps.values(), extra=extra)
        asyncio.run(fill(servers["hub"].url))
        for name, app in apps.items():
            # Run the Java client; check that it asks all that was wanted, and nothing else.
            user = app["name"]
            login = f"proof-{user}-all", PASSWORD, f"_INBOX_{user}"
            with Recorder(servers["hub"].port) as recorder:
                url = f"nats://127.0.0.1:{recorder.port}"
                done = subprocess.run(
                    [program("java"), "-cp", classpath, "Client", url, *login, name],
                    check=False,
                    timeout=60,
                    capture_output=True,
                    text=True,
                )
            assert (done.returncode, done.stdout) == (0, ""), f"{name}: {done.stdout}{done.stderr}"
            asked = {
                "publish": {_LATER_REPLY.sub(r"\1", each) for each in recorder.published},
                "subscribe": {
                    each for each in recorder.subscribed if not each.startswith(login[2])
                },
            }
            for verb, subjects in asked.items():
                wanted = RECORDED_JAVA[name].get(verb, [])
                assert [s for s in subjects if not any(is_subset(s, r) for r in wanted)] == [], name
                assert [r for r in wanted if not any(is_subset(s, r) for s in subjects)] == [], name
