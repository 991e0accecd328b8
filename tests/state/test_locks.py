"""Locks between processes: one holder at a time, and no write after a lost lease."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.units import SECOND
from tests.support.buckets import make_bucket, new_bucket
from tests.support.raw import Raw
from tests.support.remote import LOCK_TIMEOUT, RemoteBackend
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix

PUT = '{"domain": {"key": "hub", "server": {"name": "%s"}}}'


def kv(server: Server, *, lease: float = 60, ttl: bool = True) -> dict[str, Any]:
    """A new bucket. Without `ttl` its locks end by the clock, as on servers before 2.11.

    `lease` is in seconds.
    """
    bucket = new_bucket()
    if not ttl:
        with Raw(server.url) as raw:
            make_bucket(raw, bucket)
    return {"kind": "kv", "url": server.url, "bucket": bucket, "lease": int(lease * SECOND)}


@pytest.fixture(params=["local", "kv", "kv-without-ttl"])
def location(request: pytest.FixtureRequest, tmp_path: Path, server: Server) -> dict[str, Any]:
    """The location of the state, as other processes open it."""
    if request.param == "local":
        return {"kind": "local", "path": str(tmp_path / "state.json")}
    return kv(server, ttl=request.param == "kv")


def compete_for_lock(location: dict[str, Any], rounds: int, inside: Path) -> None:
    """Let two processes take the lock `rounds` times each, and write a serial each time."""
    with RemoteBackend(location) as first, RemoteBackend(location) as other:
        for remote in (first, other):
            remote.begin(f"take_often {rounds} {inside}")
        assert [first.end(), other.end()] == [f"won {rounds}"] * 2
    with RemoteBackend(location) as last:
        assert last.do("lock") == "ok"
        assert last.do("start") == "ok"
        assert last.do("append " + PUT % "last") == "ok"
        assert last.do("finish") == "ok"
        assert last.do("serial") == str(2 * rounds + 1)


def test_two_processes_compete_for_the_lock(location: dict[str, Any], tmp_path: Path) -> None:
    """Two processes never hold the lock together, and no serial is lost or written twice."""
    compete_for_lock(location, 10, tmp_path / "inside")


@pytest.mark.soak
def test_two_processes_compete_two_hundred_times(location: dict[str, Any], tmp_path: Path) -> None:
    """The same for two hundred locks."""
    compete_for_lock(location, 100, tmp_path / "inside")


@pytest.mark.parametrize("ttl", [True, False], ids=["ttl", "clock"])
def test_the_lock_of_a_killed_holder_expires(ttl: bool, server: Server) -> None:
    """After SIGKILL the lock stays until the lease ends, and the journal is read then."""
    location = kv(server, lease=4, ttl=ttl)
    with RemoteBackend(location) as holder, RemoteBackend(location) as other:
        assert holder.do("lock") == "ok"
        assert holder.do("start") == "ok"
        assert holder.do("append " + PUT % "holder") == "ok"
        assert other.do("holder") == "apply"
        holder.kill()
        killed = time.monotonic()
        assert "is locked by" in other.do("lock")
        wait_until(lambda: other.do("holder") == "none", "the end of the lease", 30)
        assert other.do(f"lock {LOCK_TIMEOUT}") == "ok"
        waited_seconds = time.monotonic() - killed

        # One lease and its margin; the rest is for a busy machine.
        assert waited_seconds < 30, waited_seconds
        assert other.do("start") == "ok"
        assert other.do("names") == "holder"


def test_a_stopped_holder_is_fenced(server: Server) -> None:
    """A holder that was stopped for longer than its lease sends and writes nothing more."""
    location = kv(server, lease=4)
    with RemoteBackend(location) as holder, RemoteBackend(location) as other:
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


def test_a_stopped_holder_is_fenced_by_the_server(location: dict[str, Any], server: Server) -> None:
    """The server refuses the writes of a holder whose lock was removed.

    The lock of a file stays.
    """
    with RemoteBackend(location) as holder, RemoteBackend(location) as other:
        assert holder.do("lock") == "ok"
        assert holder.do("start") == "ok"
        holder.stop()
        if location["kind"] == "local":
            assert "is locked by" in other.do("lock")
            assert "StateLockedError" in other.do(f"break_lock {held_id(other)}")
            return
        with Raw(server.url) as raw:
            raw.api_ok(
                f"$JS.API.STREAM.PURGE.KV_{location['bucket']}",
                {"filter": f"$KV.{location['bucket']}._lock.shop"},
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
    """Return the id of the lock that another process holds, from the error message."""
    return other.do("lock").rpartition("lock ")[2].strip()
