"""The KV backend: its bucket, and torn, refused, late and unanswered writes."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import asdict

from jsplan.address import STATE_TAG, Address
from jsplan.config.model import Connection, Domain
from jsplan.errors import LeaseLostError, StateError, StateLockedError
from jsplan.sandbox import Sandbox
from jsplan.state import LockInfo, State
from jsplan.state.bucket import Bucket
from jsplan.state.kv import KvBackend
from jsplan.state.lease import clock
from jsplan.units import SECOND
from tests.conftest import PROGRAM
from tests.state.test_backends import put
from tests.support.buckets import keys, kv_backend, make_bucket, new_bucket, revision, value
from tests.support.raw import Raw
from tests.support.state import entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from jsplan.sandbox import Server
    from tests.conftest import MakeHubLeaf, MakeServer

pytestmark = pytest.mark.matrix

A, B = Address("hub", "stream", "A"), Address("hub", "stream", "B")
#: Large enough for a few parts, and hard to compress.
NOISE = "".join(f"{number * 2654435761 % 4294967296:08x}" for number in range(80_000))

#: A user without credentials that may read the bucket S and manage streams, and one for the test.
READER = """
no_auth_user: reader
authorization { users: [
    {user: all, password: all}
    {user: reader, password: r, permissions: {publish: {allow: "$JS.API.>"}, subscribe: "_INBOX.>"}}
] }
"""


@pytest.fixture
def bucket() -> str:
    """The name of a bucket that does not exist."""
    return new_bucket()


@pytest.fixture
def raw(server: Server) -> Iterator[Raw]:
    """A client beside jsplan."""
    with Raw(server.url) as raw:
        yield raw


async def write_session(backend: KvBackend, *changes: dict[str, Any]) -> State:
    """Run one session under the lock."""
    async with backend.lock(LockInfo.for_this_process("apply"), 10 * SECOND):
        state = await backend.read()
        await backend.start(state)
        backend.append(state, *changes)
        await backend.finish(state)
        return state


# --- The bucket


async def test_the_created_bucket(
    server: Server, bucket: str, raw: Raw, server_version: tuple[int, ...]
) -> None:
    """The bucket has history, and TTLs of single messages where the server knows them.

    There are no delete markers: an expired lock is gone.
    """
    backend = kv_backend(server, bucket)
    await write_session(backend, put(A))
    await backend.close()
    config = raw.config(f"KV_{bucket}")

    assert config["subjects"] == [f"$KV.{bucket}.>"]
    assert (config["max_msgs_per_subject"], config["discard"], config["storage"]) == (
        10,
        "new",
        "file",
    )
    assert (config["deny_delete"], config["allow_rollup_hdrs"], config["allow_direct"]) == (
        True,
        True,
        True,
    )
    assert config.get("allow_msg_ttl", False) is (server_version >= (2, 11))
    assert "subject_delete_marker_ttl" not in config
    assert (config["max_age"], config["num_replicas"]) == (0, 1)


async def test_the_content_of_the_bucket(server: Server, bucket: str, raw: Raw) -> None:
    """The bucket has document, lock and journal during a session, and the document after it."""
    backend = kv_backend(server, bucket, environment="prod")
    info = LockInfo.for_this_process("apply")
    async with backend.lock(info, 0):
        state = await backend.read()
        await backend.start(state)
        backend.append(state, put(A))
        await backend.flush()
        during = keys(raw, bucket)
        lock = json.loads(value(raw, bucket, "_lock.shop.prod"))
        await backend.finish(state)
    await backend.close()

    assert during == ["_journal.shop.prod.1.1", "_journal.shop.prod.1.2", "_lock.shop.prod"]
    assert lock == {"lock": asdict(info), "lease": 60.0}
    assert set(keys(raw, bucket)) - {"_lock.shop.prod"} == {"shop.prod"}
    assert value(raw, bucket, "_lock.shop.prod") == b""
    assert json.loads(value(raw, bucket, "shop.prod")) == state.to_json()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"max_age": 3_600_000_000_000}, "its ttl would delete the state"),
        ({"max_msg_size": 1000}, "at most 1000 bytes"),
    ],
)
async def test_a_bucket_that_cannot_keep_state(
    server: Server, bucket: str, raw: Raw, fields: dict[str, Any], why: str
) -> None:
    """A bucket that deletes values, or takes only small ones, is refused before a write."""
    make_bucket(raw, bucket, **fields)
    backend = kv_backend(server, bucket)
    with pytest.raises(StateError, match=why):
        await write_session(backend, put(A))
    await backend.close()

    assert keys(raw, bucket) == []


async def test_a_bucket_made_by_hand_is_marked(server: Server, bucket: str, raw: Raw) -> None:
    """The first state in an existing bucket adds a tag and changes nothing else."""
    make_bucket(raw, bucket, metadata={"team": "ops"}, max_msgs_per_subject=5)
    before = raw.config(f"KV_{bucket}")
    for _ in range(2):
        backend = kv_backend(server, bucket)
        await write_session(backend, put(A))
        await backend.close()
    after = raw.config(f"KV_{bucket}")

    assert {"team": "ops", STATE_TAG[0]: STATE_TAG[1]}.items() <= after["metadata"].items()
    assert {**after, "metadata": {}} == {**before, "metadata": {}}


async def test_a_bucket_with_small_values(server: Server, bucket: str, raw: Raw) -> None:
    """Documents and journals are split into parts that the bucket takes."""
    make_bucket(raw, bucket, max_msg_size=8192)
    backend = kv_backend(server, bucket)
    await write_session(backend, put(A, applied_at=NOISE[:100_000]))
    result = await backend.read()
    await backend.close()

    assert result.resources == {A: entry(applied_at=NOISE[:100_000])}


@pytest.mark.parametrize("is_paused", [True, False], ids=["paused", "no such domain"])
async def test_a_domain_that_does_not_answer(make_server: MakeServer, is_paused: bool) -> None:
    """An unanswered read or lock is never taken for an empty state or a free lock."""
    server = make_server()
    backend = kv_backend(server, "S", js_domain=None if is_paused else "nowhere", timeout=SECOND)
    if is_paused:
        await write_session(backend, put(A))
        server.pause()
    for step in (backend.read(), backend.lock(LockInfo.for_this_process("apply"), 0).__aenter__()):
        with pytest.raises(StateError) as error:
            await step
        assert not isinstance(error.value, StateLockedError)
    server.resume()
    await backend.close()


@pytest.mark.parametrize("js_domain", [None, "main"], ids=["own prefix", "prefix of the domain"])
async def test_a_user_that_may_not_write(make_server: MakeServer, js_domain: str | None) -> None:
    """A user that may only read the bucket gets no lock, and an error that names the subject."""
    server = make_server(domain="main", extra=READER)
    with Raw(server.url, "all", "all") as raw:
        make_bucket(raw, "S")
    backend = kv_backend(server, "S", js_domain=js_domain, timeout=30 * SECOND)
    # No deadline ends the wait: only the denial does.
    with pytest.raises(StateError, match="does not permit this user to publish to") as error:
        await backend.lock(LockInfo.for_this_process("apply"), 300 * SECOND).__aenter__()
    await backend.close()

    assert "$KV.S._lock.shop" in f"{error.value} {error.value.hint or ''}"


async def test_a_lock_that_cannot_be_stored(make_server: MakeServer) -> None:
    """The timeout also ends the wait for a lock that no process holds."""
    mapping = 'mappings: {"$KV.S.>": "nowhere.>"}'
    server = make_server(extra=mapping)
    with Raw(server.url) as raw:
        make_bucket(raw, "S")
    backend = kv_backend(server, "S", lease=2 * SECOND)
    with pytest.raises(StateError, match="no process holds its lock, and it cannot be taken"):
        await backend.lock(LockInfo.for_this_process("apply"), 0).__aenter__()
    await backend.close()


async def test_a_server_that_is_stopped(make_server: MakeServer) -> None:
    """A failed connection is an error that names the bucket and the cause."""
    server = make_server()
    server.stop()
    backend = kv_backend(server, "S")
    with pytest.raises(
        StateError,
        match=r"cannot read the state shop in bucket S of domain there: .*cannot be reached",
    ) as error:
        await backend.read()
    await backend.close()
    assert error.value.hint


# --- Large documents


class SimulatedKill(Exception):
    """The end of a process by SIGKILL: nothing more runs."""


def kill_after_puts(monkeypatch: pytest.MonkeyPatch, puts: int) -> None:
    """Let a bucket be written `puts` times and not once more."""
    remaining = [puts]
    real_put, real_purge = Bucket.put, Bucket.purge

    async def put(
        bucket: Bucket, key: str, data: bytes, conditions: Mapping[str, str], *, timeout: float
    ) -> int:
        if remaining[0] <= 0:
            raise SimulatedKill
        remaining[0] -= 1
        return await real_put(bucket, key, data, conditions, timeout=timeout)

    async def purge(bucket: Bucket, pattern: str) -> None:
        if remaining[0] <= 0:
            raise SimulatedKill
        remaining[0] -= 1
        await real_purge(bucket, pattern)

    monkeypatch.setattr(Bucket, "put", put)
    monkeypatch.setattr(Bucket, "purge", purge)


async def test_a_large_write_that_is_torn(server: Server, bucket: str, raw: Raw) -> None:
    """A writer that dies leaves the old or the new state; the next session cleans up."""
    first, total = kv_backend(server, bucket), 0
    await write_session(first, put(A, applied_at=NOISE))
    await first.close()
    parts = sum(key.startswith("_part.") for key in keys(raw, bucket))
    assert parts > 1

    for puts in range(1, 40):
        completed = False
        with pytest.MonkeyPatch.context() as patch:
            kill_after_puts(patch, puts)
            dying = kv_backend(server, bucket)
            try:
                await write_session(dying, put(A, applied_at=f"{puts}{NOISE}"))
                completed = True
            except SimulatedKill:
                pass
            await dying.close()
        after = kv_backend(server, bucket)
        result = (await after.read()).resources[A].applied_at
        assert result in ({f"{puts}{NOISE}"} if completed else {NOISE, f"{puts}{NOISE}"}), puts
        # Remove the lock instead of waiting for the end of its lease.
        with Raw(server.url) as other:
            other.api_ok(
                f"$JS.API.STREAM.PURGE.KV_{bucket}", {"filter": f"$KV.{bucket}._lock.shop"}
            )
        await write_session(after, put(A, applied_at=NOISE))
        assert (await after.read()).resources[A].applied_at == NOISE
        await after.close()
        if completed:
            total = puts
            break
    assert total > parts + 3
    assert not [key for key in keys(raw, bucket) if key.startswith("_journal.")]


async def test_parts_are_removed_with_their_last_document(
    server: Server, bucket: str, raw: Raw
) -> None:
    """The parts of kept serials stay, and older ones are removed."""
    backend = kv_backend(server, bucket)
    for number in range(13):
        await write_session(backend, put(A, applied_at=f"{number}{NOISE}"))
    serials = {int(key.split(".")[2]) for key in keys(raw, bucket) if key.startswith("_part.")}
    oldest = await backend.read_previous(4)
    await backend.close()

    assert serials == set(range(4, 14))
    assert oldest.resources[A].applied_at == f"3{NOISE}"


async def test_a_part_is_missing(server: Server, bucket: str, raw: Raw) -> None:
    """A document with a missing part is damaged, and nothing is written over it."""
    backend = kv_backend(server, bucket)
    await write_session(backend, put(A, applied_at=NOISE))
    part = next(key for key in keys(raw, bucket) if key.startswith("_part.") and key.endswith(".2"))
    raw.api_ok(f"$JS.API.STREAM.PURGE.KV_{bucket}", {"filter": f"$KV.{bucket}.{part}"})
    head = value(raw, bucket, "shop")

    with pytest.raises(StateError, match=r"damaged: part 2 of \d+ is missing"):
        await backend.read()
    with pytest.raises(StateError, match="damaged"):
        await write_session(backend, put(B))
    await backend.close()
    assert value(raw, bucket, "shop") == head


async def test_a_hole_in_the_journal(server: Server, bucket: str, raw: Raw) -> None:
    """A journal with a missing part is damaged."""
    backend = kv_backend(server, bucket)
    async with backend.lock(LockInfo.for_this_process("apply"), 0):
        state = await backend.read()
        await backend.start(state)
        for address in (A, B):
            backend.append(state, put(address))
            await backend.flush()
    raw.api_ok(f"$JS.API.STREAM.PURGE.KV_{bucket}", {"filter": f"$KV.{bucket}._journal.shop.1.2"})

    with pytest.raises(StateError, match="part 2 of its journal is missing"):
        await backend.read()
    await backend.close()


async def test_a_journal_deleted_outside(server: Server, bucket: str, raw: Raw) -> None:
    """A journal deleted by another client counts as none; the next session cleans up."""
    backend = kv_backend(server, bucket)
    await write_session(backend, put(A))
    raw.api_ok(f"$KV.{bucket}._journal.shop.7.1", b"not a journal\n")
    with pytest.raises(StateError, match="damaged"):
        await backend.read()
    raw.publish(f"$KV.{bucket}._journal.shop.7.1", headers={"KV-Operation": "DEL"})
    raw.flush()

    assert set((await backend.read()).resources) == {A}
    await write_session(backend, put(B))
    assert set((await backend.read()).resources) == {A, B}
    await backend.close()
    assert not [key for key in keys(raw, bucket) if key.startswith("_journal.")]


async def test_keys_with_other_names_stay(server: Server, bucket: str, raw: Raw) -> None:
    """Keys with names that jsplan never uses are ignored, and stay."""
    backend = kv_backend(server, bucket)
    await write_session(backend, put(A))
    other_keys = {"_journal.shop.a.b", "_part.shop.a.b.c"}
    for key in other_keys:
        raw.api_ok(f"$KV.{bucket}.{key}", b"mine")

    await write_session(backend, put(B, applied_at=NOISE))
    assert set((await backend.read()).resources) == {A, B}
    await backend.close()
    assert other_keys <= set(keys(raw, bucket))


# --- Permission to write


async def test_a_document_written_past_the_lock(server: Server, bucket: str, raw: Raw) -> None:
    """A value that another client puts during a session is not overwritten."""
    backend = kv_backend(server, bucket)
    await write_session(backend, put(A))
    async with backend.lock(LockInfo.for_this_process("apply"), 0):
        state = await backend.read()
        await backend.start(state)
        backend.append(state, put(B))
        raw.api_ok(f"$KV.{bucket}.shop", b"{}")
        with pytest.raises(StateError, match="was written by a client that did not hold the lock"):
            await backend.finish(state)
    await backend.close()

    assert value(raw, bucket, "shop") == b"{}"
    assert [key for key in keys(raw, bucket) if key.startswith("_journal.shop.2.")]


async def test_a_lock_is_renewed(server: Server, bucket: str, raw: Raw) -> None:
    """A holder that works longer than its lease renews the lock and continues."""
    backend, other = kv_backend(server, bucket, lease=5 * SECOND), kv_backend(server, bucket)
    revisions = set()
    async with backend.lock(LockInfo.for_this_process("apply"), 0):
        state = await backend.read()
        await backend.start(state)
        end = clock() + 6
        while clock() < end:
            revisions.add(revision(raw, bucket, "_lock.shop"))
            with pytest.raises(StateLockedError):
                await other.lock(LockInfo.for_this_process("apply"), 0).__aenter__()
            backend.append(state, put(A))
            await backend.flush()
            await asyncio.sleep(0.3)
        assert backend.may_write(60.0) == 2.5
        await backend.finish(state)
    await asyncio.gather(backend.close(), other.close())

    assert len(revisions) >= 4


async def test_something_else_in_place_of_the_lock(server: Server, bucket: str, raw: Raw) -> None:
    """A value that is no lock of jsplan is neither free nor overwritten."""
    make_bucket(raw, bucket)
    raw.api_ok(f"$KV.{bucket}._lock.shop", b"mine")
    backend = kv_backend(server, bucket)
    with pytest.raises(StateError, match="is not a lock of jsplan"):
        await write_session(backend, put(A))
    with pytest.raises(StateError, match="not a lock: it is damaged: unexpected character"):
        await backend.unlock("mine")
    assert value(raw, bucket, "_lock.shop") == b"mine"
    raw.api_ok(f"$KV.{bucket}._lock.shop", {"lock": {}, "lease": 5})
    with pytest.raises(StateError, match=r"not a lock: .* the field \"id\" at \$.lock"):
        await backend.unlock("mine")
    await backend.close()


@pytest.mark.parametrize("lease", [1e308, -5, 0, "nan", None, True, [60]])
async def test_a_lock_with_an_impossible_lease(
    server: Server, bucket: str, raw: Raw, lease: Any
) -> None:
    """A lock with an impossible lease is neither awaited nor taken over."""
    make_bucket(raw, bucket)
    lock = {
        "lock": {"id": "x", "who": "a", "host": "b", "pid": 1, "operation": "c", "since": "d"},
        "lease": lease,
    }
    raw.api_ok(f"$KV.{bucket}._lock.shop", lock)
    backend = kv_backend(server, bucket)
    with pytest.raises(StateError, match="is not a lock of jsplan"):
        await write_session(backend, put(A))
    assert json.loads(value(raw, bucket, "_lock.shop") or b"") == lock
    await backend.close()


async def test_a_lock_that_was_removed(server: Server, bucket: str) -> None:
    """After `unlock` the old holder starts nothing, and its writes are refused."""
    backend, other = kv_backend(server, bucket), kv_backend(server, bucket)
    info = LockInfo.for_this_process("apply")
    async with backend.lock(info, 0):
        state = await backend.read()
        await backend.start(state)
        assert await other.unlock(info.id) == info
        backend.append(state, put(A))
        with pytest.raises(LeaseLostError, match="it was removed"):
            await backend.flush()
        with pytest.raises(LeaseLostError):
            backend.may_write(1.0)
        with pytest.raises(LeaseLostError):
            await backend.finish(state)
    assert (await other.read()).resources == {}
    await asyncio.gather(backend.close(), other.close())


# --- Values that jsplan did not write


def _head(data: bytes = b"", **more: Any) -> dict[str, Any]:
    head = {
        "kind": "state-in-parts",
        "format_version": "1.0",
        "workspace": "shop",
        "environment": None,
        "lineage": "l",
        "serial": 5,
    }
    return (
        head
        | {
            "encoding": "gzip",
            "parts": "5.ab",
            "count": 1,
            "bytes": 2,
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        | more
    )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"count": 2_000_000_000}, r"<= 1000000 at \$\.count"),
        ({"count": 1_000_000}, "part 1 of 1,000,000 is missing"),
        ({"count": "x"}, r"expected a whole number, got text at \$\.count"),
        ({"bytes": 1 << 50}, r"<= 536870912 at \$\.bytes"),
        ({"parts": "../x"}, r"expected a prefix of parts at \$\.parts"),
        ({"serial": 5.0}, r"expected a whole number, got a number at \$\.serial"),
    ],
)
async def test_a_head_with_impossible_values(
    server: Server, bucket: str, raw: Raw, more: dict[str, Any], words: str
) -> None:
    """A head must match its schema, and parts are read up to the first missing one."""
    make_bucket(raw, bucket)
    raw.api_ok(f"$KV.{bucket}.shop", _head(**more))
    backend = kv_backend(server, bucket)
    with pytest.raises(StateError, match=words):
        await backend.read()
    await backend.close()


@pytest.mark.parametrize("size", [2, 1_000_000])
async def test_parts_that_unpack_to_more(server: Server, bucket: str, raw: Raw, size: int) -> None:
    """Only as many bytes as the head says are unpacked, because kilobytes may become gigabytes."""
    make_bucket(raw, bucket)
    bomb = gzip.compress(b" " * 50_000_000)
    raw.api_ok(f"$KV.{bucket}._part.shop.5.ab.1", bomb)
    raw.api_ok(f"$KV.{bucket}.shop", _head(bomb, bytes=size))
    backend = kv_backend(server, bucket)
    with pytest.raises(StateError, match=f"not the expected {size:,} bytes"):
        await backend.read()
    await backend.close()


# --- Late and missing answers


async def test_answers_that_come_too_late(make_server: MakeServer) -> None:
    """Requests that a paused server runs late lose nothing and are not doubled."""
    server = make_server()
    backend = kv_backend(server, "S", lease=16 * SECOND)
    async with backend.lock(LockInfo.for_this_process("apply"), 0):
        state = await backend.read()
        await backend.start(state)
        server.pause()
        backend.append(state, put(A))
        flushing = asyncio.create_task(backend.flush())
        await asyncio.wait({flushing}, timeout=6)
        assert not flushing.done()
        server.resume()
        await flushing
        backend.append(state, put(B))
        await backend.flush()
        seen = await backend.read()
        await backend.finish(state)
    assert set(seen.resources) == {A, B}
    assert (await backend.read()).serial == 1
    async with backend.lock(LockInfo.for_this_process("apply"), 0):  # it was released
        pass
    await backend.close()


async def test_a_server_that_is_restarted(make_server: MakeServer) -> None:
    """A session continues over a new connection, under its lock."""
    server = make_server()
    backend = kv_backend(server, "S", lease=40 * SECOND)
    async with backend.lock(LockInfo.for_this_process("apply"), 0):
        state = await backend.read()
        await backend.start(state)
        backend.append(state, put(A))
        await backend.flush()
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        backend.append(state, put(B))
        await backend.finish(state)
    assert set((await backend.read()).resources) == {A, B}
    await backend.close()


async def test_a_bucket_behind_a_link_that_breaks(make_hub_leaf: MakeHubLeaf) -> None:
    """A holder that cannot renew its lease stops before another process may start."""
    sandbox = make_hub_leaf()
    backend = kv_backend(sandbox["leaf"], "S", js_domain="hub", lease=4 * SECOND)
    async with backend.lock(LockInfo.for_this_process("apply"), 0):
        state = await backend.read()
        await backend.start(state)
        sandbox["hub"].pause()
        backend.append(state, put(A))
        with pytest.raises(LeaseLostError, match="was not renewed for 4 s"):
            await backend.flush()
        with pytest.raises(LeaseLostError):
            backend.may_write(0.1)
    sandbox["hub"].resume()
    await backend.close()


@pytest.mark.timeout(180)
async def test_a_cluster_that_loses_the_leader_of_the_bucket(tmp_path: Path) -> None:
    """A session in a cluster continues under its lock without the leader of the bucket."""
    with Sandbox.cluster(binary=PROGRAM, folder=tmp_path / "cluster") as sandbox:
        await asyncio.to_thread(sandbox.start)
        servers = list(sandbox.servers.values())
        first = servers[0]
        backend = KvBackend.open_bucket(
            "S",
            Domain("there", "way", None, "$JS.API"),
            Connection(
                "way",
                url=",".join(server.url for server in servers),
                user=first.user,
                password=first.password,
            ),
            {},
            of=("shop", None),
            lease=60 * SECOND,
        )
        async with backend.lock(LockInfo.for_this_process("apply"), 0):
            state = await backend.read()
            await backend.start(state)
            backend.append(state, put(A))
            await backend.flush()
            with Raw(first.url, first.user, first.password, timeout=20) as raw:
                info = raw.api_ok("$JS.API.STREAM.INFO.KV_S")
            assert info["config"]["num_replicas"] == 3
            leader = next(
                server
                for server in servers
                if server.info()["server_name"] == info["cluster"]["leader"]
            )
            await asyncio.to_thread(leader.stop)
            backend.append(state, put(B))
            await backend.finish(state)
        assert set((await backend.read()).resources) == {A, B}
        await backend.close()
