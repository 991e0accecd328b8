from __future__ import annotations

import itertools
from typing import Any

import pytest

from jsplan.sandbox import Sandbox, versions
from jsplan.sandbox.shapes import render_server_config
from jsplan.sandbox.sites import Account, Site, account_user, build_site_layout
from tests.conftest import PROGRAM
from tests.support.raw import Raw

HUB = Site(
    "hub",
    (Account("A1", {"max_streams": 2, "max_file": 5000}), Account("A2")),
    domain="hub",
    cluster="C1",
    size=3,
    tags=(("ssd",), ("ssd", "az:1"), ()),
)
LEAF = Site("edge", (Account("A1"),), domain="edge", hub="hub")


def texts(*wanted: Site) -> dict[str, str]:
    numbers = itertools.count(1)
    ports: dict[str, int] = {}
    layout = build_site_layout(lambda name: ports.setdefault(name, next(numbers)), wanted, "secret")
    return {node.name: render_server_config(node, "/data") for node in layout.nodes}


def test_a_site_has_cluster_tags_and_accounts() -> None:
    """Each server of a cluster has the cluster's name, its own tags, and every account."""
    found = texts(LEAF, HUB)

    assert list(found) == ["hub-1", "hub-2", "hub-3", "edge"]
    assert 'server_tags: ["ssd", "az:1", "jsplan:hub-2"]' in found["hub-2"]
    assert 'server_tags: ["jsplan:hub-3"]' in found["hub-3"]
    assert 'name: "C1"' in found["hub-1"]
    assert (
        'A1: {users: [{user: A1, password: "secret"}], jetstream: {max_streams: 2, max_file: 5000}}'
        in found["hub-1"]
    )
    assert 'A2: {users: [{user: A2, password: "secret"}], jetstream: enabled}' in found["hub-1"]


def test_a_leaf_is_linked_once_per_account_that_both_have() -> None:
    """The leaf logs in to its hub as the shared account, and not as one that only the hub has."""
    found = texts(HUB, LEAF)

    assert found["edge"].count(', account: "') == 1
    assert 'account: "A1"' in found["edge"]
    assert "leafnodes" in found["hub-1"]
    assert "leafnodes" not in found["hub-2"]


def api(
    sandbox: Sandbox, node: str, account: str, subject: str, payload: Any = None
) -> dict[str, Any]:
    user = account_user(account, "secret")
    with Raw(sandbox[node].url, user.user, user.password) as raw:
        return raw.api(subject, payload)


@pytest.mark.matrix
def test_a_cluster_with_tags_and_a_leaf_with_limits_come_up_as_written() -> None:
    """Tags place a stream, the account has its limits, and the leaf's domain is reached."""
    with Sandbox.of_sites([HUB, LEAF], "secret", binary=PROGRAM) as sandbox:
        made = api(
            sandbox,
            "hub-3",
            "A1",
            "$JS.API.STREAM.CREATE.A",
            {"name": "A", "num_replicas": 2, "placement": {"tags": ["ssd"]}},
        )
        nowhere = api(
            sandbox,
            "hub-1",
            "A1",
            "$JS.API.STREAM.CREATE.B",
            {"name": "B", "placement": {"tags": ["tape"]}},
        )
        far = api(sandbox, "hub-2", "A1", "$JS.edge.API.INFO")
        limits = api(sandbox, "hub-1", "A1", "$JS.API.INFO")["limits"]

        servers = {
            made["cluster"]["leader"],
            *(peer["name"] for peer in made["cluster"]["replicas"]),
        }
        assert servers == {"hub-1-server", "hub-2-server"}
        assert made["cluster"]["name"] == "C1"
        assert nowhere["error"]["err_code"] == 10005
        assert far["domain"] == "edge"
        assert (limits["max_streams"], limits["max_storage"]) == (2, 5000)


def test_every_site_may_have_a_server_version_of_its_own() -> None:
    """A hub and its leaf run different versions and still reach each other."""
    old, new = versions.VERSIONS[2], versions.VERSIONS[-1]
    hub = Site("hub", (Account("A1"),), domain="hub", binary=versions.ensure_version(new))
    leaf = Site(
        "edge", (Account("A1"),), domain="edge", hub="hub", binary=versions.ensure_version(old)
    )
    with Sandbox.of_sites([hub, leaf], "secret") as sandbox:
        assert (sandbox["hub"].info()["version"], sandbox["edge"].info()["version"]) == (new, old)
        assert api(sandbox, "edge", "A1", "$JS.hub.API.INFO")["domain"] == "hub"
