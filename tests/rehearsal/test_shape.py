from __future__ import annotations

from pathlib import Path
from typing import Any

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.documents.plan import Step
from jsplan.facts.live import DomainFacts, LiveObject
from jsplan.rehearsal import layout as shapes
from jsplan.rehearsal.layout import build_rehearsal_layout
from jsplan.rehearsal.live_snapshot import Jetstream
from jsplan.sandbox.sites import Site

PROGRAMS = {"2.12.8": Path("/old"), "2.15.1": Path("/new")}


def jetstream(
    key: str,
    *,
    own: bool = False,
    account: str = "acc",
    server: dict[str, str] | None = None,
    **more: Any,
) -> Jetstream:
    info = more.pop("info", {})
    facts = DomainFacts(key, True, level=more.pop("level", 5), server=server or {}, info=info)
    return Jetstream(
        key,
        Domain(key, "c", key, f"$JS.{key}.API"),
        account,
        "root",
        own,
        facts,
        keys={key},
        **more,
    )


def stream(key: str, name: str, servers: list[str], **config: Any) -> LiveObject:
    leader, *others = servers
    cluster = {
        "name": "east",
        "leader": leader,
        "replicas": [{"name": other, "current": True} for other in others],
    }
    raw = {"name": name, "num_replicas": len(servers)} | config
    return LiveObject(Address(key, "stream", name), raw, "", {}, cluster)


def creating(key: str, name: str, **config: Any) -> Step:
    payload = {"name": name} | config
    return Step(
        "s1",
        f"{key}/stream/{name}",
        "stream.create",
        "",
        {"api": f"STREAM.CREATE.{name}", "payload": payload},
        {},
    )


def sites(*domains: Jetstream, steps: tuple[Step, ...] = ()) -> list[Site]:
    return [
        site for turn in build_rehearsal_layout(domains, steps, PROGRAMS).rounds for site in turn
    ]


def test_leaves_are_linked_to_the_domain_that_the_connection_leads_to() -> None:
    """The domain of the connected server is the hub of all others on that connection."""
    hubs = {
        site.name: site.hub
        for site in sites(jetstream("edge"), jetstream("hub", own=True), jetstream("shop"))
    }

    assert hubs == {"edge": "hub", "hub": None, "shop": "hub"}


def test_each_domain_gets_the_version_that_is_nearest_to_its_own() -> None:
    """A domain without a version gets a version by its API level."""
    domains = (
        jetstream("hub", version="2.15.0"),
        jetstream("edge", version="2.12.3"),
        jetstream("far", level=2),
        jetstream("new", level=5),
    )

    assert {site.name: str(site.binary) for site in sites(*domains)} == {
        "hub": "/new",
        "edge": "/old",
        "far": "/old",
        "new": "/new",
    }


def test_the_size_of_a_cluster() -> None:
    """The size of a cluster follows from the servers, or else from the plan."""
    for domain, steps, size in [
        (jetstream("hub", server={"name": "n1"}), (creating("hub", "A", num_replicas=3),), 1),
        (
            jetstream("hub", server={"name": "n1", "cluster": "east"}, advertised=3),
            (creating("hub", "A", num_replicas=5),),
            3,
        ),
        (
            jetstream("hub", server={"name": "n1", "cluster": "east"}),
            (creating("hub", "A", num_replicas=5),),
            5,
        ),
        (
            jetstream("hub", server={"name": "n1", "cluster": "east"}, advertised=20),
            (),
            shapes.MAX_CLUSTER_SIZE,
        ),
        (jetstream("hub", server={"name": "n1", "cluster": "east"}), (), 3),
        (jetstream("hub", streams=[stream("hub", "A", ["n1", "n2", "n3", "n4"])]), (), 4),
        (jetstream("hub"), (creating("hub", "A", num_replicas=3),), 3),
        (jetstream("hub"), (creating("hub", "A"),), 1),
    ]:
        [site] = sites(domain, steps=steps)

        assert (site.size, site.cluster is None) == (size, size == 1), domain


def test_tags_follow_from_live_streams() -> None:
    """Servers have the tags of their live streams; an unproven tag is given to all."""
    live = [
        stream("hub", "A", ["n1", "n2"], placement={"tags": ["ssd"]}),
        stream("hub", "B", ["n3"]),
    ]
    domain = jetstream("hub", server={"name": "n1", "cluster": "east"}, streams=live)
    steps = (
        creating("hub", "C", placement={"tags": ["ssd"]}, num_replicas=2),
        creating("hub", "D", placement={"tags": ["tape"]}),
    )

    shape = build_rehearsal_layout([domain], steps, PROGRAMS)

    assert shape.rounds[0][0].tags == (("ssd", "tape"), ("ssd", "tape"), ("tape",))
    assert shape.unproven == {"hub/stream/D": {"tape"}}


def test_the_account_has_the_limits_of_the_real_one() -> None:
    """Unlimited values are left out, and limits per tier cannot be configured."""
    limits = {
        "max_memory": 0,
        "max_storage": 5,
        "max_streams": -1,
        "max_consumers": -1,
        "max_ack_pending": 9,
        "memory_max_stream_bytes": 0,
        "storage_max_stream_bytes": 3,
        "max_bytes_required": True,
    }
    [site] = sites(jetstream("hub", info={"limits": limits}))
    [tiered] = sites(jetstream("hub", info={"limits": limits, "tiers": {"R1": {"limits": limits}}}))

    expected = {
        "max_mem": 0,
        "max_file": 5,
        "max_ack_pending": 9,
        "disk_max_stream_bytes": 3,
        "max_bytes_required": True,
    }
    assert site.accounts[0].limits == expected
    assert tiered.accounts[0].limits == {}


def test_a_fleet_is_rehearsed_in_turns() -> None:
    """Turns are bounded, every domain has one, and a leaf has its hub only in its turn."""
    domains = [jetstream("hub", own=True), *(jetstream(f"store-{n:03}") for n in range(1, 101))]

    turns = build_rehearsal_layout(domains, (), PROGRAMS).rounds

    assert [len(turn) for turn in turns] == [24, 24, 24, 24, 5]
    assert {site.hub for site in turns[0][1:]} == {"hub"}
    assert {site.hub for turn in turns[1:] for site in turn} == {None}
    assert {site.name for turn in turns for site in turn} == {domain.key for domain in domains}
