"""Locks between processes: never two inside, free again after a death, and no write by one who slept through its lease."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.units import SECOND
from tests.support.buckets import make_bucket, new_bucket
from tests.support.raw import Raw
from tests.support.remote import LOCK_TIMEOUT, RemoteBackend

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix

PUT = '{"domain": {"key": "hub", "server": {"name": "%s"}}}'


def kv(server: Server, *, lease: float = 60, ttl: bool = True) -> dict[str, Any]:
    """A bucket; without `ttl` its locks are leases that only a clock ends, as on servers before 2.11. `lease` is seconds."""
    bucket = new_bucket()
    if not ttl:
        with Raw(server.url) as raw:
            make_bucket(raw, bucket)
    return {"kind": "kv", "url": server.url, "bucket": bucket, "lease": int(lease * SECOND)}


@pytest.fixture(params=["local", "kv", "kv-without-ttl"])
def where(request: pytest.FixtureRequest, tmp_path: Path, server: Server) -> dict[str, Any]:
    """Where the state is, for processes of their own."""
    if request.param == "local":
        return {"kind": "local", "path": str(tmp_path / "state.json")}
    return kv(server, ttl=request.param == "kv")


def compete_for_lock(where: dict[str, Any], rounds: int, inside: Path) -> None:
    """Two processes take the lock in turn, so many times each, and each time write a serial."""
    with RemoteBackend(where) as one, RemoteBackend(where) as other:
        for remote in (one, other):
            remote.begin(f"take_often {rounds} {inside}")
        assert [one.end(), other.end()] == [f"won {rounds}"] * 2
    with RemoteBackend(where) as last:
        assert last.do("lock") == "ok"
        assert last.do("start") == "ok"
        assert last.do("append " + PUT % "last") == "ok"
        assert last.do("finish") == "ok"
        assert last.do("serial") == str(2 * rounds + 1)


def test_two_processes_fight_for_the_lock(where: dict[str, Any], tmp_path: Path) -> None:
    """Never are both inside, and no serial is written twice or lost."""
    compete_for_lock(where, 10, tmp_path / "inside")


@pytest.mark.soak
def test_two_processes_fight_for_the_lock_two_hundred_times(
    where: dict[str, Any], tmp_path: Path
) -> None:
    """Two hundred times in all, with the same outcome."""
    compete_for_lock(where, 100, tmp_path / "inside")


@pytest.mark.parametrize("ttl", [True, False], ids=["ttl", "clock"])
def test_the_lock_of_a_killed_holder_frees_itself(ttl: bool, server: Server) -> None:
    """After kill -9 nobody gets in while the lease lasts, and somebody does soon after; what was journaled is there."""
    where = kv(server, lease=4, ttl=ttl)
    with RemoteBackend(where) as holder, RemoteBackend(where) as other:
        assert holder.do("lock") == "ok"
        assert holder.do("start") == "ok"
        assert holder.do("append " + PUT % "theirs") == "ok"
        holder.kill()
        killed = time.monotonic()
        assert "is locked by" in other.do("lock")
        assert other.do(f"lock {LOCK_TIMEOUT}") == "ok"
        waited = time.monotonic() - killed

        assert waited < 30, (
            waited
        )  # one lease and its margin; the rest is for a machine with other things to do
        assert other.do("start") == "ok"
        assert other.do("names") == "theirs"


def test_a_stopped_holder_is_fenced(server: Server) -> None:
    """SIGSTOP for longer than the lease: when it wakes up it may not begin a request, and no write of it reaches the state."""
    where = kv(server, lease=4)
    with RemoteBackend(where) as holder, RemoteBackend(where) as other:
        assert holder.do("lock") == "ok"
        assert holder.do("start") == "ok"
        assert holder.do("append " + PUT % "first") == "ok"
        holder.stop()
        assert other.do(f"lock {LOCK_TIMEOUT}") == "ok"
        assert other.do("start") == "ok"
        assert other.do("append " + PUT % "second") == "ok"
        holder.resume()

        assert "LeaseLostError" in holder.do("may_write 0.5")
        assert "LeaseLostError" in holder.do("append " + PUT % "too late")
        assert "LeaseLostError" in holder.do("finish")
        assert holder.do("unlock") == "ok"
        assert "is locked by" in holder.do("lock")
        assert other.do("finish") == "ok"
        assert other.do("names") == "second"


def test_a_stopped_holder_is_fenced_by_the_server(where: dict[str, Any], server: Server) -> None:
    """Also one whose own clock says nothing: its lock was taken away, and what it sends then is refused. A file's lock stays."""
    with RemoteBackend(where) as holder, RemoteBackend(where) as other:
        assert holder.do("lock") == "ok"
        assert holder.do("start") == "ok"
        holder.stop()
        if where["kind"] == "local":
            assert "is locked by" in other.do("lock")
            assert "StateLockedError" in other.do(f"break_lock {held_id(other)}")
            return
        with Raw(server.url) as raw:
            raw.api_ok(
                f"$JS.API.STREAM.PURGE.KV_{where['bucket']}",
                {"filter": f"$KV.{where['bucket']}._lock.shop"},
            )
        assert other.do(f"lock {LOCK_TIMEOUT}") == "ok"
        assert other.do("start") == "ok"
        assert other.do("append " + PUT % "second") == "ok"
        holder.resume()

        assert "LeaseLostError" in holder.do("append " + PUT % "too late")
        assert "LeaseLostError" in holder.do("finish")
        assert "LeaseLostError" in holder.do("may_write 1")
        assert other.do("finish") == "ok"
        assert other.do("names") == "second"


def held_id(other: RemoteBackend) -> str:
    """The id of the lock that somebody else holds, as the message says it."""
    return other.do("lock").rpartition("lock ")[2].strip()
