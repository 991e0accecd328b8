"""Permissions of an application follow from what it uses, where it connects, and its client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jsplan.config import load
from jsplan.errors import ConfigError
from jsplan.topology import build_topology
from jsplan.topology.app_permissions import derive_permissions
from tests.access.conftest import BASE, derive, space_with
from tests.support.yaml_text import read_yaml

CASES: dict[str, list[Any]] = read_yaml(Path(__file__).with_name("derived.yaml").read_text("utf-8"))


def subjects_of(folder: Path, app: dict[str, Any], **sections: Any) -> list[str]:
    """Return what one application may publish and subscribe to, apart from its answers."""
    (found,) = derive(space_with(folder, {"name": "a", "domain": "hub"} | app, **sections))
    kept = [each for each in found.permissions if not each.optional]
    return [each.text for each in kept if each.text != "_INBOX_a.>"]


@pytest.mark.parametrize(("app", "expected"), CASES["permissions"])
def test_permissions(app: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    """Each use gives what the client asks for it, over the prefix of the domain."""
    assert subjects_of(tmp_path, app) == expected


def test_later_servers_answer_with_other_subjects(tmp_path: Path) -> None:
    """The subjects of acknowledgements with domain and account are there too, as optional."""
    app = {"name": "a", "domain": "hub", "client": "py"}
    uses = [{"consumer": "hub/consumer/ORDERS/PULL"}]
    (found,) = derive(space_with(tmp_path, app | {"consumes": uses}))

    optional = [each.subject for each in found.permissions if each.optional]
    assert optional == ["$JS.ACK.hub.UUssF3Ay.ORDERS.PULL.>"]


@pytest.mark.parametrize(("app", "reason"), CASES["without a way"])
def test_uses_without_a_way(app: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """A resource that cannot be reached, or not used by the client, is an error."""
    connections = BASE["connections"] | {"web": {"url": "nats://127.0.0.1:2", "account": "WEB"}}
    domains = BASE["domains"] | {"web": {"connection": "web", "js_domain": "hub"}}
    own = {"name": "a", "domain": "hub"} | app
    space = space_with(tmp_path, own, connections=connections, domains=domains)
    workspace = load(space.load)

    accounts = {"hub": "SHOP", "web": "WEB"}
    _, (found,) = derive_permissions(workspace, build_topology(workspace), accounts)

    assert found.code == "JS468"
    assert reason in found.summary


def test_what_servers_cannot_prevent_is_named(tmp_path: Path) -> None:
    """A server knows subjects only: some requests reach more than a use needs."""
    app = {"name": "a", "domain": "hub", "client": "py"}
    uses = [{"bucket": "hub/kv/OLD", "keys": ["mine"], "watch": True}]
    (found,) = derive(space_with(tmp_path, app | {"reads": uses}))

    assert found.escapes == [
        "can create and change consumers of KV_OLD, also those of others",
        "can read every message of KV_OLD, whatever its subject",
    ]


@pytest.mark.parametrize(("uses", "code", "text"), CASES["refused"])
def test_uses_that_the_files_do_not_give(
    uses: dict[str, Any], code: str, text: str, tmp_path: Path
) -> None:
    """An application that cannot work as declared is an error of the files."""
    space = space_with(tmp_path, {"name": "a", "domain": "hub", "client": "py"} | uses)

    with pytest.raises(ConfigError) as raised:
        load(space.load)

    (found,) = raised.value.diagnostics
    assert found.code == code
    assert found.summary.startswith(text)


def test_expectations_that_are_met(tmp_path: Path) -> None:
    """Fields that a file leaves out have the server's default."""
    expects = ["duplicate_window >= 2m", "duplicate_window = 120s", "no_ack = false"]
    expects += ["max_msgs <= 0", "storage = file"]
    uses = [{"stream": "hub/stream/ORDERS", "expects": expects}]
    app = {"name": "a", "domain": "hub", "client": "py", "publishes": uses}

    assert load(space_with(tmp_path, app).load).apps["a"].domain == "hub"


def test_where_an_application_connects(tmp_path: Path) -> None:
    """The domain may be left out where there is one only; names are unique."""
    app = {"name": "a", "client": "py"}
    one = {"domains": {"hub": {"connection": "hub"}}, "streams": [BASE["streams"][0]], "kv": []}
    assert load(space_with(tmp_path, app, **one, object_stores=[]).load).apps["a"].domain == "hub"

    without = space_with(tmp_path, app)
    with pytest.raises(ConfigError) as raised:
        load(without.load)
    assert [found.code for found in raised.value.diagnostics] == ["JS106"]
    twice = space_with(tmp_path, app | {"domain": "hub"}, app | {"domain": "leaf"})
    with pytest.raises(ConfigError) as raised:
        load(twice.load)
    assert [found.code for found in raised.value.diagnostics] == ["JS110"]


def test_an_application_at_each_edge(tmp_path: Path) -> None:
    """An entry of several domains is an application in each, with its own domain in addresses."""
    domains = {"hub": {"connection": "hub"}} | {
        f"store-{number}": {"connection": "hub", "labels": ["edge"]} for number in (1, 2)
    }
    stream = {"name": "READINGS", "domain": "label:edge", "subjects": ["readings.${domain}.>"]}
    uses = [{"stream": "${domain}/stream/READINGS", "subjects": ["readings.${domain}.a"]}]
    app = {"name": "sensor", "domain": "label:edge", "client": "js", "publishes": uses}
    files = {"domains": domains, "streams": [stream], "kv": [], "object_stores": []}

    found = derive(space_with(tmp_path, app, **files))

    assert [(each.app.name, each.app.user, each.app.domain) for each in found] == [
        ("sensor@store-1", "sensor", "store-1"),
        ("sensor@store-2", "sensor", "store-2"),
    ]
    assert [each.text for each in found[1].permissions] == ["readings.store-2.a", "_INBOX_sensor.>"]

    space = space_with(tmp_path, app | {"domain": ["store-1", "hub"]}, **files)
    with pytest.raises(ConfigError) as raised:
        load(space.load)
    assert [each.code for each in raised.value.diagnostics] == ["JS468"]
    assert "uses hub/stream/READINGS, which is in no file" in raised.value.diagnostics[0].summary
