"""Accounts in the files of a configuration are resources, as those of an operator."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import nats
import pytest

from jsplan.cli.main import main
from jsplan.config import load as load_workspace
from jsplan.errors import ConfigError, JsplanError
from jsplan.options import DriftOptions
from jsplan.resources.account_file import header_of, parse_file, render_file
from jsplan.sandbox.shapes import User
from jsplan.topology import build_topology
from jsplan.workflows.access import access
from jsplan.workflows.drift import drift
from tests.conftest import PROGRAM
from tests.support.account_sharing import include_of, start_servers, wait_for_messages
from tests.support.raw import Raw
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, Space, left_to_do

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox, Server

MIRROR: dict[str, Any] = {
    "name": "COPY",
    "domain": "copy",
    "mirror": {"name": "ORDERS", "domain": "hub"},
}
STREAM: dict[str, Any] = {"name": "ORDERS", "domain": "hub", "subjects": ["orders.>"]}
APP: dict[str, Any] = {
    "name": "billing",
    "domain": "hub",
    "client": "py",
    "publishes": [{"stream": "hub/stream/ORDERS", "subjects": ["orders.eu.*"]}],
}
NOWHERE = "nats://127.0.0.1:1"
REVOKES = ("REVOKES_ACCESS:**",)


def make_space(folder: Path, url: str = NOWHERE) -> Space:
    """Make a workspace with a stream of SHOP that COPY mirrors, and an application."""
    space = Space(folder, {
        "jsplan": 1,
        "workspace": "shop",
        "connections": {
            name: {"url": url, "user": name, "password": name, "account": name.upper(), "timeout": "5s"}
            for name in ("shop", "copy")
        },
        "domains": {"hub": {"connection": "shop"}, "copy": {"connection": "copy", "js_domain": "hub"}},
        "imports": [{"from": "hub", "into": "copy", "api": "JS.SHOP.API", "deliver": "deliver.shop"}],
        "account_files": "./accounts",
        "accounts": [{"name": "SHOP"}, {"name": "COPY"}],
        "streams": [STREAM, MIRROR],
        "apps": [APP],
    })  # fmt: skip
    return space.write()


def start(space: Space, sandboxes: list[Sandbox], billing: str = "$billing_permissions") -> Server:
    """Start a server whose configuration includes the files, and tell the workspace its URL."""
    shop, copy = (include_of(space.folder / f"accounts/{name}.conf") for name in ("SHOP", "COPY"))
    user = f"{{user: billing, password: billing, permissions: {billing}}}" if billing else ""
    text = f"""accounts {{
    SYS {{users: [{{user: sys, password: sys}}]}}
    SHOP {{
        {shop}
        jetstream: enabled
        users: [{{user: shop, password: shop}}, {user}]
    }}
    COPY {{
        {copy}
        jetstream: enabled
        users: [{{user: copy, password: copy}}]
    }}
}}
system_account: SYS
"""
    sandbox = start_servers(text, User("SHOP", "shop", "shop"), binary=PROGRAM)
    sandboxes.append(sandbox)
    sandbox.start()
    space.base = make_space(space.folder, sandbox["hub"].url).base
    return sandbox["hub"]


def reload(server: Server) -> None:
    """Let a server load its configuration again, and wait until it says so."""
    count = server.log_path.read_text().count("Reloaded server configuration")
    os.kill(server.pid, signal.SIGHUP)
    server.wait_until(
        lambda: server.log_path.read_text().count("Reloaded server configuration") > count,
        "load its configuration",
        10,
    )


@pytest.mark.matrix
async def test_from_no_server_to_the_last_message(
    tmp_path: Path, sandboxes: list[Sandbox], capsys: pytest.CaptureFixture[str]
) -> None:
    """The files need no server. With them a mirror flows, and a user may do what it declares.

    A use that left the files is taken from the user by a reload, if that is allowed.
    """
    space = make_space(tmp_path)
    first, result = await asyncio.to_thread(space.apply)
    assert (result.exit_code, result.summary["added"]) == (0, 2)
    assert {each.address for each in first.deferred} == {"hub/stream/ORDERS", "copy/stream/COPY"}
    notes = {each.address: each.note for each in result.steps}
    assert notes["static/account/SHOP"] == (
        "the servers of hub load the file with nats-server --signal reload"
    )

    server = await asyncio.to_thread(start, space, sandboxes)
    _, result = await asyncio.to_thread(space.apply)
    assert result.exit_code == 0
    assert left_to_do(await asyncio.to_thread(space.plan)) == []
    found = await asyncio.to_thread(drift, space.load, DriftOptions(), RecordingObserver())
    assert found.summary["changed"] == found.summary["missing"] == 0

    async def publish(subject: str) -> None:
        client = await nats.connect(
            server.url, user="billing", password="billing", inbox_prefix=b"_INBOX_billing",
            error_cb=ignore,
        )  # fmt: skip
        try:
            await client.jetstream(timeout=1).publish(subject, b"1")
        finally:
            await client.close()

    await publish("orders.eu.1")
    with Raw(server.url, "copy", "copy") as raw:
        assert await asyncio.to_thread(wait_for_messages, raw, {"COPY": 1}) == {"COPY": 1}
    with pytest.raises(nats.errors.TimeoutError):
        await publish("orders.us.1")

    uses = [{"stream": "hub/stream/ORDERS", "subjects": ["orders.us.*"]}]
    space.write(apps=[APP | {"publishes": uses}])
    with pytest.raises(JsplanError, match="REVOKES_ACCESS"):
        await asyncio.to_thread(space.apply)
    plan, _ = await asyncio.to_thread(space.apply, allow_hazards=REVOKES)
    (hazard,) = plan.resource_changes[-1].hazards
    assert hazard.message == "billing loses 1 permission"
    await publish("orders.eu.2")  # the server has not loaded it
    await asyncio.to_thread(reload, server)
    await publish("orders.us.2")
    with pytest.raises(nats.errors.TimeoutError):
        await publish("orders.eu.3")


async def ignore(_: Exception) -> None:
    """Let a client report nothing."""


@pytest.mark.matrix
def test_servers_take_every_file(tmp_path: Path, sandboxes: list[Sandbox]) -> None:
    """An account without anything, and applications that no user has, are no mistake for them.

    What an import needs waits until it is loaded. A check that finds it missing says how.
    """
    space = make_space(tmp_path)
    space.write(streams=[STREAM])
    space.apply()
    server = start(space, sandboxes, billing="")
    far = {"name": "FAR", "domain": "far", "stream": "ORDERS", "ack_policy": "explicit"}
    space.base["domains"]["far"] = {
        "connection": "copy",
        "api_prefix": "JS.SHOP.API",
        "same_as": "hub",
    }
    odd = [APP | {"name": name} for name in ("2a", "users", "my-app")]
    space.write(consumers=[far], apps=[APP, *odd])
    plan, _ = space.apply()
    assert [each.address for each in plan.deferred] == ["far/consumer/ORDERS/FAR"]
    found = access(space.load, RecordingObserver(), ask=True).with_status("missing")
    assert found
    assert all(
        "the servers of hub, copy, far load the file with nats-server --signal reload"
        in str(each.detail)
        for each in found
    )
    reload(server)
    assert access(space.load, RecordingObserver(), ask=True).with_status("missing") == []
    assert space.apply()[0].summary["add"] == 1
    assert left_to_do(space.plan()) == []


def test_an_edited_file_is_drift(tmp_path: Path) -> None:
    """A change by hand is shown as lines, and put back. Nothing else is ever replaced."""
    space = make_space(tmp_path)
    space.apply()
    path = tmp_path / "accounts/SHOP.conf"
    ours = path.read_text()

    path.write_text(ours.replace("orders.eu.*", "orders.>"))
    found = drift(space.load, DriftOptions(targets=("static/**",)), RecordingObserver())
    assert [each.address for each in found.resource_drift] == ["static/account/SHOP"]
    assert main(["drift", "-C", str(tmp_path), "--target", "static/**"]) == 2
    plan, _ = space.apply(allow_hazards=REVOKES)
    (change,) = (each for each in plan.resource_changes if each.change.actions == ["update"])
    assert [each.message for each in change.hazards] == ["billing loses 1 permission"]
    assert path.read_text() == ours

    for text, message in (
        (ours.replace("exports", "users: [{user: x, password: x}]\nexports", 1), "is not as jsplan writes it at line 12"),
        (ours.replace("{allow: [", "{allow: [], deny: [", 1), "is not as jsplan writes it at line 4"),
        (ours + "'", "is not as jsplan writes it at line"),
        (ours.replace('"deliver', '"a b'), "where jsplan writes one word"),
        (ours.replace("]\n", "", 1), "is not as jsplan writes it at"),
        (ours.partition("\n")[2], "was not written for account SHOP by this workspace"),
        (ours.replace("workspace shop", "workspace other"), "was not written for account SHOP by this workspace"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(JsplanError, match=message):
            space.apply(allow_hazards=REVOKES)
        assert path.read_text() == text
    path.unlink()
    path.symlink_to("/etc/hosts")
    with pytest.raises(JsplanError, match="it is a link to a file outside of the workspace"):
        space.apply()


def test_a_file_of_ours_is_adopted(tmp_path: Path) -> None:
    """A file that no state knows needs `--adopt` where it differs, as any other resource."""
    space = make_space(tmp_path)
    space.apply()
    (tmp_path / "state/shop.json").unlink()
    space.write(apps=[])
    with pytest.raises(JsplanError, match="is not managed yet"):
        space.apply()
    _, result = space.apply(adopt=True, allow_hazards=REVOKES)
    assert (result.exit_code, result.summary["imported"]) == (0, 2)


def test_everything_is_deleted_and_reverted(tmp_path: Path) -> None:
    """A file is deleted with its account, if that is allowed, and comes back by a revert."""
    space = make_space(tmp_path)
    space.apply()
    path = tmp_path / "accounts/COPY.conf"
    before = path.read_text()
    space.write(accounts=[{"name": "SHOP"}])
    with pytest.raises(JsplanError, match="REVOKES_ACCESS"):
        space.apply()
    plan, result = space.apply(allow_hazards=REVOKES)
    assert any("take its include from" in str(each.note) for each in result.steps)
    (hazard,) = (hazard for each in plan.resource_changes for hazard in each.hazards)
    assert "neither reload nor start" in hazard.message
    assert not path.exists()

    assert main(["revert", "2", "-C", str(tmp_path), "--auto-approve"]) == 0
    assert path.read_text() == before

    space.write(apps=[])
    plan, _ = space.apply(allow_hazards=REVOKES)
    messages = [h.message for each in plan.resource_changes for h in each.hazards]
    assert any(
        "neither reload nor start while a user has $billing_permissions" in m for m in messages
    )
    space.apply(destroy=True, allow_hazards=REVOKES)
    assert [*(tmp_path / "accounts").iterdir()] == []


def test_a_killed_apply_is_finished(tmp_path: Path) -> None:
    """A death at any moment is recovered by the next apply."""
    space = make_space(tmp_path)
    steps: tuple[dict[str, Any], ...] = (
        {},
        {"apps": []},
        {"accounts": [], "streams": [], "apps": []},
    )
    for change in steps:
        kills = 0
        before = read_state(tmp_path, "shop").resources
        for moment in range(1, 8):
            space.write(**change)
            with contextlib.suppress(SimulatedKill), kill_after(moment):
                kills += 1
                space.apply(allow_hazards=REVOKES)
                kills -= 1
        assert kills >= 2
        space.apply(allow_hazards=REVOKES)
        assert read_state(tmp_path, "shop").pending == {}
        assert read_state(tmp_path, "shop").resources != before
        assert left_to_do(space.plan()) == []
    assert [*(tmp_path / "accounts").iterdir()] == []


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """The message says what failed and where."""
    space = make_space(tmp_path)
    (tmp_path / "accounts").write_text("a file in place of the folder")
    with pytest.raises(JsplanError, match="Not a directory"):
        space.apply()


CONFIGS: dict[str, dict[str, Any]] = {
    "nothing": {"name": "SHOP"},
    "exports": {"name": "SHOP", "exports": [
        "service a.* to A many-answers", "service a.* to 1B many-answers", "stream b.*.> token 2", "stream c",
    ]},
    "imports": {"name": "SHOP", "imports": ["service a.b from OWNER as c.d", "stream e from AXYZ"]},
    "permissions": {"name": "SHOP", "roles": ['a-b may publish x{"y\\.>', "a-b may subscribe y.* workers"]},
    "two applications": {"name": "SHOP", "exports": ["stream c"], "roles": ["2a may publish x", "users may publish y"]},
}  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_file_has_what_was_written(config: dict[str, Any]) -> None:
    """An account in a file is read from it again, also indented in another way."""
    text = render_file(config, header_of("SHOP", "shop"))
    assert {"name": "SHOP", **parse_file(text)} == config
    assert {"name": "SHOP", **parse_file(text.replace("\n", "\n# x\n\n  "))} == config


def test_a_damaged_file_is_read_or_refused() -> None:
    """Whatever sign or line is missing, nothing but a ValueError is raised."""
    config = {name: lines for each in CONFIGS.values() for name, lines in each.items()}
    text = render_file(config, header_of("SHOP", "shop"))
    lines = text.splitlines()
    damaged = [text[:at] + text[at + 1 :] for at in range(len(text))]
    damaged += [text[:at] + text[at:].replace(" ", "", 1) for at in range(len(text))]
    damaged += ["\n".join(lines[:at] + lines[at + 1 :]) for at in range(len(lines))]
    for each in damaged:
        with contextlib.suppress(ValueError):
            assert render_file({"name": "SHOP", **parse_file(each)}, lines[0])


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"account_files": None}, "has no `key`, and the workspace no `account_files`"),
        ({"account_files": "../accounts"}, "leads out of the folder of the workspace"),
        ({"accounts": [{"name": "SHOP", "jetstream": {"disk": "1GiB"}}]}, "is in a file, and has `jetstream`"),
        ({"accounts": [{"name": "SHOP", "connection": "shop"}]}, "is in a file, and has `connection`"),
        ({"accounts": [{"name": "SHOP"}, {"name": "SHOP"}]}, "account SHOP is declared twice"),
        ({"domains": {"static": {"connection": "shop"}}, "streams": [], "imports": [], "apps": []}, "static is the name of a domain"),
        ({"accounts": [{"name": "COPY"}, {"name": "SHOP", "key": "A" * 56}]}, "imports from account SHOP of an operator"),
    ],
)  # fmt: skip
def test_mistakes_in_the_files(sections: dict[str, Any], text: str, tmp_path: Path) -> None:
    """Each is named with its place."""
    space = make_space(tmp_path)
    connections = space.base["connections"] | {"system": {"url": NOWHERE, "operator_key": "./o.nk"}}
    space.write(**{"connections": connections} | sections)
    try:
        found = build_topology(load_workspace(space.load)).diagnostics
    except ConfigError as error:
        found = list(error.diagnostics)
    assert text in "\n".join(each.summary for each in found if each.severity == "error")


def test_state_has_no_secret(tmp_path: Path) -> None:
    """State and plan have the lines of the account and nothing of its users."""
    space = make_space(tmp_path)
    plan, _ = space.apply()
    assert '"password"' not in json.dumps(plan.to_json())
    entry = next(iter(read_state(tmp_path, "shop").resources.values()))
    assert set(entry.config) <= {"name", "exports", "imports", "roles"}
