"""KV buckets and object stores move to another domain with every revision and object."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import nats
import pytest
from nats.js.errors import KeyNotFoundError, ObjectNotFoundError

from tests.relocate.scene import PERMITTED
from tests.support import stream_content
from tests.support.raw import Raw, streams
from tests.support.workspaces import Space, hub_leaf_space

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nats.js import JetStreamContext

    from jsplan.sandbox import Sandbox


@pytest.fixture
async def contexts(clean_hub_leaf: Sandbox) -> AsyncIterator[dict[str, JetStreamContext]]:
    """A JetStream context of each domain, connected to its own server."""
    found = {}
    for domain in ("hub", "leaf"):
        server = clean_hub_leaf[domain]
        found[domain] = await nats.connect(server.url, user=server.user, password=server.password)
    yield {domain: client.jetstream() for domain, client in found.items()}
    for client in found.values():
        await client.close()


def content(sandbox: Sandbox, domain: str, stream: str) -> list[stream_content.Message]:
    """Return the messages of a bucket's stream; empty if there is none."""
    server = sandbox[domain]
    with Raw(server.url, server.user, server.password) as raw:
        return stream_content.messages(raw, stream) if stream in streams(raw) else []


async def apply(space: Space) -> None:
    """Apply in a thread, since a workflow has an event loop of its own."""
    plan, result = await asyncio.to_thread(space.apply, allow_hazards=PERMITTED)
    assert [d.summary for d in plan.diagnostics if d.severity == "error"] == []
    assert [s.error for s in result.steps if s.error] == []


@pytest.mark.matrix
async def test_a_bucket_keeps_its_revisions(
    tmp_path: Path,
    clean_hub_leaf: Sandbox,
    contexts: dict[str, JetStreamContext],
) -> None:
    """Values, history, deletions and revisions are the same in the new domain."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.write(kv=[{"bucket": "CONFIG", "history": 3, "domain": "leaf"}])
    await apply(space)
    old = await contexts["leaf"].key_value("CONFIG")
    for number in range(5):
        await old.put("a", b"%d" % number)
        await old.put(f"b.{number}", b"x")
    await old.delete("b.1")
    await old.purge("b.2")
    revision = await old.put("last", b"y")
    before = content(clean_hub_leaf, "leaf", "KV_CONFIG")
    space.write(
        kv=[{"bucket": "CONFIG", "history": 3, "domain": "hub"}],
        relocate=[{"from": "leaf/kv/CONFIG", "to": "hub/kv/CONFIG"}],
    )
    await apply(space)

    assert content(clean_hub_leaf, "hub", "KV_CONFIG") == before
    assert content(clean_hub_leaf, "leaf", "KV_CONFIG") == []
    new = await contexts["hub"].key_value("CONFIG")
    assert ((await new.get("a")).value, (await new.get("last")).revision) == (b"4", revision)
    with pytest.raises(KeyNotFoundError):
        await new.get("b.1")
    assert await new.update("last", b"z", revision) == revision + 1
    assert (await asyncio.to_thread(space.plan)).steps == []


@pytest.mark.matrix
async def test_an_object_store_keeps_its_objects(
    tmp_path: Path,
    clean_hub_leaf: Sandbox,
    contexts: dict[str, JetStreamContext],
) -> None:
    """Objects, replaced and deleted ones included, are the same in the new domain."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.write(object_stores=[{"bucket": "ASSETS", "domain": "leaf"}])
    await apply(space)
    old = await contexts["leaf"].object_store("ASSETS")
    for payload in (b"first" * 50_000, b"second" * 50_000):
        await old.put("logo", payload)
    await old.put("gone", b"x" * 1_000)
    await old.delete("gone")
    before = content(clean_hub_leaf, "leaf", "OBJ_ASSETS")
    space.write(
        object_stores=[{"bucket": "ASSETS", "domain": "hub"}],
        relocate=[{"from": "leaf/object_store/ASSETS", "to": "hub/object_store/ASSETS"}],
    )
    await apply(space)

    assert content(clean_hub_leaf, "hub", "OBJ_ASSETS") == before
    new = await contexts["hub"].object_store("ASSETS")
    assert (await new.get("logo")).data == b"second" * 50_000
    with pytest.raises(ObjectNotFoundError):
        await new.get("gone")
    assert (await asyncio.to_thread(space.plan)).steps == []
