"""Account limits on real servers: a plan refuses what the server would refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.facts.live import DomainFacts, Live
from jsplan.planning.account_limits import check_account_limits
from jsplan.planning.decide import decide
from jsplan.planning.model import PlanInputs, ResourceDecision
from jsplan.sandbox import Sandbox
from jsplan.sandbox.shapes import Layout, Node
from tests.conftest import PROGRAM
from tests.support.raw import Raw
from tests.support.state import load_context
from tests.support.workspaces import Space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Server
    from tests.conftest import MakeServer

ACCOUNT = "accounts {{ A: {{ users: [{{user: a, password: a}}, {{user: b, password: b}}], jetstream: {{ {limits} }} }} }}\nno_auth_user: a\n"  # noqa: E501


def limited(make_server: MakeServer, limits: str) -> Server:
    """Start a server whose account has these limits."""
    return make_server(extra=ACCOUNT.format(limits=limits))


def space_on(folder: Path, server: Server, **more: Any) -> Space:
    """Open a workspace with one domain on the server."""
    base = {
        "jsplan": 1,
        "workspace": "test",
        "connections": {"main": {"url": server.url}},
        "defaults": {"domain": "main"},
    }
    return Space(
        folder, base | {"domains": {"main": {"connection": "main", "js_domain": None}}} | more
    )


def errors(plan: Plan) -> list[tuple[str, str | None]]:
    """Return code and address of each error."""
    return [(d.code, d.address) for d in plan.diagnostics if d.severity == "error"]


def streams(*names: str, **fields: Any) -> list[dict[str, Any]]:
    """Build streams of these names with the same fields."""
    return [{"name": name} | fields for name in names]


@pytest.mark.matrix
def test_streams_are_counted_over_the_whole_plan(tmp_path: Path, make_server: MakeServer) -> None:
    """max_streams counts buckets and unmanaged streams, without the streams that are deleted."""
    server = limited(make_server, "max_streams: 3")
    space = space_on(tmp_path, server)
    with Raw(server.url) as raw:
        raw.create("THEIRS")

    plan = space.write(streams=streams("A", "B"), kv=[{"bucket": "C"}]).plan()
    assert errors(plan) == [("JS440", "main/**")]
    (found,) = [d for d in plan.diagnostics if d.severity == "error"]
    assert found.summary == "max_streams is 3: 1 used, 4 with this plan (10027)"
    assert plan.errored
    assert plan.steps == []

    assert space.write(streams=streams("A", "B")).apply()[1].exit_code == 0
    assert errors(space.write(streams=streams("A", "B", "C")).plan()) == [("JS440", "main/**")]
    assert errors(space.write(streams=streams("A", "C")).plan()) == []
    assert errors(space.write(streams=streams("A", "B")).plan()) == []


@pytest.mark.matrix
def test_reservations_are_added_up_per_storage(tmp_path: Path, make_server: MakeServer) -> None:
    """The sum of max_bytes may reach the limit of file or memory storage, and not exceed it."""
    space = space_on(tmp_path, limited(make_server, "max_file: 10000, max_mem: 5000"))
    within = [*streams("A", "B", max_bytes=5000), *streams("M", max_bytes=5000, storage="memory")]

    over = space.write(
        streams=[
            *streams("A", "B", max_bytes=5000),
            *streams("M", max_bytes=5001, storage="memory"),
        ]
    ).plan()
    assert errors(over) == [("JS441", "main/**")]
    assert "max_memory is 5,000 bytes: 0 bytes reserved" in next(
        d.summary for d in over.diagnostics
    )
    assert space.write(streams=within).apply()[1].exit_code == 0

    larger = space.write(streams=[*streams("A", max_bytes=5001), *within[1:]]).plan()
    (found,) = larger.diagnostics
    assert (
        found.summary
        == "max_storage is 10,000 bytes: 10,000 bytes reserved by max_bytes, 10,001 bytes with this plan (10047)"
    )
    assert errors(space.write(streams=[*within, *streams("ENDLESS")]).plan()) == [
        ("JS441", "main/**")
    ]
    moved = [
        *streams("A", max_bytes=4000),
        *streams("B", max_bytes=5000),
        *within[2:],
        *streams("C", max_bytes=1000),
    ]
    assert errors(space.write(streams=moved).plan()) == []


@pytest.mark.matrix
def test_streams_without_max_bytes_reserve_nothing(tmp_path: Path, make_server: MakeServer) -> None:
    """Streams without max_bytes leave capacity, also where a server counts each as -1."""
    server = limited(make_server, "max_file: 10000, max_mem: 5000")
    space = space_on(tmp_path, server)
    with Raw(server.url) as raw:
        for name in ("A", "B"):
            raw.create(name)
            raw.create(f"M{name}", storage="memory")
    wanted = [*streams("C", max_bytes=10_000), *streams("D", max_bytes=5000, storage="memory")]

    assert space.write(streams=[*wanted]).apply()[1].exit_code == 0


def test_a_full_store_is_named(tmp_path: Path) -> None:
    """A stream that the store of the server cannot take fails with the setting of the server."""
    limits = "max_memory_store: 5000, max_file_store: 5000"
    with Sandbox(
        lambda port_of: Layout("single", (Node("server", port_of("server"), limits=limits),)),
        binary=PROGRAM,
    ) as sandbox:
        space = space_on(tmp_path, sandbox["server"])
        for storage, setting in (("file", "max_file_store"), ("memory", "max_memory_store")):
            wanted = streams("A", storage=storage, max_bytes=5001)
            (failed,) = space.write(streams=wanted).apply()[1].steps

            assert f"max_bytes of all streams together exceed {setting}" in str(failed.error)


@pytest.mark.matrix
def test_the_server_refuses_the_same_configurations(
    tmp_path: Path, make_server: MakeServer
) -> None:
    """Configurations that the plan refuses are refused by the server with the same numbers."""
    server = limited(
        make_server, "max_file: 10000, max_streams: 2, max_consumers: 1, max_ack_pending: 100"
    )
    with Raw(server.url) as raw:
        assert (
            raw.api("$JS.API.STREAM.CREATE.A", {"name": "A", "max_bytes": 10001})["error"][
                "err_code"
            ]
            == 10047
        )
        raw.create("A", max_bytes=10000)
        assert raw.api("$JS.API.STREAM.CREATE.B", {"name": "B"})["error"]["err_code"] == 10047
        raw.create("B", storage="memory")
        assert (
            raw.api("$JS.API.STREAM.CREATE.C", {"name": "C", "storage": "memory"})["error"][
                "err_code"
            ]
            == 10027
        )
        consumer = {
            "durable_name": "C",
            "name": "C",
            "ack_policy": "explicit",
            "max_ack_pending": 101,
        }
        assert (
            raw.api("$JS.API.CONSUMER.CREATE.A.C", {"stream_name": "A", "config": consumer})[
                "error"
            ]["err_code"]
            == 10121
        )

    space = space_on(tmp_path, server)
    plan = space.write(
        streams=[
            {
                "name": "A",
                "max_bytes": 10000,
                "consumers": [{"name": "C", "ack_policy": "explicit", "max_ack_pending": 101}],
            }
        ]
    )
    assert errors(plan.plan()) == [("JS444", "main/consumer/A/C")]


@pytest.mark.matrix
def test_the_account_may_require_max_bytes_and_cap_it(
    tmp_path: Path, make_server: MakeServer
) -> None:
    """max_bytes that the account requires and limits is checked for each changed stream."""
    server = limited(
        make_server,
        "max_file: 100000, max_bytes_required: true, disk_max_stream_bytes: 1000, mem_max_stream_bytes: 10",
    )
    space = space_on(tmp_path, server)
    declared = [
        *streams("A"),
        *streams("B", max_bytes=1001),
        *streams("C", max_bytes=1000),
        *streams("M", max_bytes=11, storage="memory"),
    ]

    plan = space.write(streams=declared).plan()

    assert errors(plan) == [
        ("JS443", "main/stream/A"),
        ("JS443", "main/stream/B"),
        ("JS443", "main/stream/M"),
    ]
    assert all(d.range is not None for d in plan.diagnostics)
    assert space.write(streams=streams("C", max_bytes=1000)).apply()[1].exit_code == 0
    assert errors(space.write(streams=streams("C", max_bytes=-1)).plan()) == [
        ("JS443", "main/stream/C")
    ]


@pytest.mark.matrix
def test_consumers_are_counted_per_stream(tmp_path: Path, make_server: MakeServer) -> None:
    """max_consumers of the account applies to each stream, including unmanaged consumers."""
    server = limited(make_server, "max_consumers: 2")
    space = space_on(tmp_path, server)

    def write(*names: str) -> Space:
        consumers = [{"name": name, "ack_policy": "explicit"} for name in names]
        return space.write(
            streams=[{"name": "A", "consumers": consumers}, {"name": "B", "consumers": consumers}]
        )

    assert errors(write("C", "D", "E").plan()) == [
        ("JS442", "main/consumer/A/E"),
        ("JS442", "main/consumer/B/E"),
    ]
    assert write("C").apply()[1].exit_code == 0
    with Raw(server.url) as raw:
        raw.consumer("A", "X", ack_policy="none")

    plan = write("C", "D").plan()
    assert errors(plan) == [("JS442", "main/consumer/A/D")]
    assert (
        plan.diagnostics[0].summary
        == "max_consumers of the account is 2 per stream: A has 2, 3 with this plan (10026)"
    )
    assert errors(write("D").plan()) == []


@pytest.mark.matrix
def test_a_stream_of_2_15_has_at_most_a_thousand_consumers(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """A stream on level 5 without max_consumers takes at most 1,000 consumers."""
    consumers = [{"name": f"C{number}", "ack_policy": "explicit"} for number in range(1001)]
    space = space_on(tmp_path, server)

    plan = space.write(streams=[{"name": "A", "consumers": consumers}]).plan()
    assert errors(plan) == (
        [("JS442", "main/consumer/A/C999")] if server_version >= (2, 15) else []
    )
    assert (
        errors(
            space.write(
                streams=[{"name": "A", "max_consumers": 2000, "consumers": consumers}]
            ).plan()
        )
        == []
    )
    assert errors(space.write(streams=[{"name": "A", "consumers": consumers[:1000]}]).plan()) == []


@pytest.mark.matrix
def test_a_consumer_left_to_the_account_converges(tmp_path: Path, make_server: MakeServer) -> None:
    """A default max_ack_pending above the limit of the account becomes that limit."""
    space = space_on(tmp_path, limited(make_server, "max_ack_pending: 100"))
    consumers = [
        {"name": "C", "ack_policy": "explicit"},
        {"name": "D"},
        {"name": "E", "ack_policy": "all", "max_ack_pending": 7},
    ]
    declared = [
        {"name": "A", "consumers": consumers},
        {"name": "B", "consumer_limits": {"max_ack_pending": 50}, "consumers": consumers[:1]},
    ]

    plan, result = space.write(streams=declared).apply()

    assert result.exit_code == 0
    shown = {
        c.address: (c.change.after or {}).get("max_ack_pending")
        for c in plan.resource_changes
        if c.type == "consumer"
    }
    assert shown == {
        "main/consumer/A/C": 100,
        "main/consumer/A/D": None,
        "main/consumer/A/E": 7,
        "main/consumer/B/C": 50,
    }
    assert not space.plan().steps


def test_one_account_behind_two_domain_keys_counts_once(
    tmp_path: Path, make_server: MakeServer
) -> None:
    """Two domains of one account share its limits.

    They are the same account by `same_as`, by the same login, or by the name of the account.
    """
    server = limited(make_server, "max_streams: 2")

    def connection(user: str, **more: str) -> dict[str, str]:
        return {"url": server.url, "user": user, "password": user} | more

    plain = {"js_domain": None}
    ways: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (
            {"x": connection("a"), "y": connection("b")},
            {"x": {"connection": "x"} | plain, "y": {"connection": "y", "same_as": "x"} | plain},
        ),
        (
            {"x": connection("a"), "y": connection("a")},
            {"x": {"connection": "x"} | plain, "y": {"connection": "y"} | plain},
        ),
        (
            {"x": connection("a", account="A"), "y": connection("b", account="A")},
            {"x": {"connection": "x"} | plain, "y": {"connection": "y"} | plain},
        ),
    ]
    for connections, domains in ways:
        space = space_on(tmp_path, server, connections=connections, domains=domains)
        three = [
            {"name": "A", "domain": "x"},
            {"name": "B", "domain": "y"},
            {"name": "C", "domain": "y"},
        ]

        plan = space.write(streams=three).plan()

        assert errors(plan) == [("JS440", "x/**")]


def test_limits_of_another_domain_are_its_own(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """An account without limits accepts streams in two domains."""
    hub = clean_hub_leaf["hub"]
    connections = {"hub": {"url": hub.url, "user": hub.user, "password": hub.password}}
    space = space_on(
        tmp_path,
        hub,
        connections=connections,
        domains={"hub": {"connection": "hub"}, "leaf": {"connection": "hub"}},
    )
    declared = [
        {"name": f"S{number}", "domain": ["hub", "leaf"], "max_bytes": "1GiB"}
        for number in range(20)
    ]

    assert errors(space.write(streams=declared).plan()) == []


# --- accounts with tiers: JWT accounts, whose INFO has limits by number of replicas ---------------


def tiered(space: Space, tiers: dict[str, Any]) -> list[str]:
    """Return the findings for an empty account whose INFO has these tiers."""
    world = load_context(space.load)
    live = Live(
        domains={
            "main": DomainFacts(
                "main", reachable=True, level=5, info={"tiers": tiers, "limits": {"max_streams": 0}}
            )
        }
    )
    inputs = PlanInputs(world.workspace, world.topology, world.state, live)
    verdicts: dict[Any, ResourceDecision] = {
        address: decide(inputs, address) for address in world.workspace.resources
    }
    return [f"{d.code} {d.summary}" for d in check_account_limits(inputs, verdicts)]


def test_each_tier_has_limits_of_its_own(tmp_path: Path, server: Server) -> None:
    """Streams count in the tier of their replicas, and a missing tier is named."""
    limits = {"max_storage": 1000, "max_memory": -1, "max_streams": 1, "max_consumers": 1}
    tier = {"limits": limits, "streams": 0, "reserved_storage": 0, "reserved_memory": 0}
    space = space_on(tmp_path, server)
    fits = [*streams("A", max_bytes=1000), *streams("B", max_bytes=1000, num_replicas=3)]

    assert tiered(space.write(streams=fits), {"R1": tier, "R3": tier}) == []
    assert tiered(space, {"R1": tier}) == [
        "JS440 the account has no limits for streams with num_replicas 3 (10120)"
    ]
    assert tiered(
        space.write(streams=[*fits, *streams("C", num_replicas=3)]), {"R1": tier, "R3": tier}
    ) == [
        "JS440 max_streams is 1: 0 used, 2 with this plan (10027)",
        "JS441 max_storage is 1,000 bytes: 0 bytes reserved by max_bytes, 1,000 bytes with this plan (10047)",
    ]
    many = [{"name": "A", "num_replicas": 3, "consumers": [{"name": "C"}, {"name": "D"}]}]
    assert tiered(space.write(streams=many), {"R3": tier}) == [
        "JS442 max_consumers of the account is 1 per stream: A has 0, 2 with this plan (10026)"
    ]
