"""What the rules claim, asked of real servers: that they accept what is found, and do with it what the rule says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.lint.support import Case, cases
from tests.support.raw import NoResponders, Raw

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox, Server

#: Without what only a cluster, or another account, has.
ALONE = [case for case in cases() if "imports" not in case.text["bad"]]
MINUTE = 60_000_000_000


@dataclass
class World:
    """The hub and the leaf, asked through the hub."""

    raw: Raw

    def api(self, domain: str, verb: str, payload: Any = None) -> dict[str, Any]:
        return self.raw.done(f"$JS.{domain}.API.{verb}", payload)

    def stream(self, domain: str, name: str, **config: Any) -> dict[str, Any]:
        made: dict[str, Any] = self.api(domain, f"STREAM.CREATE.{name}", {"name": name} | config)["config"]
        return made

    def consumer(self, domain: str, stream: str, name: str, **config: Any) -> dict[str, Any]:
        body = {"stream_name": stream, "config": {"name": name, "durable_name": name} | config}
        made: dict[str, Any] = self.api(domain, f"CONSUMER.CREATE.{stream}.{name}", body)["config"]
        return made

    def messages(self, domain: str, name: str) -> int:
        return int(self.api(domain, f"STREAM.INFO.{name}")["state"]["messages"])

    def copying(self, domain: str, name: str) -> None:
        """Wait until every origin of a copy is heard of."""

        def heard() -> bool:
            info = self.api(domain, f"STREAM.INFO.{name}")
            return all(flow["active"] >= 0 for flow in [*info.get("sources", ()), *([info["mirror"]] if "mirror" in info else ())])

        until(heard)

    def publish(self, subject: str, *ids: str, **headers: str) -> None:
        """Publish and wait until it is stored, once for each message id."""
        for number in ids or ("",):
            self.raw.request(subject, b"x", headers | ({"Nats-Msg-Id": number} if number else {}))


def until(ready: Callable[[], bool], timeout: float = 30.0) -> None:
    """Ask again and again; the bound is for a machine that is very busy."""
    end = time.monotonic() + timeout
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def world(clean_hub_leaf: Sandbox) -> Iterator[World]:
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password, timeout=20) as raw:
        yield World(raw)


@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.path.stem)
def test_what_is_found_is_accepted(case: Case, world: World, tmp_path: Path) -> None:
    """A server takes every stream and consumer that a case has a finding for: lint is advice, and no second validation."""
    seen = case.view("bad", tmp_path)
    for address in sorted(seen.topology.bodies, key=lambda a: (a.kind == "consumer", not seen.topology.bodies[a].get("subjects"))):
        body = {name: value for name, value in seen.topology.bodies[address].items() if value is not None and name != "num_replicas"}
        config = {name: value for name, value in body.items() if name != "name"}
        if address.kind == "consumer":
            world.consumer(address.domain, address.stream, address.consumer, **config)
        else:
            world.stream(address.domain, address.stream, **config)


def test_object_stores_cross_and_buckets_do_not(world: World) -> None:
    """JS201: a chunk for an object store is stored in both domains, a key of a bucket in its own."""
    for domain in ("hub", "leaf"):
        world.stream(domain, "OBJ_B", subjects=["$O.B.C.>", "$O.B.M.>"])
        world.stream(domain, "KV_B", subjects=["$KV.B.>"])
        world.stream(domain, "LAST", subjects=["last"])
    for subject in ("$O.B.C.x", "$KV.B.k", "last"):
        world.publish(subject)
    until(lambda: world.messages("leaf", "LAST") == 1)

    assert [world.messages(domain, "OBJ_B") for domain in ("hub", "leaf")] == [1, 1]
    assert [world.messages(domain, "KV_B") for domain in ("hub", "leaf")] == [1, 0]


def test_a_message_comes_by_both_ways(world: World) -> None:
    """JS202: what a stream stores and sources is in it twice."""
    world.stream("leaf", "S", subjects=["sales.>"])
    world.stream("hub", "ALL", subjects=["sales.>"], sources=[{"name": "S", "external": {"api": "$JS.leaf.API"}}])
    world.copying("hub", "ALL")
    world.publish("sales.x")

    until(lambda: world.messages("hub", "ALL") == 2)
    assert world.messages("leaf", "S") == 1


def test_two_streams_republish_to_each_other(world: World) -> None:
    """JS203: one message becomes many."""
    world.stream("hub", "A", subjects=["a.>"], republish={"src": "a.>", "dest": "b.>"})
    world.stream("hub", "B", subjects=["b.>"], republish={"src": "b.>", "dest": "a.>"})
    world.publish("a.x")

    until(lambda: world.messages("hub", "A") > 50)


def test_what_is_delivered_can_be_stored(world: World) -> None:
    """JS204: a stream of the delivery prefix gets what is on its way to a mirror."""
    world.stream("leaf", "S", subjects=["sales.>"])
    world.stream("hub", "LOG", subjects=["deliver.>"])
    world.stream("hub", "M", mirror={"name": "S", "external": {"api": "$JS.leaf.API", "deliver": "deliver.x"}})
    world.copying("hub", "M")
    world.publish("sales.x")

    until(lambda: world.messages("hub", "M") == 1)
    assert world.messages("hub", "LOG") > 0


def test_ids_of_another_origin_are_duplicates(world: World) -> None:
    """JS209: with a window the second of two equal ids never arrives; without one it does."""
    world.stream("hub", "A", subjects=["a"])
    world.stream("hub", "B", subjects=["b"])
    sources = [{"name": "A"}, {"name": "B"}]
    assert "duplicate_window" not in world.stream("hub", "ALL", sources=sources)
    world.stream("hub", "FEWER", sources=sources, duplicate_window=2 * MINUTE)
    for name in ("ALL", "FEWER"):
        world.copying("hub", name)
    world.publish("a", "1")
    until(lambda: world.messages("hub", "FEWER") == 1)
    world.publish("b", "1", "2")

    until(lambda: world.messages("hub", "ALL") == 3)
    until(lambda: world.api("hub", "STREAM.MSG.GET.FEWER", {"last_by_subj": "b"})["message"]["hdrs"] != "")
    assert world.messages("hub", "FEWER") == 2


def test_publishers_to_a_stream_with_sources_may_repeat_themselves(world: World) -> None:
    """JS210: without a window of its own the same id is stored twice."""
    world.stream("hub", "A", subjects=["a"])
    world.stream("hub", "ALL", subjects=["all"], sources=[{"name": "A"}])
    world.publish("all", "1", "1")

    assert world.messages("hub", "ALL") == 2


def test_a_copy_keeps_what_expires(world: World) -> None:
    """JS211: of a message with a life time only the copies that allow it let go."""
    world.stream("hub", "A", subjects=["a"], allow_msg_ttl=True)
    world.stream("hub", "KEEPS", mirror={"name": "A"})
    world.stream("hub", "FOLLOWS", mirror={"name": "A"}, allow_msg_ttl=True)
    world.copying("hub", "KEEPS")
    world.copying("hub", "FOLLOWS")
    world.publish("a", **{"Nats-TTL": "1s"})
    until(lambda: world.messages("hub", "KEEPS") == 1)

    until(lambda: world.messages("hub", "A") == 0 == world.messages("hub", "FOLLOWS"))
    assert world.messages("hub", "KEEPS") == 1


def test_a_stream_in_memory_does_not_outlive_its_server(server: Server) -> None:
    """JS212: after a restart of a single server there is no such stream any more."""
    with Raw(server.url) as raw:
        raw.done("$JS.API.STREAM.CREATE.A", {"name": "A", "storage": "memory"})
    server.stop()
    server.start()

    with Raw(server.url) as raw:
        assert raw.api("$JS.API.STREAM.INFO.A")["error"]["err_code"] == 10059


def test_a_mirror_without_interest_stays_empty(world: World) -> None:
    """JS214: a mirror with interest retention goes past every message."""
    world.stream("hub", "A", subjects=["a"])
    world.stream("hub", "M", mirror={"name": "A"}, retention="interest")
    world.copying("hub", "M")
    world.publish("a")

    until(lambda: world.api("hub", "STREAM.INFO.M")["state"]["last_seq"] == 1)
    assert world.messages("hub", "M") == 0


def test_a_stream_too_small_acknowledges_what_it_removes(world: World) -> None:
    """JS226: ten bytes are taken, and no message fits."""
    world.stream("hub", "A", subjects=["a"], max_bytes=10)
    world.publish("a")

    assert world.messages("hub", "A") == 0


def test_a_glued_star_is_a_letter(world: World) -> None:
    """JS227: what is published to orders1 is nobody's, although a stream has orders*."""
    world.stream("hub", "A", subjects=["orders*"])

    with pytest.raises(NoResponders):
        world.publish("orders1")
    world.publish("orders*")
    assert world.messages("hub", "A") == 1


def test_the_default_is_no_acknowledgement(world: World) -> None:
    """JS240: a consumer whose policy is left out has none."""
    world.stream("hub", "A", subjects=["a"])

    assert world.consumer("hub", "A", "C")["ack_policy"] == "none"


def test_a_durable_consumer_expires(world: World) -> None:
    """JS245: a threshold ends it, be it that of its stream."""
    world.stream("hub", "A", subjects=["a"], consumer_limits={"inactive_threshold": MINUTE // 300})
    assert world.consumer("hub", "A", "C", ack_policy="explicit")["inactive_threshold"] == MINUTE // 300

    until(lambda: "error" in world.raw.api("$JS.hub.API.CONSUMER.INFO.A.C"))


def test_given_up_work_stays(world: World, clean_hub_leaf: Sandbox) -> None:
    """JS253: the server says that it gives up, and the message is still there."""
    hub = clean_hub_leaf["hub"]
    world.stream("hub", "Q", subjects=["q"], retention="workqueue")
    world.consumer("hub", "Q", "C", ack_policy="explicit", max_deliver=1, ack_wait=MINUTE // 300)
    world.publish("q")
    with Raw(hub.url, hub.user, hub.password, timeout=30) as listener:
        listener.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.Q.C")
        world.raw.subscribe("taken")
        world.raw.publish("$JS.hub.API.CONSUMER.MSG.NEXT.Q.C", b"", reply="taken")
        assert world.raw.next_message()[2] == b"x"
        world.raw.publish("$JS.hub.API.CONSUMER.MSG.NEXT.Q.C", b"", reply="taken")  # somebody has to want it again
        listener.next_message()
        world.raw.unsubscribe()

    assert world.messages("hub", "Q") == 1


def test_there_are_cases_to_ask_for() -> None:
    """Nearly every case is asked; those that are not need a second account."""
    assert len(ALONE) > 35
