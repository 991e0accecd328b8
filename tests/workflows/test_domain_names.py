"""A wrong domain name is distinguished from an offline domain."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from jsplan.errors import ConnectError
from tests.support.raw import Raw
from tests.support.relay import Relay
from tests.support.simulated_kill import SimulatedKill, kill_at_request
from tests.support.workspaces import HUB_LEAF_DOMAINS, hub_leaf_space, left_to_do

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox
    from tests.conftest import MakeHubLeaf


def test_a_name_that_was_changed_to_an_unknown_one(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A domain that answered before and gets an unknown name in the files is an error."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.base["domains"] = {"hub": HUB_LEAF_DOMAINS["hub"]}
    streams = [{"name": "A", "domain": "hub"}]
    assert space.write(streams=streams).apply()[1].exit_code == 0
    space.base["domains"] = {"hub": {"connection": "hub", "js_domain": "hbu"}}

    with pytest.raises(ConnectError, match="calls its JetStream domain hub") as caught:
        space.write(streams=streams).plan()
    assert "js_domain: hub" in (caught.value.hint or "")


def test_two_ways_to_one_jetstream(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A stream that two domains of one JetStream would manage is an error, until one forgets it.

    One way is the hub, the other one the leaf itself.
    """
    space, leaf = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["leaf"]
    login = {"url": leaf.url, "user": leaf.user, "password": leaf.password}
    space.base["connections"] |= {"direct": login}
    space.base["domains"] = {
        "far": {"connection": "hub", "js_domain": "leaf"},
        "near": {"connection": "direct", "js_domain": "leaf"},
    }
    both = [{"name": "S", "domain": domain} for domain in ("far", "near")]
    space.write(streams=both).apply()
    # Without the second line the stream of the other domain would be deleted.
    for streams in (both, both[:1]):
        assert _same_jetstream(space.write(streams=streams).plan()) == [
            "domain near leads to the same JetStream as far: near/stream/S is far/stream/S"
        ]
    space.base["domains"]["near"]["same_as"] = "far"
    removed = [{"address": "near/stream/S", "destroy": False}]
    assert space.write(streams=both[:1], removed=removed).apply()[1].exit_code == 0
    assert (_same_jetstream(space.plan()), left_to_do(space.plan())) == ([], [])
    with Raw(leaf.url, leaf.user, leaf.password) as raw:
        raw.api_ok("$JS.leaf.API.STREAM.INFO.S")


def test_two_connections_with_the_same_login(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """They lead to one account: a stream of both is an error before it exists, others are not."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.base["connections"]["other"] = space.base["connections"]["hub"]
    space.base["domains"] = {
        "hub": {"connection": "hub"},
        "again": {"connection": "other", "js_domain": "hub"},
    }
    streams = [{"name": "A", "domain": "hub"}, {"name": "B", "domain": "again"}]
    assert _same_jetstream(space.write(streams=streams).plan()) == []
    streams.append({"name": "A", "domain": "again"})
    assert _same_jetstream(space.write(streams=streams).plan()) == [
        "domain hub leads to the same JetStream as again: hub/stream/A is again/stream/A"
    ]


@pytest.mark.parametrize("connection", ["other", "direct"])
def test_an_origin_that_another_domain_has(
    connection: str, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """A stream of one domain that another one of the same JetStream reads is an error.

    Otherwise the plan would say that the origin does not exist. `direct` has another login: there
    only the server's answer shows it, once the origin exists.
    """
    space, leaf = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["leaf"]
    login = {"url": leaf.url, "user": leaf.user, "password": leaf.password}
    hub = space.base["connections"]["hub"]
    space.base["connections"] |= {"direct": login, "other": hub}
    space.base["domains"] = {
        "far": {"connection": "hub", "js_domain": "leaf"},
        "near": {"connection": connection, "js_domain": "leaf"},
    }
    origin = {"name": "S", "domain": "far"}
    if connection == "direct":
        assert space.write(streams=[origin]).apply()[1].exit_code == 0
    copy = {"name": "M", "domain": "near", "mirror": {"name": "S"}}
    plan = space.write(streams=[origin, copy]).plan()
    assert _same_jetstream(plan) == [
        "domain near leads to the same JetStream as far: near/stream/S is far/stream/S"
    ]
    space.base["domains"]["near"]["same_as"] = "far"
    assert space.write(streams=[origin, copy]).apply()[1].exit_code == 0
    assert left_to_do(space.plan()) == []


def _same_jetstream(plan: Plan) -> list[str]:
    errors = [one for one in plan.diagnostics if one.severity == "error"]
    return [one.summary for one in errors if one.code == "JS123"]


class LosingRelay(Relay):
    """A relay that sends the first question about domain hub to a domain that does not exist."""

    lost = False

    def _up(self, data: bytes) -> bytes:
        if self.lost or b" $JS.hub.API.INFO " not in data:
            return data
        self.lost = True
        return data.replace(b" $JS.hub.API.INFO ", b" $JS.hbu.API.INFO ", 1)


def test_a_domain_that_answers_a_moment_later(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A domain without an answer is offline, not misnamed, if its server then names it.

    A cluster that has no leader answers nothing, and may have one at the next question.
    """
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]
    space.base["domains"] = {"hub": HUB_LEAF_DOMAINS["hub"]}
    space.write(streams=[{"name": "A", "domain": "hub"}])
    with LosingRelay() as relay:
        relay.target = hub.port
        space.base["connections"]["hub"]["url"] = f"nats://127.0.0.1:{relay.port}"
        with pytest.raises(ConnectError) as caught:
            space.write(streams=[{"name": "A", "domain": "hub"}]).plan()
    assert relay.lost
    assert "calls its JetStream domain" not in str(caught.value)
    assert "domain hub does not answer" in str(caught.value)


@pytest.mark.matrix
@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("moves", [False, True])
def test_sources_of_a_renamed_domain_resume(
    moves: bool, kills: bool, tmp_path: Path, make_hub_leaf: MakeHubLeaf
) -> None:
    """A leaf that gets another JetStream name, or key too, is copied once; also after a death."""
    sandbox = make_hub_leaf()
    space, hub, leaf = hub_leaf_space(tmp_path, sandbox), sandbox["hub"], sandbox["leaf"]
    streams = [
        {"name": "SALES", "domain": "label:edge", "subjects": ["sales"]},
        {"name": "ALL", "domain": "hub", "sources": [{"name": "SALES", "domain": "label:edge"}]},
    ]
    space.write(streams=streams).apply()
    with Raw(hub.url, hub.user, hub.password) as raw, Raw(leaf.url, leaf.user, leaf.password) as at:
        for _ in range(20):
            at.publish("sales", b"message")
        at.flush()
        raw.wait_for("ALL", 20, "hub")
    leaf.stop()
    leaf.node = replace(leaf.node, domain="shop")
    leaf.start()
    sandbox.wait_ready()
    sections: dict[str, Any] = {"streams": streams}
    if moves:
        space.base["domains"] = {"hub": HUB_LEAF_DOMAINS["hub"], "shop": HUB_LEAF_DOMAINS["leaf"]}
        sections["moved"] = [{"from": "leaf/**", "to": "shop/**"}]
    else:
        renamed = {"connection": "hub", "labels": ["edge"], "js_domain": "shop"}
        space.base["domains"] = HUB_LEAF_DOMAINS | {"leaf": renamed}
    if kills:
        with kill_at_request("STREAM.UPDATE.ALL", answered=True), suppress(SimulatedKill):
            space.write(**sections).apply()
    plan, result = space.write(**sections).apply()
    assert (result.exit_code, [c.hazards for c in plan.resource_changes if c.hazards]) == (0, [])
    assert not space.plan().has_changes
    with Raw(hub.url, hub.user, hub.password) as raw, Raw(leaf.url, leaf.user, leaf.password) as at:
        at.publish("sales", b"last")
        at.flush()
        hub.wait_until(lambda: raw.count("ALL", "hub") > 20, "copy the last message", 90)
        assert raw.count("ALL", "hub") == 21
        last = raw.state("ALL", "hub")["last_seq"]
        found = raw.api_ok("$JS.hub.API.STREAM.MSG.GET.ALL", {"seq": last})["message"]["data"]
        assert found == "bGFzdA=="
