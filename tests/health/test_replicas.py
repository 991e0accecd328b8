"""Streams and consumers of a cluster that lost a server: status, drift and plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import Address
from jsplan.facts.live import LiveObject
from jsplan.facts.reader import MIN_STREAMS
from jsplan.health import describe_cluster, find_breaches
from jsplan.sandbox import Sandbox
from tests.conftest import PROGRAM
from tests.support.process import jsplan
from tests.support.raw import Raw
from tests.support.workspaces import Space

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.sandbox import Server

THREE = ("n1", "n2", "n3")


@pytest.fixture
def cluster() -> Iterator[Sandbox]:
    """A cluster of three servers."""
    with Sandbox.cluster(binary=PROGRAM) as sandbox:
        yield sandbox


def find_leader(raw: Raw, name: str) -> str:
    """Return the key of the server that leads the stream, or the consumer `STREAM.CONSUMER`."""
    info = raw.api_ok(f"$JS.API.{'CONSUMER' if '.' in name else 'STREAM'}.INFO.{name}")
    return str(info["cluster"]["leader"]).removesuffix("-server")


@pytest.mark.matrix
def test_a_server_that_is_down(cluster: Sandbox, tmp_path: Path) -> None:
    """A replicated object is critical; one without servers is named, and ends no command.

    They are so many that a list is read, which shows streams without servers as empty.
    """
    ack, singles = {"ack_policy": "explicit"}, [f"P{n}" for n in range(8)]
    consumers = [{"name": "C"} | ack, *({"name": n, "num_replicas": 1} | ack for n in singles)]
    streams = [{"name": "ALL", "num_replicas": 3, "subjects": ["all"], "consumers": consumers}]
    streams += [{"name": f"ONE{n}", "subjects": [f"one.{n}"]} for n in range(MIN_STREAMS)]
    with Raw(cluster["n1"].url, cluster["n1"].user, cluster["n1"].password) as raw:
        # Write a workspace on one server of the cluster.
        server = cluster["n1"]
        connection = {"url": server.url, "user": server.user, "password": server.password}
        base = {"jsplan": 1, "workspace": "test", "connections": {"main": connection}}
        domains = {"main": {"connection": "main", "js_domain": None}}
        space = Space(tmp_path, base | {"domains": domains, "defaults": {"domain": "main"}}).write(
            streams=streams
        )
        _, result = space.apply()
        assert result.exit_code == 0, [step.error for step in result.steps]
        raw.publish("all", b"1")
        # The cluster places them at random; eight are never all on one server in practice.
        down = next(key for name in singles if (key := find_leader(raw, f"ALL.{name}")) != "n1")
        alone = {f"ONE{n}" for n in range(MIN_STREAMS) if find_leader(raw, f"ONE{n}") == down}
        lost_consumers = {name for name in singles if find_leader(raw, f"ALL.{name}") == down}
    healthy = jsplan(tmp_path, "status")
    cluster[down].stop()
    cluster["n1"].wait_until(lambda: sees_loss(cluster["n1"], "ALL", alone), "notice the loss", 60)

    status, drift, plan = (
        jsplan(tmp_path, command, "-v") for command in ("status", "drift", "plan")
    )
    streams[0]["retention"] = "interest"
    space.write(streams=streams)
    change = jsplan(tmp_path, "plan", "--target", "main/stream/ALL")

    assert "CRITICAL" not in healthy.text
    assert healthy.code == 0, healthy.text
    assert status.code == 2, status.text
    assert f"main/stream/ALL: {down}-server offline" in status.text
    assert drift.code == 2, drift.text
    assert f"main/stream/ALL: {down}-server offline" in drift.text
    for name in alone:
        lost = f"main/stream/{name}"
        assert f"{lost}: exists but cannot be read" in status.text
        assert f"{lost}: no server that has it answers" in drift.text
        assert f"{lost}: exists but cannot be read: stream is offline [JS415]" in plan.text
    for name in lost_consumers:
        lost = f"main/consumer/ALL/{name}"
        assert f"{lost}: exists but cannot be read: consumer is offline [JS415]" in plan.text
    assert change.code == 1, change.text
    assert any(
        f"consumer {name} of stream ALL cannot be read" in change.text for name in lost_consumers
    )
    assert "No server that has it answers. Start one of them" in plan.text
    assert plan.code == 1


def sees_loss(server: Server, replicated: str, alone: set[str]) -> bool:
    """Return whether the cluster has noticed that a server is down."""
    # INFO gets no answer during an election; a connection that timed out cannot be used again.
    with Raw(server.url, server.user, server.password, timeout=2) as raw:
        info = raw.api(f"$JS.API.STREAM.INFO.{replicated}")
        lost = [raw.api(f"$JS.API.STREAM.INFO.{name}").get("error", {}) for name in alone]
        consumer = raw.api(f"$JS.API.CONSUMER.INFO.{replicated}.C")
    stream = info.get("cluster") or {}
    return (
        any(peer.get("offline") for peer in stream.get("replicas") or ())
        and "leader" in stream
        and all(error.get("err_code") == 10118 for error in lost)
        and "leader" in (consumer.get("cluster") or {})
    )


def make_object(cluster: dict[str, Any], **config: Any) -> LiveObject:
    """Return a stream with this `cluster` in its INFO."""
    raw = {"name": "A", "num_replicas": 3} | config
    return LiveObject(Address("main", "stream", "A"), raw, "", {"messages": 0}, cluster)


def make_peers(*names: str, **fields: Any) -> list[dict[str, Any]]:
    """Return peers of a cluster."""
    return [{"name": name, "current": True, "active": 5} | fields for name in names]


@pytest.mark.parametrize(
    ("cluster", "cause"),
    [
        ({"name": "c", "leader": "n1", "replicas": make_peers("n2", "n3")}, ""),
        ({"leader": "n1"}, ""),
        ({"name": "n1", "leader": "n1"}, ""),
        ({"name": "c", "leader": "n1", "replicas": make_peers("n2")}, "2 of 3 replicas"),
        ({"name": "c", "replicas": make_peers(*THREE)}, "no leader"),
        (
            {"name": "c", "leader": "n1"}
            | {"replicas": [*make_peers("n2"), *make_peers("n3", offline=True)]},
            "n3 offline",
        ),
        (
            {"name": "c", "replicas": [*make_peers("n1"), *make_peers("n2", "n3", offline=True)]},
            "no leader, n2, n3 offline",
        ),
        ({"name": "c", "leader": "n1", "replicas": make_peers("n2"), "desired": {"name": "c"}}, ""),
        ({"name": "c", "replicas": make_peers("n1"), "desired": {"name": "c"}}, ""),
    ],
)
def test_the_cause_of_a_breach(cluster: dict[str, Any], cause: str) -> None:
    """A lost leader or replica is a breach; a single server and a move under way are none."""
    found = [breach.cause for breach in find_breaches(make_object(cluster), 0)]

    assert found == ([cause] if cause else [])


@pytest.mark.parametrize(
    "metadata", [{"io.nats.monitor.enabled": "false"}, {"io.nats.monitor.peer-expect": "2"}]
)
def test_metadata_decides(metadata: dict[str, str]) -> None:
    """Thresholds that are switched off, or say something else, replace the default."""
    cluster = {"name": "c", "leader": "n1", "replicas": make_peers("n2")}

    assert find_breaches(make_object(cluster, metadata=metadata), 0) == []


def test_the_element_of_status() -> None:
    """The leader is the first replica; a move names its goal and its reason."""
    peers = make_peers("n2", current=False, lag=7)
    desired = {"replicas": [{"name": "n1"}, {"name": "n2"}], "status": {"description": "waiting"}}
    live = make_object({"name": "c", "leader": "n1", "replicas": peers, "desired": desired})
    live.raw["placement"] = {"tags": ["az:1"]}

    assert describe_cluster(live) == {
        "name": "c",
        "leader": "n1",
        "replicas": [
            {
                "name": "n1",
                "leader": True,
                "current": True,
                "offline": False,
                "lag": 0,
                "active": 0,
            },
            {"name": "n2", "leader": False, "current": False, "offline": False, "lag": 7}
            | {"active": 5},
        ],
        "placement": {"cluster": None, "tags": ["az:1"]},
        "desired": {"replicas": ["n1", "n2"], "reason": "waiting"},
    }
    assert describe_cluster(make_object({"leader": "n1"})) is None
