from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.sandbox import Sandbox, versions
from tests.support.raw import NoResponders, Raw, api, publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from jsplan.sandbox import Server
    from tests.conftest import MakeHubLeaf

MIRROR = {
    "name": "COPY",
    "mirror": {"name": "ORDERS", "external": {"api": "$JS.hub.API", "deliver": ""}},
}
SOURCED = {
    "name": "BACK",
    "sources": [{"name": "COPY", "external": {"api": "$JS.leaf.API", "deliver": ""}}],
}


def ask(server: Server, subject: str, payload: Any = None) -> dict[str, Any]:
    return api(server.url, server.user, server.password, subject, payload)


def wait_for_messages(server: Server, stream: str, count: int) -> None:
    server.wait_until(
        lambda: ask(server, f"$JS.API.STREAM.INFO.{stream}")["state"]["messages"] == count,
        f"hold {count} messages",
        40,
    )


@pytest.mark.matrix
def test_messages_flow_from_the_hub_to_the_leaf_and_back(clean_hub_leaf: Sandbox) -> None:
    """A mirror on the leaf copies the hub's stream, and a source on the hub copies the mirror."""
    hub, leaf = clean_hub_leaf["hub"], clean_hub_leaf["leaf"]
    ask(hub, "$JS.API.STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"]})
    ask(leaf, "$JS.API.STREAM.CREATE.COPY", MIRROR)
    ask(hub, "$JS.API.STREAM.CREATE.BACK", SOURCED)

    publish(hub.url, hub.user, hub.password, "orders.new", b"1", b"2", b"3")

    wait_for_messages(leaf, "COPY", 3)
    wait_for_messages(hub, "BACK", 3)


@pytest.mark.matrix
def test_both_domains_are_reached_from_both_sides(clean_hub_leaf: Sandbox) -> None:
    """`$JS.<domain>.API` answers as that domain whichever server a client is connected to."""
    for server in clean_hub_leaf.servers.values():
        for domain in ("hub", "leaf"):
            assert domain == ask(server, f"$JS.{domain}.API.INFO")["domain"]


def test_the_system_account_is_linked_too(hub_leaf: Sandbox) -> None:
    """The leaf sees the hub's account of system events, as in the documentation's example."""
    with Raw(hub_leaf["leaf"].url, "admin", "admin") as raw:
        identity = hub_leaf["hub"].info()["server_id"]
        assert raw.api(f"$SYS.REQ.SERVER.{identity}.VARZ")["server"]["name"] == "hub-server"


def test_every_leaf_is_a_domain_of_its_own(make_hub_leaf: MakeHubLeaf) -> None:
    """With several leaves the hub reaches each under its name."""
    sandbox = make_hub_leaf(leaves=("store-001", "store-002"))

    for name in ("store-001", "store-002"):
        assert name == ask(sandbox["hub"], f"$JS.{name}.API.INFO")["domain"]


def test_a_stopped_leaf_has_no_responders_and_comes_back(make_hub_leaf: MakeHubLeaf) -> None:
    """A stopped leaf has no responders at the hub; wait_ready returns when it is linked again."""
    sandbox = make_hub_leaf()
    hub, leaf = sandbox["hub"], sandbox["leaf"]

    leaf.stop()
    hub.wait_until(
        lambda: raises_no_responders(lambda: ask(hub, "$JS.leaf.API.INFO")), "lose the leaf"
    )
    leaf.start()
    sandbox.wait_ready()

    assert ask(hub, "$JS.leaf.API.INFO")["domain"] == "leaf"


def test_a_hub_that_comes_back_is_found_by_its_leaf(make_hub_leaf: MakeHubLeaf) -> None:
    """A restarted hub has the port that its leaves know, and they link again by themselves."""
    sandbox = make_hub_leaf()

    sandbox["hub"].restart()
    sandbox.wait_ready()

    assert ask(sandbox["leaf"], "$JS.hub.API.INFO")["domain"] == "hub"


def test_a_paused_leaf_does_not_answer_but_is_still_known(make_hub_leaf: MakeHubLeaf) -> None:
    """A request to a paused leaf times out at the hub: interest is there, an answer is not."""
    sandbox = make_hub_leaf()
    hub = sandbox["hub"]
    sandbox["leaf"].pause()

    with Raw(hub.url, hub.user, hub.password, timeout=0.3) as raw, pytest.raises(TimeoutError):
        raw.api("$JS.leaf.API.INFO")

    sandbox["leaf"].resume()
    sandbox.wait_ready()
    assert ask(hub, "$JS.leaf.API.INFO")["domain"] == "leaf"


def test_extra_text_goes_to_the_server_it_is_for(make_hub_leaf: MakeHubLeaf) -> None:
    """`extra` is by server name: the configuration of the hub does not reach the leaf."""
    sandbox = make_hub_leaf(extra={"hub": "max_payload: 4321"})

    assert (4321, 1 << 20) == (
        sandbox["hub"].info()["max_payload"],
        sandbox["leaf"].info()["max_payload"],
    )


@pytest.mark.matrix
def test_a_cluster_keeps_three_replicas() -> None:
    """A cluster that is ready places a stream with three replicas at once."""
    with Sandbox.cluster() as sandbox:
        created = ask(sandbox["n2"], "$JS.API.STREAM.CREATE.R3", {"name": "R3", "num_replicas": 3})

        assert "error" not in created
        assert created["cluster"]["name"] == "sandbox"
        assert len(created["cluster"]["replicas"]) == 2


@pytest.mark.download
def test_another_version_can_be_started(make_hub_leaf: MakeHubLeaf) -> None:
    """The oldest supported server runs beside the newest, with the same shape."""
    oldest = versions.VERSIONS[0]

    sandbox = make_hub_leaf(version=oldest)

    assert {oldest} == {server.info()["version"] for server in sandbox.servers.values()}


def raises_no_responders(call: Callable[[], object]) -> bool:
    try:
        call()
    except NoResponders:
        return True
    return False
