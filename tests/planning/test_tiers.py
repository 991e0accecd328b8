"""Accounts with limits by number of replicas: a plan refuses what the server refuses.

The cluster has a real operator, a JWT account with tiers, and three servers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.sandbox import Sandbox
from jsplan.sandbox.shapes import Layout, Node, PortOf, User
from tests.conftest import PROGRAM
from tests.support.jwt import UNLIMITED, Account, Operator
from tests.support.raw import Raw, delete_all_streams
from tests.support.workspaces import Space, errors, left_to_do, new_space

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.matrix

_OVERALL = ("mem_storage", "disk_storage", "streams", "consumer")
TIERS = {
    "R1": {
        "disk_storage": 10_000,
        "mem_storage": -1,
        "streams": 3,
        "consumer": 2,
        "max_ack_pending": 100,
    },
    "R3": {
        "disk_storage": 30_000,
        "mem_storage": 0,
        "streams": 2,
        "consumer": 3,
        "max_ack_pending": 0,
        "disk_max_stream_bytes": 25_000,
    },
}
NAMES = ("n1", "n2", "n3")


class TieredCluster:
    """A cluster of three servers, an account with tiers and the credentials of its user."""

    def __init__(self, folder: Path) -> None:
        self.operator = Operator()
        limits = {name: value for name, value in UNLIMITED.items() if name not in _OVERALL}
        self.account: Account = self.operator.account("T", limits | {"tiered_limits": TIERS})
        self.creds = self.account.creds(folder, "t")
        self.system = self.operator.system.creds(folder, "sys")

    def layout(self, port_of: PortOf) -> Layout:
        """Return the servers."""
        routes = {name: port_of(f"{name}.routes") for name in NAMES}
        text = self.operator.configuration()
        login, system = User("T", None, None, self.creds), User("SYS", None, None, self.system)
        return Layout(
            "cluster",
            tuple(
                Node(
                    name,
                    port_of(name),
                    routes=(own, *(p for p in routes.values() if p != own)),
                    login=login,
                    system=system,
                    cluster="c",
                    extra=text,
                )
                for name, own in routes.items()
            ),
        )


@pytest.fixture(scope="module")
def tiered_cluster(tmp_path_factory: pytest.TempPathFactory) -> TieredCluster:
    """The operator, its account and its creds files."""
    return TieredCluster(tmp_path_factory.mktemp("creds"))


@pytest.fixture(scope="module")
def cluster(tiered_cluster: TieredCluster) -> Iterator[Sandbox]:
    """The running servers."""
    with Sandbox(tiered_cluster.layout, binary=PROGRAM) as sandbox:
        yield sandbox


@pytest.fixture
def raw(cluster: Sandbox, tiered_cluster: TieredCluster) -> Iterator[Raw]:
    """A connection as the user of the account, which has no stream."""
    server = cluster["n1"]

    def empty() -> bool:
        # Up to 2.14, a stream that is being scaled is deleted without an answer.
        with Raw(server.url, creds=tiered_cluster.creds, timeout=2) as other:
            delete_all_streams(other)
            tiers = other.api_ok("$JS.API.INFO")["tiers"].values()
            return not any(
                tier["streams"] or tier["reserved_storage"] or tier["reserved_memory"]
                for tier in tiers
            )

    server.wait_until(empty, "forget its streams", 60)
    with Raw(server.url, creds=tiered_cluster.creds, timeout=30) as raw:
        yield raw


@pytest.fixture
def space(cluster: Sandbox, tiered_cluster: TieredCluster, tmp_path: Path) -> Space:
    """A workspace that reaches the account with its creds file."""
    connections = {"main": {"url": cluster["n1"].url, "creds": str(tiered_cluster.creds)}}
    domains = {"main": {"connection": "main", "js_domain": None}}
    return new_space(tmp_path, connections=connections, domains=domains)


def stream(name: str, replicas: int = 1, **fields: Any) -> dict[str, Any]:
    """Build a stream with this many replicas."""
    return {"name": name, "num_replicas": replicas} | fields


#: By case: existing streams, the new or changed stream, and the error of the server, if any.
CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], int | None]] = {
    "storage of R1 in full": ([stream("A", max_bytes=5_000)], stream("B", max_bytes=5_000), None),
    "beside a stream without max_bytes": ([stream("A")], stream("B", max_bytes=10_000), None),
    "more storage than R1 has": ([stream("A", max_bytes=5_000)], stream("B", max_bytes=5_001), 10047),
    "storage of R3 counts once": ([stream("A", 3, max_bytes=10_000)], stream("B", 3, max_bytes=20_000), None),
    "more storage than R3 has": ([stream("A", 3, max_bytes=10_000)], stream("B", 3, max_bytes=20_001), 10047),
    "a stream of R3 that is too large": ([], stream("A", 3, max_bytes=25_001), 10122),
    "tiers do not share": ([stream("A", max_bytes=10_000)], stream("B", 3, max_bytes=25_000), None),
    "no memory in R3": ([], stream("A", 3, max_bytes=10, storage="memory"), 10028),
    "memory without bounds in R1": ([], stream("A", max_bytes=1 << 30, storage="memory"), None),
    "streams of R3 are used up": ([stream("A", 3, max_bytes=1), stream("B", 3, max_bytes=1)], stream("C", 3, max_bytes=1), 10027),
    "those of R1 are not": ([stream("A", 3, max_bytes=1), stream("B", 3, max_bytes=1)], stream("C", max_bytes=1), None),
    "no tier": ([], stream("A", 2, max_bytes=1), 10120),
    "to a tier that is full": (
        [stream("A", 3, max_bytes=1), stream("B", 3, max_bytes=1), stream("C", max_bytes=1)], stream("C", 3, max_bytes=1), 10027,
    ),
    "to a tier without the storage": (
        [stream("A", 3, max_bytes=25_000), stream("B", max_bytes=6_000)], stream("B", 3, max_bytes=6_000), 10047,
    ),
    "to a tier with capacity": ([stream("A", 3, max_bytes=20_000), stream("B", max_bytes=10_000)], stream("B", 3, max_bytes=10_000), None),
    "from a full tier": ([stream("A", 3, max_bytes=1), stream("B", 3, max_bytes=1)], stream("B", max_bytes=1), None),
    "to no tier": ([stream("A", max_bytes=1)], stream("A", 2, max_bytes=1), 10120),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_streams_against_tiers(space: Space, raw: Raw, case: str) -> None:
    """The plan has the error number of the server when the server refuses the call."""
    before, wanted, refusal = CASES[case]
    if before:
        # 2.10 counts a stream twice while it is being created, and refuses the second of two at
        # once.
        _, result = space.write(streams=before).apply(parallelism=1)
        assert result.exit_code == 0, [step for step in result.steps if step.status != "done"]
    existing = {body["name"] for body in before}
    rest = [body for body in before if body["name"] != wanted["name"]]

    plan = space.write(streams=[*rest, wanted]).plan()
    verb = "UPDATE" if wanted["name"] in existing else "CREATE"
    answer = raw.api(f"$JS.API.STREAM.{verb}.{wanted['name']}", wanted)

    assert answer.get("error", {}).get("err_code") == refusal
    assert [f"({refusal})" in text for text in errors(plan)] == ([True] if refusal else []), errors(
        plan
    )


@pytest.mark.parametrize(("replicas", "limit"), [(1, 2), (3, 3)])
def test_consumers_against_tiers(space: Space, raw: Raw, replicas: int, limit: int) -> None:
    """Each tier has its own number of consumers per stream."""
    body = stream("A", replicas, max_bytes=1)
    named = [{"name": f"C{number}", "durable_name": f"C{number}"} for number in range(limit + 1)]
    assert space.write(streams=[body | {"consumers": named[:limit]}]).apply()[1].exit_code == 0

    plan = space.write(streams=[body | {"consumers": named}]).plan()
    answer = raw.api(
        f"$JS.API.CONSUMER.CREATE.A.C{limit}",
        {"stream_name": "A", "config": named[limit], "action": "create"},
    )

    assert answer["error"]["err_code"] == 10026
    assert [
        f"max_consumers of the account is {limit} per stream" in text for text in errors(plan)
    ] == [True]


@pytest.mark.parametrize(("replicas", "asked", "default"), [(1, 101, 100), (3, 5_000, 1_000)])
def test_unacknowledged_messages_against_tiers(
    space: Space, raw: Raw, replicas: int, asked: int, default: int
) -> None:
    """The limit and the default of max_ack_pending are those of the tier of the stream."""
    body = stream("A", replicas, max_bytes=1)
    consumers: list[dict[str, Any]] = [{"name": "C", "ack_policy": "explicit"}]
    plan, result = space.write(streams=[body | {"consumers": consumers}]).apply()
    assert result.exit_code == 0
    assert {
        (c.change.after or {}).get("max_ack_pending")
        for c in plan.resource_changes
        if c.type == "consumer"
    } == {default}
    assert left_to_do(space.plan()) == []

    consumers.append({"name": "D", "ack_policy": "explicit", "max_ack_pending": asked})
    plan = space.write(streams=[body | {"consumers": consumers}]).plan()
    config = consumers[1] | {"durable_name": "D"}
    answer = raw.api(
        "$JS.API.CONSUMER.CREATE.A.D", {"stream_name": "A", "config": config, "action": "create"}
    )

    assert ("error" in answer) == bool(errors(plan)) == (replicas == 1), (answer, errors(plan))


def test_unmanaged_streams_are_noticed_in_every_tier(space: Space, raw: Raw) -> None:
    """The plan finds an unmanaged stream with the same subject in any tier."""
    raw.api_ok(
        "$JS.API.STREAM.CREATE.THEIRS", stream("THEIRS", 3, max_bytes=1, subjects=["theirs"])
    )

    plan = space.write(streams=[stream("OURS", max_bytes=1, subjects=["theirs"])]).plan()

    assert errors(plan) == ['subjects: "theirs" overlaps with main/stream/THEIRS (10065)']
