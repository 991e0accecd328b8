"""KV buckets on real servers: clients use those of jsplan, and jsplan adopts theirs."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import nats
import pytest
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue

from jsplan.options import DriftOptions
from jsplan.render import plan_text
from jsplan.workflows.drift import drift
from tests.render.texts import text_of
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, Space, hub_leaf_space, single_space

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from nats.js import JetStreamContext

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox, Server


def with_client(
    server: Server, work: Callable[[JetStreamContext], Awaitable[Any]], domain: str | None = None
) -> Any:
    """Run the work with a nats-py client of the server."""

    async def run() -> Any:
        client = await nats.connect(server.url, user=server.user, password=server.password)
        try:
            return await work(client.jetstream(domain=domain))
        finally:
            await client.close()

    return asyncio.run(run())


def changes(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return the actions by address, with `import` in front of an adoption."""
    return {
        c.address: (*(["import"] if c.change.importing else []), *c.change.actions)
        for c in plan.resource_changes
    }


def config(server: Server, stream: str) -> dict[str, Any]:
    """Return the live configuration, by a raw request."""
    with Raw(server.url, server.user, server.password) as raw:
        found: dict[str, Any] = raw.config(stream)
        return found


def is_converged(space: Space) -> bool:
    """Check whether the next plan is empty and nothing has drifted."""
    return (
        not space.plan().steps
        and not drift(space.load, DriftOptions(), RecordingObserver()).resource_drift
    )


@pytest.mark.matrix
def test_a_client_works_with_a_bucket_of_ours(tmp_path: Path, server: Server) -> None:
    """A nats-py client puts, gets, deletes and purges in a bucket of jsplan."""
    space = single_space(tmp_path, server).write(
        kv=[{"bucket": "CONFIG", "history": 3, "ttl": "1h", "max_value_size": "1KiB"}]
    )
    space.apply()

    async def use(js: JetStreamContext) -> None:
        bucket = await js.key_value("CONFIG")
        status = await bucket.status()
        assert (status.history, status.ttl) == (3, 3600)
        for value in (b"1", b"2", b"3", b"4"):
            await bucket.put("key", value)
        assert (await bucket.get("key")).value == b"4"
        assert [entry.value for entry in await bucket.history("key")] == [b"2", b"3", b"4"]
        await bucket.delete("key")
        with pytest.raises(KeyNotFoundError):
            await bucket.get("key")
        await bucket.purge("key")
        assert [entry.operation for entry in await bucket.history("key")] == ["PURGE"]
        await bucket.create("other", b"x")
        assert await bucket.keys() == ["other"]
        with pytest.raises(nats.js.errors.APIError):
            await bucket.put("key", b"x" * 2048)

    with_client(server, use)
    assert is_converged(space)


@pytest.mark.matrix
def test_a_bucket_of_nats_py_is_adopted_without_a_difference(
    tmp_path: Path, server: Server
) -> None:
    """A bucket of nats-py is adopted with its own choices and all its values."""

    async def make(js: JetStreamContext) -> None:
        bucket = await js.create_key_value(
            bucket="CONFIG", history=5, ttl=3600, description="settings", max_bytes=1024 * 1024
        )
        await bucket.put("key", b"value")
        await js.create_key_value(bucket="PLAIN")

    async def value(js: JetStreamContext) -> KeyValue.Entry:
        return await (await js.key_value("CONFIG")).get("key")

    with_client(server, make)
    before = [config(server, name) for name in ("KV_CONFIG", "KV_PLAIN")]
    described = {
        "bucket": "CONFIG",
        "history": 5,
        "ttl": "1h",
        "description": "settings",
        "max_bytes": "1MiB",
    }
    space = single_space(tmp_path, server).write(kv=[described, {"bucket": "PLAIN"}])

    plan, result = space.apply()

    assert changes(plan) == {
        "main/kv/CONFIG": ("import", "no-op"),
        "main/kv/PLAIN": ("import", "no-op"),
    }
    assert result.summary["imported"] == 2
    assert [config(server, name) for name in ("KV_CONFIG", "KV_PLAIN")] == before
    assert is_converged(space)
    assert with_client(server, value).value == b"value"


def test_a_changed_word_leaves_the_choices_of_the_client(tmp_path: Path, server: Server) -> None:
    """An update of a nats-py bucket changes what the files say and nothing else."""
    with_client(server, lambda js: js.create_key_value(bucket="CONFIG", history=2))
    before = config(server, "KV_CONFIG")
    space = single_space(tmp_path, server).write(kv=[{"bucket": "CONFIG", "history": 2}])
    space.apply()

    space.write(kv=[{"bucket": "CONFIG", "history": 2, "description": "settings"}]).apply()

    assert config(server, "KV_CONFIG") == before | {"description": "settings"}
    assert is_converged(space)


def test_a_field_that_the_files_name_is_managed(tmp_path: Path, server: Server) -> None:
    """A field that the files name is changed, and stays when its line is removed."""
    with_client(server, lambda js: js.create_key_value(bucket="CONFIG"))
    space = single_space(tmp_path, server).write(kv=[{"bucket": "CONFIG"}])
    space.apply()
    space.write(kv=[{"bucket": "CONFIG", "allow_direct": True}])

    assert [f.path for c in space.plan().resource_changes for f in c.change.fields] == [
        "allow_direct"
    ]
    space.apply()
    assert config(server, "KV_CONFIG")["allow_direct"] is True

    assert changes(space.write(kv=[{"bucket": "CONFIG"}]).plan()) == {"main/kv/CONFIG": ("no-op",)}


def test_the_terminal_shows_a_bucket_in_its_own_words(tmp_path: Path, server: Server) -> None:
    """The terminal shows buckets as history, ttl and compression, not as stream fields."""
    words = {
        "bucket": "CONFIG",
        "history": 2,
        "ttl": "1h",
        "max_value_size": "1KiB",
        "compression": True,
        "sources": [{"name": "A"}],
    }
    space = single_space(tmp_path, server).write(kv=[words])
    created = text_of(lambda console: plan_text.render(space.plan(), console))
    assert {line.strip() for line in created.splitlines() if line.strip().startswith("+ ")} == {
        "+ main/kv/CONFIG will be created",
        '+ sources["A"]',
        "+ opt_start_seq: 1",
        "+ history: 2",
        "+ ttl: 1h",
        "+ max_value_size: 1KiB",
        "+ compression: true",
        "+ storage: file",
        "+ num_replicas: 1",
    }
    space.apply()

    space.write(kv=[words | {"history": 5, "compression": False, "ttl": None}])
    changed = text_of(lambda console: plan_text.render(space.plan(), console))

    for line in ("history: 2 -> 5", "ttl: 1h -> unlimited", "compression: true -> false"):
        assert f"~ {line}\n" in changed
    assert "max_" not in changed
    assert "s2" not in changed


def test_a_plan_has_whole_stream_configurations(tmp_path: Path, server: Server) -> None:
    """A plan of a bucket has whole stream configurations as `before` and `after`."""
    space = single_space(tmp_path, server).write(kv=[{"bucket": "CONFIG", "history": 2}])
    space.apply()
    (change,) = space.write(kv=[{"bucket": "CONFIG", "history": 3}]).plan().resource_changes

    assert change.change.before is not None
    assert change.change.after is not None
    assert (
        change.change.before["max_msgs_per_subject"],
        change.change.after["max_msgs_per_subject"],
    ) == (2, 3)
    assert [(f.path, f.before, f.after, f.effect) for f in change.change.fields] == [
        ("history", 2, 3, "in_place")
    ]


def test_a_mirror_beside_an_origin_without_direct_reads(tmp_path: Path, server: Server) -> None:
    """A mirror of a bucket without direct reads is applied without a later change.

    The server decides whether it answers reads.
    """
    with_client(server, lambda js: js.create_key_value(bucket="CONFIG"))
    space = single_space(tmp_path, server).write(
        kv=[{"bucket": "COPY", "mirror": {"name": "CONFIG"}}]
    )

    assert space.apply()[1].exit_code == 0
    assert config(server, "KV_COPY")["mirror_direct"] is False
    assert is_converged(space)


def test_values_flow_from_bucket_to_bucket(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A mirror on the leaf has the hub's values; a bucket with sources has its own keys."""
    hub, leaf = clean_hub_leaf["hub"], clean_hub_leaf["leaf"]
    mirror = {"bucket": "CONFIG", "domain": "leaf", "mirror": {"name": "CONFIG", "domain": "hub"}}
    collected = {"bucket": "ALL", "domain": "hub", "sources": [{"name": "CONFIG"}]}
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(
        kv=[{"bucket": "CONFIG", "domain": "hub"}, mirror, collected]
    )
    space.apply()

    async def put(js: JetStreamContext) -> None:
        await (await js.key_value("CONFIG")).put("key", b"value")

    async def get(js: JetStreamContext) -> bytes | None:
        return (await (await js.key_value("ALL")).get("key")).value

    with_client(hub, put)
    for server, stream in ((hub, "KV_ALL"), (leaf, "KV_CONFIG")):
        with Raw(server.url, server.user, server.password) as raw:
            raw.wait_for(stream, 1)
    assert with_client(hub, get) == b"value"
    with Raw(leaf.url, leaf.user, leaf.password) as raw:
        assert (
            raw.api_ok("$JS.API.STREAM.MSG.GET.KV_CONFIG", {"last_by_subj": "$KV.CONFIG.key"})[
                "message"
            ]["data"]
            == "dmFsdWU="
        )
    assert is_converged(space)


@pytest.mark.matrix
def test_limit_markers_need_a_server_that_knows_them(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """On an older server the plan names the word that needs a newer one, with its place."""
    plan = (
        single_space(tmp_path, server)
        .write(kv=[{"bucket": "CONFIG", "limit_marker_ttl": "10m"}])
        .plan()
    )

    found = [d for d in plan.diagnostics if d.code == "JS413"]
    if server_version >= (2, 11):
        assert not found
        return
    assert [d.summary.split(" (")[0] for d in found] == ["limit_marker_ttl needs API level 1"]
    assert found[0].range is not None
    assert plan.errored


@pytest.mark.matrix
def test_every_word_converges_and_changes(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """A bucket with every word converges, as do a change of every word and one without any."""
    marker = {"limit_marker_ttl": "10m"} if server_version >= (2, 11) else {}
    all_words: dict[str, Any] = {
        "history": 5,
        "ttl": "1h",
        "max_value_size": "1KiB",
        "max_bytes": "1MiB",
        "description": "a",
        "compression": True,
        "republish": {"src": ">", "dest": "config.>"},
        "metadata": {"a": "b"},
        "placement": {"tags": []},
        "num_replicas": 1,
        "storage": "file",
    }
    changed: dict[str, Any] = {
        "history": 4,
        "ttl": "2h",
        "max_value_size": "2KiB",
        "max_bytes": "2MiB",
        "description": "b",
        "compression": False,
        "republish": {"src": ">", "dest": "other.>", "headers_only": True},
        "metadata": {"a": "c"},
    }
    space = single_space(tmp_path, server)
    for words in (
        all_words | marker,
        changed | marker,
        {},
        {"history": 1, "ttl": 0, "max_bytes": -1, "max_value_size": 0},
    ):
        _, result = space.write(kv=[{"bucket": "CONFIG"} | words]).apply(
            allow_hazards=("DELETES_MESSAGES", "IRREVERSIBLE")
        )
        assert result.exit_code == 0, result
        assert is_converged(space), words


def test_a_configuration_file_of_the_nats_cli_is_a_bucket(tmp_path: Path, server: Server) -> None:
    """A configuration file of the nats CLI is read as a bucket, and keys beside it win."""
    with_client(server, lambda js: js.create_key_value(bucket="CONFIG", history=5, ttl=60))
    (tmp_path / "config.json").write_text(
        json.dumps({"config": config(server, "KV_CONFIG"), "created": "2026-01-01T00:00:00Z"}),
        "utf-8",
    )
    space = single_space(tmp_path, server).write(
        kv=[{"bucket": "CONFIG", "config_file": "config.json"}]
    )
    assert changes(space.plan()) == {"main/kv/CONFIG": ("import", "no-op")}

    space.write(kv=[{"bucket": "CONFIG", "config_file": "config.json", "history": 6}])

    assert [f.path for c in space.plan().resource_changes for f in c.change.fields] == ["history"]


def test_unmanaged_buckets_are_listed_under_their_kinds(tmp_path: Path, server: Server) -> None:
    """Unmanaged buckets and object stores are drift under their own kinds."""

    async def make(js: JetStreamContext) -> None:
        await js.create_key_value(bucket="THEIRS")
        await js.create_object_store("THEIRS")

    with_client(server, make)
    space = single_space(tmp_path, server).write(kv=[{"bucket": "OURS"}])
    space.apply()

    assert [
        u.address for u in drift(space.load, DriftOptions(), RecordingObserver()).unmanaged
    ] == ["main/kv/THEIRS", "main/object_store/THEIRS"]
