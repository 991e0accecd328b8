from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jsplan.sandbox import Sandbox
from jsplan.sandbox.shapes import Layout, Node, User
from tests.conftest import PROGRAM
from tests.rehearsal.tampered_plans import refusals, rehearse_tampered, with_fields
from tests.support.raw import Raw
from tests.support.workspaces import Space, new_space

ACCOUNTS = """\
accounts {
    ACC: {
        users: [{user: acc, password: acc}], jetstream: enabled,
        exports: [{service: "$JS.hub.API.>", response_type: stream}]
    }
    B: {
        users: [{user: b, password: b}], jetstream: enabled,
        imports: [{service: {account: ACC, subject: "$JS.hub.API.>"}, to: "JS.acc@hub.API.>"}]
    }
    SYS: {users: [{user: admin, password: admin}]}
}
system_account: SYS
"""
LOGIN = User("ACC", "acc", "acc")
OVERLAPS = {"subjects": ["orders.a"]}


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Space]:
    """A server with two accounts: ACC has domain hub, B has own and imports hub as import."""

    def layout(ports: Any) -> Layout:
        node = Node("server", ports("server"), domain="hub", extra=ACCOUNTS, login=LOGIN)
        return Layout("single", (node,))

    with Sandbox(layout, binary=PROGRAM) as sandbox:
        url = sandbox["server"].url
        with Raw(url, "acc", "acc") as raw:
            raw.create("ORDERS", subjects=["orders.>"])
        connections = {name: {"url": url, "user": name, "password": name} for name in ("acc", "b")}
        domains = {
            "hub": {"connection": "acc"},
            "own": {"connection": "b", "js_domain": "hub"},
            "import": {"connection": "b", "api_prefix": "JS.acc@hub.API", "same_as": "hub"},
        }
        yield new_space(tmp_path, connections=connections, domains=domains)


@pytest.mark.matrix
def test_accounts_of_one_server_are_rehearsed_apart(space: Space) -> None:
    """Streams that overlap in one account do not overlap in another one."""
    space.write(streams=[{"name": "A", "domain": "hub"}, {"name": "A", "domain": "own"}])

    plan = rehearse_tampered(
        space, {"hub/stream/A": with_fields(OVERLAPS), "own/stream/A": with_fields(OVERLAPS)}
    )

    assert refusals(plan) == {"hub/stream/A": "10065"}
    assert plan.rehearsal is not None
    assert {server.domain for server in plan.rehearsal.servers} == {"hub", "own"}


@pytest.mark.matrix
def test_an_import_is_rehearsed_in_the_exporting_account(
    space: Space,
) -> None:
    """A domain that is reached through an import has the streams of the exporting account."""
    space.write(
        streams=[
            {"name": "A", "domain": "import"},
            {"name": "B", "domain": "import", "subjects": ["b"]},
        ]
    )

    plan = rehearse_tampered(space, {"import/stream/A": with_fields(OVERLAPS)})

    assert refusals(plan) == {"import/stream/A": "10065"}
    assert plan.rehearsal is not None
    assert [
        (server.domain, plan.rehearsal.steps, plan.rehearsal.not_tried)
        for server in plan.rehearsal.servers
    ] == [("import", 2, 0)]


def test_two_connections_to_one_domain_are_one_account(space: Space) -> None:
    """Streams that are planned over two connections to one domain overlap."""
    space.write(
        streams=[
            {"name": "A", "domain": "import", "subjects": ["a"]},
            {"name": "B", "domain": "hub", "depends_on": ["import/stream/A"]},
        ]
    )

    plan = rehearse_tampered(space, {"hub/stream/B": with_fields({"subjects": ["a"]})})

    assert refusals(plan) == {"hub/stream/B": "10065"}
