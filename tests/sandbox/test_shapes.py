from __future__ import annotations

import pytest
import yaml

from jsplan.sandbox import shapes

PORTS = {
    "hub": 4222,
    "hub.leafnodes": 7422,
    "leaf": 4111,
    "server": 4222,
    "n1": 1,
    "n2": 2,
    "n3": 3,
    "n1.routes": 11,
    "n2.routes": 12,
    "n3.routes": 13,
}.__getitem__


def texts(layout: shapes.Layout) -> dict[str, str]:
    return {
        node.name: shapes.render_server_config(node, f"/data/{node.name}") for node in layout.nodes
    }


def test_the_hub_is_the_one_of_the_documentation() -> None:
    """The hub listens for clients and leafnodes, is domain `hub`, and includes the accounts."""
    assert texts(shapes.hub_and_leaf(PORTS))["hub"] == (
        'listen: "127.0.0.1:4222"\n'
        'server_name: "hub-server"\n'
        "jetstream {\n"
        '    store_dir: "/data/hub"\n'
        "    max_memory_store: 8GB, max_file_store: 8TB\n"
        '    domain: "hub"\n'
        "}\n"
        "leafnodes {\n"
        '    listen: "127.0.0.1:7422"\n'
        "}\n"
        "include ./accounts.conf\n"
    )


def test_the_leaf_links_both_accounts_to_the_hub() -> None:
    """The leaf has one remote per account, with that account's credentials at the hub."""
    leaf = texts(shapes.hub_and_leaf(PORTS))["leaf"]

    assert '{urls: ["nats://admin:admin@127.0.0.1:7422"], account: "SYS"}' in leaf
    assert '{urls: ["nats://acc:acc@127.0.0.1:7422"], account: "ACC"}' in leaf
    assert 'domain: "leaf"' in leaf


def test_a_single_server_has_no_accounts_unless_asked() -> None:
    """Only with `accounts` a single server includes the accounts and names the user."""
    plain, accounts = shapes.single(PORTS), shapes.single(PORTS, accounts=True)

    assert "include" not in texts(plain)["server"]
    assert "include ./accounts.conf" in texts(accounts)["server"]
    assert (shapes.ANONYMOUS, shapes.ACC) == (plain.nodes[0].user, accounts.nodes[0].user)


@pytest.mark.parametrize(
    ("strict", "line"), [(None, None), (True, "strict: true"), (False, "strict: false")]
)
def test_strictness_is_written_only_when_it_is_given(strict: bool | None, line: str | None) -> None:
    """Strictness is written only when it is given: servers before 2.11 do not know it."""
    text = texts(shapes.single(PORTS, strict=strict))["server"]

    assert line in text if line else "strict" not in text


def test_a_member_of_a_cluster_knows_the_routes_of_the_others() -> None:
    """Each member listens on its own route port and connects to those of the others."""
    text = texts(shapes.cluster(PORTS))["n2"]

    assert 'listen: "127.0.0.1:12"' in text
    assert 'routes: ["nats://127.0.0.1:11", "nats://127.0.0.1:13"]' in text


def test_a_path_with_quotes_and_blanks_stays_one_value() -> None:
    """A store folder is quoted, whatever is in its name."""
    node = shapes.single(PORTS).nodes[0]

    assert 'store_dir: "/my \\"data\\""' in shapes.render_server_config(node, '/my "data"')


@pytest.mark.parametrize(
    ("layout", "domains"),
    [
        (shapes.hub_and_leaf(PORTS), {"hub": {"connection": "hub"}, "leaf": {"connection": "hub"}}),
        (shapes.single(PORTS), {"main": {"connection": "server", "js_domain": None}}),
        (shapes.single(PORTS, domain="plant"), {"plant": {"connection": "server"}}),
        (shapes.cluster(PORTS), {"main": {"connection": "n1", "js_domain": None}}),
    ],
)
def test_the_workspace_reaches_every_domain(
    layout: shapes.Layout, domains: dict[str, object]
) -> None:
    """The jsplan.yaml of a shape names one connection and every domain behind it."""
    workspace = yaml.safe_load(shapes.render_workspace(layout))

    assert (1, "sandbox", domains) == (
        workspace["jsplan"],
        workspace["workspace"],
        workspace["domains"],
    )
    connection = workspace["connections"][layout.nodes[0].name]
    assert connection["url"].startswith(layout.nodes[0].url)
    assert connection.get("user") == layout.nodes[0].user.user
