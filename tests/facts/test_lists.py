"""The lists of a server show what INFO shows, and reading through them misses no object."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import Address
from jsplan.config.model import Connection, Domain
from jsplan.facts.reader import MIN_CONSUMERS, MIN_INFOS, MIN_STREAMS
from jsplan.facts.refresh import list_live, read_live
from jsplan.jetstream import DomainApi, Pool
from jsplan.sandbox import Sandbox
from jsplan.units import SECOND
from tests.conftest import PROGRAM
from tests.support.api_audit import audit_requests
from tests.support.fake_api import FakeApi
from tests.support.raw import Raw
from tests.support.workspaces import hub_leaf_space, single_space

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from jsplan.facts.live import Live
    from jsplan.sandbox import Server

DOMAINS = {"main": Domain("main", "main", None, "$JS.API")}
#: Streams in one page of STREAM.LIST.
PAGE = 256
#: Streams of every kind whose INFO has parts that others do not have.
STREAMS: list[dict[str, Any]] = [
    {"name": "PLAIN", "subjects": ["plain.>"], "metadata": {"team": "a"}, "description": "d"},
    {"name": "MEMORY", "subjects": ["memory.*"], "storage": "memory", "max_msgs_per_subject": 3},
    {"name": "MIRROR", "mirror": {"name": "PLAIN", "filter_subject": "plain.a"}},
    {"name": "SOURCES", "sources": [{"name": "PLAIN"}, {"name": "MEMORY", "opt_start_seq": 2}]},
    {"name": "KV_K", "subjects": ["$KV.K.>"], "allow_rollup_hdrs": True, "deny_delete": True},
    {"name": "LIMITED", "subjects": ["lim"], "max_age": 10**12, "discard": "new", "max_msgs": 5},
    {"name": "EXACT", "subjects": ["e"], "retention": "workqueue", "subject_transform": {
        "src": "e", "dest": "f"}, "republish": {"src": ">", "dest": "r.>"}},
    {"name": "SEALED", "sealed": True},
]  # fmt: skip
CONSUMERS: list[dict[str, Any]] = [
    {"durable_name": "PULL", "ack_policy": "explicit", "metadata": {"team": "b"}},
    {"durable_name": "PUSH", "deliver_subject": "to.me", "idle_heartbeat": 10**9},
    {"name": "EXPIRES", "ack_policy": "explicit", "inactive_threshold": 10**12},
    {"durable_name": "FILTERED", "ack_policy": "all", "filter_subjects": ["plain.a", "plain.b"]},
    {"durable_name": "BACKOFF", "ack_policy": "explicit", "max_deliver": 3, "backoff": [10**9]},
    {"durable_name": "START", "deliver_policy": "by_start_sequence", "opt_start_seq": 2},
]


def comparable(info: dict[str, Any], *, cluster: bool) -> dict[str, Any]:
    """Return INFO, or an element of a list, without what depends on the time and the request."""
    config = dict(info["config"])
    metadata = {k: v for k, v in (config.pop("metadata", None) or {}).items() if k[:6] != "_nats."}
    skipped = {"type", "total", "offset", "limit", "ts", "config", "alternates"}
    found = {key: value for key, value in info.items() if key not in skipped}
    for flow in (found.get("mirror"), *(found.get("sources") or ())):
        if flow:
            flow.pop("active")
    if "sources" in found:  # in any order
        found["sources"] = sorted(found["sources"], key=lambda flow: str(flow["name"]))
    if not cluster:
        found.pop("cluster", None)
    for peer in (replicas := (found.get("cluster") or {}).get("replicas") or []):
        peer.pop("active")
    replicas.sort(key=lambda peer: str(peer["name"]))
    return found | {"config": config, "metadata": metadata}


def compare_lists(raw: Raw, *, cluster: bool) -> int:
    """Compare both lists with the INFO of each element. Return the number of elements."""
    compared = 0
    for listed in raw.api_ok("$JS.API.STREAM.LIST")["streams"]:
        name = listed["config"]["name"]
        info = raw.api_ok(f"$JS.API.STREAM.INFO.{name}")
        assert comparable(listed, cluster=cluster) == comparable(info, cluster=cluster)
        assert cluster or info["cluster"].keys() <= {"name", "leader"}, "the same for every stream"
        compared += 1
    for listed in raw.api_ok("$JS.API.CONSUMER.LIST.PLAIN")["consumers"]:
        info = raw.api_ok(f"$JS.API.CONSUMER.INFO.PLAIN.{listed['name']}")
        assert comparable(listed, cluster=cluster) == comparable(info, cluster=cluster)
        compared += 1
    return compared


def copied(raw: Raw) -> dict[str, int]:
    """Return the messages of the two streams that copy others."""
    names = ("MIRROR", "SOURCES")
    return {name: raw.state(name)["messages"] for name in names}


@pytest.mark.matrix
def test_a_list_shows_what_info_shows(server: Server) -> None:
    """Elements of both lists equal INFO but for `_nats.*` metadata and the name of the server."""
    with Raw(server.url) as raw:
        # Create a stream and a consumer of every kind, with messages.
        for config in STREAMS:
            unsealed = {each: value for each, value in config.items() if each != "sealed"}
            raw.api_ok(f"$JS.API.STREAM.CREATE.{config['name']}", unsealed)
            if "sealed" in config:
                raw.api_ok(f"$JS.API.STREAM.UPDATE.{config['name']}", config)
        for config in CONSUMERS:
            each = config.get("durable_name") or config["name"]
            body = {"stream_name": "PLAIN", "config": config | {"name": each}, "action": "create"}
            raw.api_ok(f"$JS.API.CONSUMER.CREATE.PLAIN.{each}", body)
        for subject in ("plain.a", "plain.b", "memory.x"):
            assert "seq" in raw.api(subject, b"text"), subject
        server.wait_until(
            lambda: all(
                copied(raw)[name] >= count for name, count in (("MIRROR", 1), ("SOURCES", 2))
            ),
            "copy the messages",
            60,
        )
        assert compare_lists(raw, cluster=False) >= len(STREAMS) + len(CONSUMERS)


@pytest.mark.matrix
def test_a_page_leaves_out_what_a_deletion_moves(server: Server) -> None:
    """A stream is on no page if one before it is deleted between the requests of two pages."""
    names = [f"S{number:03}" for number in range(PAGE + 10)]
    with Raw(server.url) as raw:
        make_streams(raw, names)
        first = raw.api_ok("$JS.API.STREAM.LIST", {"offset": 0})
        assert first["total"] == len(names)
        raw.api_ok("$JS.API.STREAM.DELETE.S000")
        second = raw.api_ok("$JS.API.STREAM.LIST", {"offset": len(first["streams"])})
        shown = {info["config"]["name"] for info in first["streams"] + second["streams"]}
        assert set(names) - shown == {names[PAGE]}


def make_streams(raw: Raw, names: Iterable[str]) -> None:
    """Create a stream of each name."""
    for name in names:
        raw.create(name, subjects=[name])


class BusyApi(DomainApi):
    """A domain in which another client deletes and creates a stream after each page of a list."""

    raw: Raw
    deleted = 0

    async def request(
        self, api: str, payload: dict[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Send the request, then delete the first stream and create one that no plan has."""
        answer = await super().request(api, payload, timeout=timeout)
        if api == "STREAM.LIST":
            self.raw.api_ok(f"$JS.API.STREAM.DELETE.A{BusyApi.deleted:03}")
            make_streams(self.raw, [f"Z{BusyApi.deleted:03}"])
            BusyApi.deleted += 1
        return answer


class BusyPool(Pool):
    """Connections over which domains are busy."""

    raw: Raw

    def api(self, domain: Domain) -> BusyApi:
        """Return the API of a busy domain."""
        found = BusyApi(domain, self.connections[domain.connection], read_only=True)
        found.raw = self.raw
        return found


def test_a_busy_domain_is_read_completely(server: Server) -> None:
    """Streams that no page shows are found, although others are deleted meanwhile."""
    managed = [f"S{number:03}" for number in range(PAGE + 20)]
    wanted = [Address.of_stream("main", name) for name in managed]
    BusyApi.deleted = 0

    async def read(raw: Raw) -> Live:
        async with BusyPool({"main": Connection("main", url=server.url)}, {}, read_only=True) as p:
            p.raw = raw
            return await read_live(p, DOMAINS, [*wanted, Address("main", "stream", "GONE")])

    with Raw(server.url) as raw:
        make_streams(raw, [f"A{number:03}" for number in range(10)])
        make_streams(raw, managed)
        live = asyncio.run(read(raw))
    assert BusyApi.deleted == 2, "two pages were read, and a stream deleted after each"
    assert sorted(live.objects) == wanted
    assert live.is_absent(Address("main", "stream", "GONE"))


def test_a_plan_of_a_busy_domain_changes_nothing(server: Server, tmp_path: Path) -> None:
    """While others create and delete streams, no managed stream or consumer counts as missing."""
    consumers = [{"name": f"C{n}", "ack_policy": "explicit"} for n in range(MIN_CONSUMERS)]
    streams: list[dict[str, Any]] = [
        {"name": f"S{n:03}", "subjects": [f"s{n}"]} for n in range(PAGE + 20)
    ]
    streams[7]["consumers"] = consumers
    for stream in streams[8 : 8 + 2 * MIN_INFOS]:
        stream["consumers"] = consumers[:1]
    space = single_space(tmp_path, server).write(streams=streams)
    _, result = space.apply(parallelism=64)
    assert result.exit_code == 0
    stop, rounds = threading.Event(), 0

    def churn() -> None:
        nonlocal rounds
        with Raw(server.url) as raw:
            while not stop.is_set():
                make_streams(raw, [first := f"A{rounds % 7}"])
                for name in ("S007", "S008"):
                    raw.consumer(name, "A", ack_policy="none")  # fmt: skip
                    raw.api_ok(f"$JS.API.CONSUMER.DELETE.{name}.A")
                raw.api_ok(f"$JS.API.STREAM.DELETE.{first}")
                rounds += 1

    def has_advanced(before: int) -> bool:
        return rounds > before

    busy = threading.Thread(target=churn)
    busy.start()
    try:
        for _ in range(5):
            before = rounds
            plan = space.plan()
            assert not plan.has_changes
            assert not plan.resource_drift
            server.wait_until(partial(has_advanced, before), "let another client work")
    finally:
        stop.set()
        busy.join()


@pytest.mark.parametrize(
    "first",
    [None, {"type": "other"}, {"error": {"code": 500, "err_code": 10119, "description": "busy"}}],
    ids=["no answer", "another answer", "an error"],
)
def test_what_is_not_read_together_is_asked_for_alone(server: Server, first: Any) -> None:
    """One request without a good answer delays the others, and changes nothing of the result."""
    names = [f"S{number:02}" for number in range(MIN_INFOS)]
    odd, asked = "CONSUMER.INFO.S03.C", list[str]()
    wanted = [Address("fake", "consumer", f"{name}/C") for name in names]
    streams = [Address("fake", "stream", name) for name in names]
    domains = {"fake": Domain("fake", "main", "fake", "$JS.fake.API")}
    connection = Connection("main", url=server.url, timeout=SECOND)

    def answer_badly_once(api: str, answer: Any) -> Any:
        asked.append(api)
        return first if api == odd and asked.count(odd) == 1 else answer

    async def read() -> Live:
        async with Pool({"main": connection}, {}, read_only=True, guarded=True) as pool:
            return await read_live(pool, domains, [*streams, *wanted])

    with Raw(server.url) as raw, FakeApi(server) as impostor:
        make_streams(raw, names)
        for name in names[:-1]:
            body = {"stream_name": name, "config": {"durable_name": "C", "name": "C"}}
            raw.api_ok(f"$JS.API.CONSUMER.CREATE.{name}.C", body)
        impostor.change_answer = answer_badly_once
        live = asyncio.run(read())
    assert sorted(live.objects) == sorted([*streams, *wanted[:-1]])
    assert live.is_absent(wanted[-1])
    assert asked.count(odd) == 2


def test_lists_replace_requests(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """Many streams cost a request for each page, and many consumers of one stream one request."""
    consumers = [{"name": f"C{n}", "ack_policy": "explicit"} for n in range(MIN_CONSUMERS)]
    streams: list[dict[str, Any]] = [
        {"name": f"S{n:03}", "subjects": [f"s{n}"]} for n in range(MIN_STREAMS)
    ]
    streams[0]["consumers"] = consumers
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.write(streams=streams, defaults={"domain": "leaf"}).apply()
    with audit_requests(clean_hub_leaf) as requests:
        plan = space.plan()
    assert not plan.has_changes
    assert plan.domains["leaf"]["server"] == {"name": "leaf-server"}
    lists = [line.removeprefix("leaf ") for line in requests if "INFO" != line.split()[1]]
    # INFO of one stream names the server, which the list does not.
    assert sorted(lists) == ["CONSUMER.LIST.S000", "STREAM.INFO.S000", "STREAM.LIST"]


def test_lists_of_consumers_with_many_pages(server: Server) -> None:
    """Consumers are listed completely where one stream has more of them than a page."""
    many, few = [f"C{number:03}" for number in range(PAGE + 20)], ["ONE", "TWO"]
    wanted = {Address("main", "consumer", f"MANY/{name}") for name in many} | {
        Address("main", "consumer", f"FEW/{name}") for name in few
    }
    counts: list[int] = []

    async def read() -> Live:
        async with Pool({"main": Connection("main", url=server.url)}, {}, read_only=True) as pool:
            return await list_live(pool, DOMAINS, frozenset(), [], on_read=counts.append)

    with Raw(server.url) as raw:
        make_streams(raw, ["EMPTY", "FEW", "MANY"])
        for stream, names in (("FEW", few), ("MANY", many)):
            for name in names:
                body = {"stream_name": stream, "config": {"durable_name": name, "name": name}}
                raw.api_ok(f"$JS.API.CONSUMER.CREATE.{stream}.{name}", body)
        live = asyncio.run(read())
    assert {address for address in live.objects if address.kind == "consumer"} == wanted
    assert not live.unlisted
    assert sum(counts) == len(live.objects) == len(wanted) + 3


def test_a_list_of_consumers_that_fails_once_is_asked_for_alone(server: Server) -> None:
    """The list that has no good answer among many, and the rest, are asked for again."""
    names = [f"S{number:02}" for number in range(MIN_INFOS)]
    odd, asked = "CONSUMER.LIST.S03", list[str]()
    domains = {"fake": Domain("fake", "main", "fake", "$JS.fake.API")}

    def answer_badly_once(api: str, answer: Any) -> Any:
        asked.append(api)
        error = {"error": {"code": 500, "err_code": 10119, "description": "busy"}}
        return error if api == odd and asked.count(odd) == 1 else answer

    async def read() -> Live:
        async with Pool({"main": Connection("main", url=server.url)}, {}, read_only=True) as pool:
            return await list_live(pool, domains, frozenset(), [])

    with Raw(server.url) as raw, FakeApi(server) as impostor:
        make_streams(raw, names)
        for name in names:
            body = {"stream_name": name, "config": {"durable_name": "C", "name": "C"}}
            raw.api_ok(f"$JS.API.CONSUMER.CREATE.{name}.C", body)
        impostor.change_answer = answer_badly_once
        live = asyncio.run(read())
    consumers = sorted(address.name for address in live.objects if address.kind == "consumer")
    assert consumers == [f"{name}/C" for name in names]
    assert not live.unlisted
    assert asked.count(odd) == 2


def test_what_a_cluster_lists() -> None:
    """In a cluster the elements of both lists have the replicas that INFO has."""
    with (
        Sandbox.cluster(binary=PROGRAM) as cluster,
        Raw((n1 := cluster["n1"]).url, n1.user, n1.password) as raw,
    ):
        raw.create("PLAIN", num_replicas=3)
        raw.create("ONE")
        body = {"stream_name": "PLAIN", "config": {"durable_name": "C", "name": "C"}}
        raw.api_ok("$JS.API.CONSUMER.CREATE.PLAIN.C", body)
        for info in ("STREAM.INFO.PLAIN", "CONSUMER.INFO.PLAIN.C"):
            n1.wait_until(partial(_are_replicas_current, raw, info), f"fill replicas of {info}")
        assert compare_lists(raw, cluster=True) == 3


def _are_replicas_current(raw: Raw, info: str) -> bool:
    """Check that no replica has to catch up: else it may between two reads."""
    found = raw.api_ok(f"$JS.API.{info}")["cluster"]
    return len(found["replicas"]) == 2 and all(
        one["current"] and not one.get("lag") for one in found["replicas"]
    )
