"""A domain that answers with a refusal, beside others: the rest is looked at nevertheless."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.errors import JsplanError
from jsplan.options import DriftOptions, PlanOptions
from jsplan.sandbox import Sandbox
from jsplan.workflows.drift import drift
from jsplan.workflows.import_ import import_
from jsplan.workflows.lint import lint
from jsplan.workflows.plan import plan
from jsplan.workflows.status import status
from tests.conftest import PROGRAM
from tests.support.raw import Raw, delete_all_streams
from tests.support.workspaces import RecordingObserver, Space, approve, new_space

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.sandbox import Server

ACCOUNTS = """
no_auth_user: one
accounts {
    ONE: {jetstream: enabled, users: [{user: one, password: x}]}
    TWO: {jetstream: enabled, users: [
        {user: two, password: x}
        {user: blind, password: x, permissions: {publish: "$JS.API.INFO"}}
        {user: mute, password: x, permissions: {publish: "nothing"}}
    ]}
    NONE: {users: [{user: none, password: x}]}
}
"""
STREAMS = [{"name": "S", "domain": domain, "subjects": ["s"]} for domain in ("one", "two")]


SOURCED = {"name": "COPY", "domain": "one", "sources": [{"name": "S", "domain": "one"}]}


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Server]:
    """A server with two accounts that have JetStream, and one that has none."""
    with Sandbox.single(extra=ACCOUNTS, binary=PROGRAM) as sandbox:
        yield sandbox["server"]


@pytest.fixture
def space(tmp_path: Path, shared_server: Server) -> Space:
    """A stream in each of two domains, which are two accounts."""
    users = {
        key: {"url": shared_server.url, "user": key, "password": "x"} for key in ("one", "two")
    }
    domains = {
        key: {"connection": key, "js_domain": None, "may_be_offline": "7d"}
        for key in ("one", "two")
    }
    for user in users:
        with Raw(shared_server.url, user, "x") as raw:
            delete_all_streams(raw)
    space = new_space(tmp_path, connections=users, domains=domains)
    space.write(streams=STREAMS)
    assert space.apply()[1].exit_code == 0
    return space


@pytest.mark.parametrize(
    ("user", "password", "reason"),
    [
        ("two", "wrong", "the server refused the credentials"),
        ("blind", "x", "does not permit this user to publish to $JS.API.STREAM.INFO.S"),
        ("mute", "x", "does not permit this user to publish to $JS.API.INFO"),
        ("none", "x", "JetStream not enabled for account"),
    ],
)
def test_the_other_domain_is_looked_at(
    space: Space, shared_server: Server, user: str, password: str, reason: str
) -> None:
    """Drift and status name the domain with its reason, exit 1, and see what is in the other."""
    space.base["connections"]["two"] |= {"user": user, "password": password}
    space.write(streams=STREAMS)
    found = drift(space.load, DriftOptions(), RecordingObserver())
    shown = status(space.load, RecordingObserver())

    assert [(item["domain"], item["excused"]) for item in found.offline] == [("two", False)]
    assert reason in found.offline[0]["reason"]
    assert found.exit_code == 1
    assert [row["address"] for row in shown.streams] == ["one/stream/S"]
    assert shown.exit_code == 1
    with pytest.raises(JsplanError, match="two"):
        plan(space.load, PlanOptions(), RecordingObserver())

    observer = RecordingObserver()
    assert lint(space.load, observer, ask=True).live
    assert [reason in text for text in observer.texts if "only the files" in text] == [True]

    with Raw(shared_server.url) as raw:
        raw.api_ok("$JS.API.STREAM.DELETE.S")
    found = drift(space.load, DriftOptions(), RecordingObserver())
    assert (found.exit_code, [row.address for row in found.resource_drift]) == (2, ["one/stream/S"])


def test_a_plan_without_the_domain(space: Space) -> None:
    """A domain in which nothing is selected may refuse; the rest is planned and applied."""
    space.base["connections"]["two"]["password"] = "wrong"
    space.write(streams=[STREAMS[0] | {"max_msgs": 7}, STREAMS[1], SOURCED])
    planned, applied = space.apply(excludes=("two/**",))

    assert applied.exit_code == 0
    assert {step.address for step in planned.steps} == {"one/stream/COPY", "one/stream/S"}


def test_an_import_from_the_other_domain(space: Space, shared_server: Server) -> None:
    """An import needs only the domains of its objects."""
    with Raw(shared_server.url) as raw:
        raw.create("NEW", subjects=["new"])
    space.base["connections"]["two"]["password"] = "wrong"
    new = {"name": "NEW", "domain": "one", "subjects": ["new"]}
    space.write(streams=[*STREAMS, new])
    given = ("one/stream/NEW",), PlanOptions(), approve, RecordingObserver()

    assert import_(space.load, *given)[1].exit_code == 0
    assert "one/stream/NEW" in (space.folder / "state/test.json").read_text()


def test_a_workspace_that_is_refused_everywhere(space: Space) -> None:
    """Without any domain that can be read, the refusal is the error."""
    for connection in space.base["connections"].values():
        connection["password"] = "wrong"
    space.write(streams=STREAMS)
    for look in (
        lambda: drift(space.load, DriftOptions(), RecordingObserver()),
        lambda: status(space.load, RecordingObserver()),
    ):
        with pytest.raises(JsplanError, match="the server refused the credentials"):
            look()
