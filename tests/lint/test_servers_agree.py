"""The claims of the rules on real servers: they accept it, and do what the rule says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.lint.support import Case, cases
from tests.support.raw import NoResponders, Raw
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox, Server

#: Without what only a cluster, or another account, has.
SINGLE_ACCOUNT_CASES = [case for case in cases() if "imports" not in case.text["bad"]]
MINUTE = 60_000_000_000


@dataclass
class LintServers:
    """The hub and the leaf, asked through the hub."""

    raw: Raw

    def api(self, domain: str, verb: str, payload: Any = None) -> dict[str, Any]:
        return self.raw.api_ok(f"$JS.{domain}.API.{verb}", payload)

    def stream(self, domain: str, name: str, **config: Any) -> dict[str, Any]:
        return dict(self.raw.create(name, domain, **config)["config"])

    def consumer(self, domain: str, stream: str, name: str, **config: Any) -> dict[str, Any]:
        config = {"ack_policy": "none"} | config
        return dict(self.raw.consumer(stream, name, domain, **config)["config"])

    def wait_until_copying(self, domain: str, name: str) -> None:
        """Wait until every origin of a mirror or source is known."""

        def heard() -> bool:
            info = self.api(domain, f"STREAM.INFO.{name}")
            return all(
                flow["active"] >= 0
                for flow in [
                    *info.get("sources", ()),
                    *([info["mirror"]] if "mirror" in info else ()),
                ]
            )

        wait_until(heard, f"{name} to copy")

    def publish(self, subject: str, *ids: str, **headers: str) -> None:
        """Publish and wait until it is stored, once for each message id."""
        for number in ids or ("",):
            self.raw.request(subject, b"x", headers | ({"Nats-Msg-Id": number} if number else {}))


@pytest.fixture
def lint_servers(clean_hub_leaf: Sandbox) -> Iterator[LintServers]:
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password, timeout=20) as raw:
        yield LintServers(raw)


@pytest.mark.parametrize("case", SINGLE_ACCOUNT_CASES, ids=lambda case: case.path.stem)
def test_servers_accept_every_finding(
    case: Case, lint_servers: LintServers, tmp_path: Path
) -> None:
    """A server takes every stream and consumer that a case has a finding for.

    Lint is advice, and no second validation.
    """
    seen = case.view("bad", tmp_path)
    for address in sorted(
        seen.topology.bodies,
        key=lambda a: (a.kind == "consumer", not seen.topology.bodies[a].get("subjects")),
    ):
        body = {
            name: value
            for name, value in seen.topology.bodies[address].items()
            if value is not None and name != "num_replicas"
        }
        config = {name: value for name, value in body.items() if name != "name"}
        if address.kind == "consumer":
            lint_servers.consumer(address.domain, address.stream, address.consumer, **config)
        else:
            lint_servers.stream(address.domain, address.stream, **config)


def test_object_stores_cross_and_buckets_do_not(lint_servers: LintServers) -> None:
    """JS201: a chunk of an object store is stored in both domains, a key of a bucket in its own."""
    for domain in ("hub", "leaf"):
        lint_servers.stream(domain, "OBJ_B", subjects=["$O.B.C.>", "$O.B.M.>"])
        lint_servers.stream(domain, "KV_B", subjects=["$KV.B.>"])
        lint_servers.stream(domain, "LAST", subjects=["last"])
    for subject in ("$O.B.C.x", "$KV.B.k", "last"):
        lint_servers.publish(subject)
    lint_servers.raw.wait_for("LAST", 1, "leaf")

    assert [lint_servers.raw.count("OBJ_B", domain) for domain in ("hub", "leaf")] == [1, 1]
    assert [lint_servers.raw.count("KV_B", domain) for domain in ("hub", "leaf")] == [1, 0]


def test_a_message_comes_by_both_ways(lint_servers: LintServers) -> None:
    """JS202: a stream that stores a subject and sources it has each message twice."""
    lint_servers.stream("leaf", "S", subjects=["sales.>"])
    lint_servers.stream(
        "hub",
        "ALL",
        subjects=["sales.>"],
        sources=[{"name": "S", "external": {"api": "$JS.leaf.API"}}],
    )
    lint_servers.wait_until_copying("hub", "ALL")
    lint_servers.publish("sales.x")

    lint_servers.raw.wait_for("ALL", 2, "hub")
    assert lint_servers.raw.count("S", "leaf") == 1


def test_two_streams_republish_to_each_other(lint_servers: LintServers) -> None:
    """JS203: one message becomes many in two streams that republish to each other."""
    lint_servers.stream("hub", "A", subjects=["a.>"], republish={"src": "a.>", "dest": "b.>"})
    lint_servers.stream("hub", "B", subjects=["b.>"], republish={"src": "b.>", "dest": "a.>"})
    lint_servers.publish("a.x")

    wait_until(lambda: lint_servers.raw.count("A", "hub") > 50, "the servers to agree")


def test_deliveries_to_a_mirror_can_be_stored(lint_servers: LintServers) -> None:
    """JS204: a stream of the delivery prefix stores messages on their way to a mirror."""
    lint_servers.stream("leaf", "S", subjects=["sales.>"])
    lint_servers.stream("hub", "LOG", subjects=["deliver.>"])
    lint_servers.stream(
        "hub",
        "M",
        mirror={"name": "S", "external": {"api": "$JS.leaf.API", "deliver": "deliver.x"}},
    )
    lint_servers.wait_until_copying("hub", "M")
    lint_servers.publish("sales.x")

    lint_servers.raw.wait_for("M", 1, "hub")
    assert lint_servers.raw.count("LOG", "hub") > 0


def test_ids_of_another_origin_are_duplicates(lint_servers: LintServers) -> None:
    """JS209: with a window the second of two equal ids does not arrive; without one it does."""
    lint_servers.stream("hub", "A", subjects=["a"])
    lint_servers.stream("hub", "B", subjects=["b"])
    sources = [{"name": "A"}, {"name": "B"}]
    assert "duplicate_window" not in lint_servers.stream("hub", "ALL", sources=sources)
    lint_servers.stream("hub", "FEWER", sources=sources, duplicate_window=2 * MINUTE)
    for name in ("ALL", "FEWER"):
        lint_servers.wait_until_copying("hub", name)
    lint_servers.publish("a", "1")
    lint_servers.raw.wait_for("FEWER", 1, "hub")
    lint_servers.publish("b", "1", "2")

    lint_servers.raw.wait_for("ALL", 3, "hub")
    wait_until(
        lambda: (
            lint_servers.api("hub", "STREAM.MSG.GET.FEWER", {"last_by_subj": "b"})["message"][
                "hdrs"
            ]
            != ""
        ),
        "the servers to agree",
    )
    assert lint_servers.raw.count("FEWER", "hub") == 2


def test_publishers_to_a_stream_with_sources_may_repeat_themselves(
    lint_servers: LintServers,
) -> None:
    """JS210: without a window of its own the same id is stored twice."""
    lint_servers.stream("hub", "A", subjects=["a"])
    lint_servers.stream("hub", "ALL", subjects=["all"], sources=[{"name": "A"}])
    lint_servers.publish("all", "1", "1")

    assert lint_servers.raw.count("ALL", "hub") == 2


def test_a_copy_keeps_what_expires(lint_servers: LintServers) -> None:
    """JS211: a message that expires stays in copies that do not allow expiry."""
    lint_servers.stream("hub", "A", subjects=["a"], allow_msg_ttl=True)
    lint_servers.stream("hub", "KEEPS", mirror={"name": "A"})
    lint_servers.stream("hub", "FOLLOWS", mirror={"name": "A"}, allow_msg_ttl=True)
    lint_servers.wait_until_copying("hub", "KEEPS")
    lint_servers.wait_until_copying("hub", "FOLLOWS")
    lint_servers.publish("a", **{"Nats-TTL": "1s"})
    lint_servers.raw.wait_for("KEEPS", 1, "hub")

    wait_until(
        lambda: lint_servers.raw.count("A", "hub") == 0 == lint_servers.raw.count("FOLLOWS", "hub"),
        "the servers to agree",
    )
    assert lint_servers.raw.count("KEEPS", "hub") == 1


def test_a_stream_in_memory_does_not_outlive_its_server(server: Server) -> None:
    """JS212: a stream in memory is gone after a restart of a single server."""
    with Raw(server.url) as raw:
        raw.create("A", storage="memory")
    server.stop()
    server.start()

    with Raw(server.url) as raw:
        assert raw.api("$JS.API.STREAM.INFO.A")["error"]["err_code"] == 10059


def test_a_mirror_without_interest_stays_empty(lint_servers: LintServers) -> None:
    """JS214: a mirror with interest retention stays empty."""
    lint_servers.stream("hub", "A", subjects=["a"])
    lint_servers.stream("hub", "M", mirror={"name": "A"}, retention="interest")
    lint_servers.wait_until_copying("hub", "M")
    lint_servers.publish("a")

    wait_until(
        lambda: lint_servers.api("hub", "STREAM.INFO.M")["state"]["last_seq"] == 1,
        "the servers to agree",
    )
    assert lint_servers.raw.count("M", "hub") == 0


def test_a_stream_too_small_acknowledges_what_it_removes(lint_servers: LintServers) -> None:
    """JS226: a stream of ten bytes is accepted, and no message fits."""
    lint_servers.stream("hub", "A", subjects=["a"], max_bytes=10)
    lint_servers.publish("a")

    assert lint_servers.raw.count("A", "hub") == 0


def test_a_glued_star_is_a_letter(lint_servers: LintServers) -> None:
    """JS227: no stream stores messages to orders1, although one has orders*."""
    lint_servers.stream("hub", "A", subjects=["orders*"])

    with pytest.raises(NoResponders):
        lint_servers.publish("orders1")
    lint_servers.publish("orders*")
    assert lint_servers.raw.count("A", "hub") == 1


def test_the_default_is_no_acknowledgement(lint_servers: LintServers) -> None:
    """JS240: a consumer without a policy has no acknowledgement."""
    lint_servers.stream("hub", "A", subjects=["a"])

    assert lint_servers.consumer("hub", "A", "C")["ack_policy"] == "none"


def test_a_durable_consumer_expires(lint_servers: LintServers) -> None:
    """JS245: a durable consumer is deleted after its threshold, or that of its stream."""
    lint_servers.stream(
        "hub", "A", subjects=["a"], consumer_limits={"inactive_threshold": MINUTE // 300}
    )
    assert (
        lint_servers.consumer("hub", "A", "C", ack_policy="explicit")["inactive_threshold"]
        == MINUTE // 300
    )

    wait_until(
        lambda: "error" in lint_servers.raw.api("$JS.hub.API.CONSUMER.INFO.A.C"),
        "the servers to agree",
    )


def test_given_up_work_stays(lint_servers: LintServers, clean_hub_leaf: Sandbox) -> None:
    """JS253: the server stops delivering a message, which stays in the stream."""
    hub = clean_hub_leaf["hub"]
    lint_servers.stream("hub", "Q", subjects=["q"], retention="workqueue")
    lint_servers.consumer(
        "hub", "Q", "C", ack_policy="explicit", max_deliver=1, ack_wait=MINUTE // 300
    )
    lint_servers.publish("q")
    with Raw(hub.url, hub.user, hub.password, timeout=30) as listener:
        listener.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.Q.C")
        lint_servers.raw.subscribe("taken")
        lint_servers.raw.publish("$JS.hub.API.CONSUMER.MSG.NEXT.Q.C", b"", reply="taken")
        assert lint_servers.raw.next_message()[2] == b"x"
        lint_servers.raw.publish(
            "$JS.hub.API.CONSUMER.MSG.NEXT.Q.C", b"", reply="taken"
        )  # a consumer has to ask for it again
        listener.next_message()
        lint_servers.raw.unsubscribe()

    assert lint_servers.raw.count("Q", "hub") == 1


def test_there_are_cases_to_ask_for() -> None:
    """Nearly every case is asked of servers; the others need a second account."""
    assert len(SINGLE_ACCOUNT_CASES) > 35
