"""Object stores on real servers: clients use those of jsplan, and jsplan adopts theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.resources.test_kv import changes, config, is_converged, with_client
from tests.support.workspaces import single_space

if TYPE_CHECKING:
    from pathlib import Path

    from nats.js import JetStreamContext

    from jsplan.sandbox import Server

DATA = bytes(range(256)) * 2000


@pytest.mark.matrix
def test_a_client_works_with_a_store_of_ours(tmp_path: Path, server: Server) -> None:
    """nats-py puts an object of several chunks, lists it, gets it back whole, and deletes it."""
    space = single_space(tmp_path, server).write(
        object_stores=[{"bucket": "ASSETS", "max_bytes": "10MiB", "ttl": "1h"}]
    )
    space.apply()

    async def use(js: JetStreamContext) -> None:
        store = await js.object_store("ASSETS")
        await store.put("file", DATA)
        assert [info.name for info in await store.list()] == ["file"]
        assert (await store.get("file")).data == DATA
        await store.delete("file")
        assert (await store.status()).ttl == 3600

    with_client(server, use)
    assert is_converged(space)


@pytest.mark.matrix
def test_a_store_of_nats_py_is_adopted_without_a_difference(tmp_path: Path, server: Server) -> None:
    """A store of nats-py is adopted with its configuration and its objects."""

    async def make(js: JetStreamContext) -> None:
        store = await js.create_object_store("ASSETS", description="files", ttl=3600)
        await store.put("file", DATA)

    async def data(js: JetStreamContext) -> bytes | None:
        return (await (await js.object_store("ASSETS")).get("file")).data

    with_client(server, make)
    before = config(server, "OBJ_ASSETS")
    space = single_space(tmp_path, server).write(
        object_stores=[{"bucket": "ASSETS", "description": "files", "ttl": "1h"}]
    )

    plan, _ = space.apply()

    assert changes(plan) == {"main/object_store/ASSETS": ("import", "no-op")}
    assert config(server, "OBJ_ASSETS") == before
    assert with_client(server, data) == DATA
    assert is_converged(space)


def test_a_store_that_a_client_sealed_is_neither_opened_nor_replaced(
    tmp_path: Path, server: Server
) -> None:
    """A store that a client sealed needs no change in the files."""
    space = single_space(tmp_path, server).write(object_stores=[{"bucket": "ASSETS"}])
    space.apply()

    async def seal(js: JetStreamContext) -> None:
        await (await js.object_store("ASSETS")).seal()  # type: ignore[no-untyped-call]

    with_client(server, seal)

    plan, _ = space.apply()
    assert changes(plan) == {"main/object_store/ASSETS": ("no-op",)}
    assert config(server, "OBJ_ASSETS")["sealed"] is True
    assert is_converged(space)
