"""Discovery of the domains behind a connection, with and without the system account."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.config import load
from jsplan.config.model import LoadOptions
from jsplan.errors import ConnectError, UsageError
from jsplan.facts.discover import DiscoverResult
from jsplan.render.discover_text import render_text
from jsplan.workflows.discover import discover_domains
from tests.conftest import PROGRAM
from tests.support.account_sharing import start_servers, static_accounts, static_user
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeHubLeaf, MakeServer


def workspace(folder: Path, **connections: dict[str, Any]) -> LoadOptions:
    """Write a workspace that has only connections."""
    rows = "".join(
        f"  {key}: {{{', '.join(f'{k}: {v}' for k, v in settings.items())}}}\n"
        for key, settings in connections.items()
    )
    (folder / "jsplan.yaml").write_text(
        f"jsplan: 1\nworkspace: test\nconnections:\n{rows}", encoding="utf-8"
    )
    return LoadOptions(folder)


def discover_until(expected: list[str], options: LoadOptions, **asked: str) -> DiscoverResult:
    """Repeat the discovery until all keys are found, because servers may answer late."""
    deadline = time.monotonic() + 30
    while True:
        found = discover_domains(options, RecordingObserver(), **asked)
        if {d.key for d in found.domains} >= set(expected) or time.monotonic() > deadline:
            return found


def reached(found: DiscoverResult) -> list[tuple[str, str | None]]:
    """Return key and JetStream name of the domains that answer."""
    return [(d.key, d.visible.name) for d in found.domains if not d.visible.failure]


@pytest.mark.matrix
def test_all_domains_of_the_account_are_seen(tmp_path: Path, make_hub_leaf: MakeHubLeaf) -> None:
    """A user of the account discovers hub and leaves, as text that can be pasted."""
    sandbox = make_hub_leaf(leaves=("leaf", "edge"))
    options = workspace(tmp_path, acc={"url": sandbox["hub"].url, "user": "acc", "password": "acc"})
    found = discover_until(["hub", "edge", "leaf"], options)

    assert reached(found) == [("hub", "hub"), ("edge", "edge"), ("leaf", "leaf")]
    assert [list(d.visible.servers) for d in found.domains] == [
        ["hub-server"],
        ["edge-server"],
        ["leaf-server"],
    ]
    with (tmp_path / "jsplan.yaml").open("a", encoding="utf-8") as file:
        file.write(render_text(found) + "\n")
    domains = load(options).domains
    assert {key: (d.connection, d.js_domain) for key, d in domains.items()} == {
        key: ("acc", key) for key in ("hub", "edge", "leaf")
    }
    again = discover_until(["hub", "edge", "leaf"], options)
    assert all(d.declared for d in again.domains)
    assert render_text(again).startswith(
        "# No domain was found that the files do not have.\n# declared already: hub: 0 streams; hub-server "
    )


def test_an_offline_domain_is_named_by_its_downstream(
    tmp_path: Path, make_hub_leaf: MakeHubLeaf
) -> None:
    """A stopped leaf is named by the stream that sources from it, without a line to paste."""
    sandbox = make_hub_leaf()
    hub = sandbox["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.create("COPY", sources=[{"name": "S", "external": {"api": "$JS.leaf.API"}}])
    sandbox["leaf"].stop()
    found = discover_domains(
        workspace(tmp_path, acc={"url": hub.url, "user": "acc", "password": "acc"}),
        RecordingObserver(),
    )

    assert reached(found) == [("hub", "hub")]
    assert (
        "\n# domain leaf does not answer over connection acc, named by stream COPY: "
        in render_text(found)
    )
    assert "  leaf:" not in render_text(found)


@pytest.mark.matrix
def test_a_shared_system_account_is_not_needed(tmp_path: Path) -> None:
    """A leaf with its own system account is discovered through a shared account."""
    accounts = static_accounts({"ACC": ""})
    with start_servers(
        accounts,
        static_user("ACC"),
        leaf=accounts,
        leaf_login=static_user("ACC"),
        remotes=[("acc:acc", "ACC")],
        binary=PROGRAM,
    ) as sandbox:
        options = workspace(
            tmp_path, acc={"url": sandbox["hub"].url, "user": "acc", "password": "acc"}
        )
        assert reached(discover_until(["hub", "leaf"], options)) == [
            ("hub", "hub"),
            ("leaf", "leaf"),
        ]


def test_the_system_account_discovers_more(tmp_path: Path) -> None:
    """The system account also discovers domains of other accounts, which do not answer."""
    limited = '{user: acc, password: acc, permissions: {publish: {deny: "$SYS.>"}}}'
    hub = static_accounts({"ACC": "", "OTHER": ""}).replace("{user: acc, password: acc}", limited)
    remotes = [("sys:sys", "SYS"), ("other:other", "OTHER")]
    with start_servers(
        hub,
        static_user("OTHER"),
        leaf=static_accounts({"OTHER": ""}),
        leaf_login=static_user("OTHER"),
        remotes=remotes,
        binary=PROGRAM,
    ) as sandbox:
        url = sandbox["hub"].url
        options = workspace(
            tmp_path,
            acc={"url": url, "user": "acc", "password": "acc"},
            system={"url": url, "user": "sys", "password": "sys"},
        )
        plain = discover_domains(options, RecordingObserver(), connection="acc")
        assert [d.key for d in plain.domains] == ["hub"]
        more = discover_until(["hub", "leaf"], options, system="system")
        assert reached(more) == [("hub", "hub")]
        assert [(d.key, d.visible.reported_by) for d in more.domains if d.visible.failure] == [
            ("leaf", ["the system account"])
        ]


def test_domains_of_other_connections_are_no_noise(
    tmp_path: Path, make_hub_leaf: MakeHubLeaf
) -> None:
    """Domains that only another connection reaches are not listed for the system account."""
    hub = make_hub_leaf()["hub"]
    acc = {"url": hub.url, "user": hub.user, "password": hub.password}
    alone = discover_until(["hub", "leaf"], workspace(tmp_path, acc=acc))
    options = workspace(
        tmp_path, acc=acc, system={"url": hub.url, "user": "admin", "password": "admin"}
    )
    both = discover_until(["hub", "leaf"], options)

    assert [(d.key, d.visible.failure) for d in alone.domains] == [("hub", ""), ("leaf", "")]
    assert render_text(both) == render_text(alone)


def test_two_accounts_of_one_server_get_keys_of_their_own(tmp_path: Path) -> None:
    """The same domain in two accounts gets two keys."""
    with start_servers(
        static_accounts({"ACC": "", "IMP": ""}), static_user("ACC"), binary=PROGRAM
    ) as sandbox:
        url = sandbox["hub"].url
        options = workspace(
            tmp_path,
            acc={"url": url, "user": "acc", "password": "acc"},
            imp={"url": url, "user": "imp", "password": "imp"},
        )
        found = discover_domains(options, RecordingObserver())
    assert reached(found) == [("hub", "hub"), ("hub-imp", "hub")]
    assert '  hub-imp: {connection: imp, js_domain: "hub"}' in render_text(found)


def test_no_workspace_and_no_domain(tmp_path: Path, make_server: MakeServer) -> None:
    """Without files, discovery uses the environment; a server without a domain gets its line."""
    server = make_server()
    found = discover_domains(
        LoadOptions(tmp_path, environ={"NATS_URL": server.url}), RecordingObserver()
    )
    assert (
        render_text(found)
        .splitlines()[1]
        .startswith("  default: {connection: default, js_domain: null}")
    )


def test_connections_that_fail(tmp_path: Path, make_server: MakeServer) -> None:
    """A failed connection is reported beside the results, or is an error if it is the only one."""
    server = make_server(domain="one")
    dead = {"url": "nats://127.0.0.1:1"}
    found = discover_domains(
        workspace(tmp_path, live={"url": server.url}, dead=dead), RecordingObserver()
    )
    assert reached(found) == [("one", "one")]
    assert list(found.failures) == ["dead"]
    with pytest.raises(ConnectError):
        discover_domains(workspace(tmp_path, dead=dead), RecordingObserver())
    with pytest.raises(UsageError, match="Known connections: dead"):
        discover_domains(workspace(tmp_path, dead=dead), RecordingObserver(), connection="daed")
