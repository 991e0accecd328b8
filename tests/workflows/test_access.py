"""Exports and imports that `jsplan access` prints are complete, and each is required."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.facts.access import FIRST_WAIT
from jsplan.render.access_text import render
from jsplan.sandbox.shapes import User
from jsplan.workflows.access import access
from tests.conftest import PROGRAM
from tests.render.texts import text_of
from tests.support.account_sharing import (
    FakeNsc,
    creds_of,
    publish_many,
    start_servers,
    static_accounts,
    static_user,
    wait_for_messages,
)
from tests.support.jwt import Operator
from tests.support.raw import Raw
from tests.support.relay import Slow
from tests.support.workspaces import RecordingObserver, Space, left_to_do, new_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.access import Access
    from jsplan.sandbox import Sandbox

FILTERED = {
    "MIRROR": None,
    "MIRROR_PART": "orders.new",
    "SOURCE": None,
    "SOURCE_PART": "orders.new",
}
STREAMS: list[dict[str, Any]] = [{"name": "ORDERS", "domain": "hub", "subjects": ["orders.>"]}]
for _name, _filter in FILTERED.items():
    _origin = {"name": "ORDERS", "domain": "hub"} | ({"filter_subject": _filter} if _filter else {})
    STREAMS.append(
        {"name": _name, "domain": "imp"}
        | ({"mirror": _origin} if "MIRROR" in _name else {"sources": [_origin]})
    )
IMPORT = {"from": "hub", "into": "imp", "api": "JS.acc@hub.API", "deliver": "deliver.acc.imp"}
COPIES = [
    "imp/stream/MIRROR",
    "imp/stream/MIRROR_PART",
    "imp/stream/SOURCE",
    "imp/stream/SOURCE_PART",
]


def space(folder: Path, url: str = "nats://127.0.0.1:1", **logins: dict[str, Any]) -> Space:
    """Build a workspace that reaches the accounts ACC and IMP with these logins."""
    keys = {"acc": "ACC", "imp": "IMP", "sys": "SYS"}
    connections = {
        key: {"url": url, "account": account} | logins.get(key, {"user": key, "password": key})
        for key, account in keys.items()
    }
    domains = {"hub": {"connection": "acc"}, "imp": {"connection": "imp", "js_domain": "hub"}}
    base = {
        "jsplan": 1,
        "workspace": "test",
        "connections": connections,
        "domains": domains,
        "imports": [IMPORT],
    }
    return Space(folder, base).write(streams=STREAMS)


def required_access(workspace: Space) -> Access:
    """Return the required access without asking a server."""
    return access(workspace.load, RecordingObserver())


def check_access(workspace: Space, system: str | None = None) -> Access:
    """Return the access that the servers confirm."""
    return access(workspace.load, RecordingObserver(), ask=True, system=system)


def lines(found: Access, account: str) -> str:
    """Return the printed configuration of one account."""
    return next(a.configuration for a in found.accounts if a.account == account)


def publish_and_compare(
    url: str, acc: dict[str, Any], imp: dict[str, Any], count: int, size: int
) -> None:
    """Publish messages inside and outside the filters, and require all of them downstream."""
    with Raw(url, **acc, timeout=60) as raw:
        publish_many(raw, {"orders.new": count, "orders.old": 100}, size)
    expected = {name: count if part else count + 100 for name, part in FILTERED.items()}
    with Raw(url, **imp, timeout=60) as raw:
        assert wait_for_messages(raw, expected) == expected


def test_printed_exports_and_imports(tmp_path: Path) -> None:
    """Exports name the importing account, each subject appears once, and nsc output is equal."""
    found = required_access(space(tmp_path))

    assert lines(found, "ACC") == (
        "exports: [\n"
        '    {service: "$JS.FC.ORDERS.>", accounts: [IMP]}\n'
        '    {service: "$JS.FC.hub.jal3Zke2.ORDERS.>", accounts: [IMP]}  # js_ack_fc_v2\n'
        '    {service: "$JS.hub.API.CONSUMER.CREATE.ORDERS", accounts: [IMP]}\n'
        '    {service: "$JS.hub.API.CONSUMER.CREATE.ORDERS.>", accounts: [IMP]}\n'
        '    {stream: "deliver.acc.imp.>", accounts: [IMP]}\n'
        "]\n"
    )
    assert lines(found, "IMP") == (
        "imports: [\n"
        '    {service: {account: ACC, subject: "$JS.FC.ORDERS.>"}}\n'
        '    {service: {account: ACC, subject: "$JS.FC.hub.jal3Zke2.ORDERS.>"}}  # js_ack_fc_v2\n'
        '    {service: {account: ACC, subject: "$JS.hub.API.CONSUMER.CREATE.ORDERS"}, to: "JS.acc@hub.API.CONSUMER.CREATE.ORDERS"}\n'
        '    {service: {account: ACC, subject: "$JS.hub.API.CONSUMER.CREATE.ORDERS.>"}, to: "JS.acc@hub.API.CONSUMER.CREATE.ORDERS.>"}\n'
        '    {stream: {account: ACC, subject: "deliver.acc.imp.>"}}\n'
        "]\n"
    )
    whole = [
        "imp/stream/MIRROR mirrors hub/stream/ORDERS",
        "imp/stream/SOURCE sources hub/stream/ORDERS",
    ]
    part = [
        f"imp/stream/{name}_PART {verb} hub/stream/ORDERS with a filter"
        for name, verb in (("MIRROR", "mirrors"), ("SOURCE", "sources"))
    ]
    assert [sorted(need.needed_by) for need in found.needs] == [
        sorted(whole + part),
        sorted(whole + part),
        whole,
        part,
        sorted(whole + part),
    ]
    nsc = {a.account: a.nsc for a in found.accounts}
    assert nsc["ACC"][2] == (
        "nsc add export --account ACC --name '$JS.hub.API.CONSUMER.CREATE.ORDERS' --subject '$JS.hub.API.CONSUMER.CREATE.ORDERS' --service"
    )
    assert nsc["IMP"][-1] == (
        "nsc add import --account IMP --src-account ACC --name 'deliver.acc.imp.>' --remote-subject 'deliver.acc.imp.>'"
    )


def start_static(
    folder: Path, sandboxes: list[Sandbox], blocks: dict[str, str], extra: str = ""
) -> Space:
    """Start servers with these accounts, and open a workspace on them."""
    text = static_accounts(blocks) + extra
    sandboxes.append(start_servers(text, static_user("ACC"), binary=PROGRAM))
    sandboxes[-1].start()
    return space(folder, sandboxes[-1]["hub"].url)


@pytest.mark.matrix
def test_static_accounts_pass_a_large_flow(tmp_path: Path, sandboxes: list[Sandbox]) -> None:
    """Servers with the printed configuration pass 15,000 messages to mirrors and sources."""
    printed = required_access(space(tmp_path))
    workspace = start_static(
        tmp_path, sandboxes, {name: lines(printed, name) for name in ("ACC", "IMP")}
    )
    plan, result = workspace.apply()

    assert (result.exit_code, plan.summary["add"]) == (0, 5)
    assert left_to_do(workspace.plan()) == []
    found = check_access(workspace)
    assert [(need.status, need.detail) for need in found.needs] == [("ok", "")] * 5
    url = sandboxes[-1]["hub"].url
    publish_and_compare(
        url, {"user": "acc", "password": "acc"}, {"user": "imp", "password": "imp"}, 15_000, 1024
    )
    assert left_to_do(workspace.plan()) == []


@pytest.mark.matrix
def test_the_form_of_replies_that_a_server_uses_is_enough(
    tmp_path: Path, sandboxes: list[Sandbox], server_version: tuple[int, int, int]
) -> None:
    """With `js_ack_fc_v2` a flow needs only the second form, and without it only the first."""
    printed = required_access(space(tmp_path))
    blocks = {name: lines(printed, name) for name in ("ACC", "IMP")}
    is_new = server_version >= (2, 14)
    first, second = "$JS.FC.ORDERS.>", "$JS.FC.hub.jal3Zke2.ORDERS.>"
    workspace = start_static(
        tmp_path,
        sandboxes,
        {name: without_line(text, first if is_new else second) for name, text in blocks.items()},
        "feature_flags { js_ack_fc_v2: true }\n" if is_new else "",
    )
    assert workspace.apply()[1].exit_code == 0

    url = sandboxes[-1]["hub"].url
    publish_and_compare(
        url, {"user": "acc", "password": "acc"}, {"user": "imp", "password": "imp"}, 10_000, 1024
    )
    found = check_access(workspace)
    assert {need.subject for need in found.needs if need.status != "ok"} == {
        first if is_new else second
    }
    assert len(found.with_status("missing")) == is_new


def two_origins(
    folder: Path, url: str = "nats://127.0.0.1:1", names: tuple[str, str] = ("M", "M")
) -> Space:
    """A workspace whose stream AGG has sources of these names in the accounts B and C."""
    keys = ("a", "b", "c")
    connections = {
        key: {"url": url, "user": key, "password": key, "account": key.upper()} for key in keys
    }
    base = {
        "jsplan": 1,
        "workspace": "test",
        "connections": connections,
        "domains": {key: {"connection": key, "js_domain": "hub"} for key in keys},
        "imports": [
            {"from": key, "into": "a", "api": f"JS.{key}.API", "deliver": f"deliver.{key}"}
            for key in ("b", "c")
        ],
    }
    named = dict(zip(("b", "c"), names, strict=True))
    origins = [{"name": name, "domain": key, "subjects": ["m.>"]} for key, name in named.items()]
    sources = [{"name": name, "domain": key} for key, name in named.items()]
    return Space(folder, base).write(
        streams=[*origins, {"name": "AGG", "domain": "a", "sources": sources}]
    )


@pytest.mark.matrix
def test_sources_from_two_accounts(
    tmp_path: Path, sandboxes: list[Sandbox], server_version: tuple[int, int, int]
) -> None:
    """Each account exports the delivery subject of its own flow, and all messages arrive.

    The plan says of each new flow that its exports are not checked.
    """
    # 2.10 takes no two imports of one subject, as flow control of streams of one name needs.
    names = ("M", "M") if server_version >= (2, 11) else ("M", "N")
    printed = required_access(two_origins(tmp_path, names=names))
    assert "deliver.c" not in lines(printed, "B")
    assert "deliver.b" not in lines(printed, "C")
    blocks = {name: lines(printed, name) for name in ("A", "B", "C")}
    sandboxes.append(start_servers(static_accounts(blocks), static_user("A"), binary=PROGRAM))
    sandboxes[-1].start()
    url = sandboxes[-1]["hub"].url
    workspace = two_origins(tmp_path, url, names)
    plan, result = workspace.apply()

    assert result.exit_code == 0
    notes = [(d.code, d.address) for d in plan.diagnostics if d.code == "JS478"]
    assert notes == [("JS478", "a/stream/AGG")] * 2
    assert {need.status for need in check_access(workspace).needs} == {"ok"}
    for key in ("b", "c"):
        with Raw(url, key, key, timeout=60) as raw:
            publish_many(raw, {f"m.{key}": 1_500}, 4_096)
    with Raw(url, "a", "a", timeout=60) as raw:
        assert wait_for_messages(raw, {"AGG": 3_000}) == {"AGG": 3_000}
    assert workspace.plan().diagnostics == []


def jwt_server(
    folder: Path, sandboxes: list[Sandbox], accounts: list[str], commands: list[str]
) -> tuple[dict[str, Path], str]:
    """Start a server of JWT accounts and run `nsc` commands; return creds files and URL."""
    operator = Operator()
    for name in accounts:
        operator.account(name)
    nsc = FakeNsc(operator)
    for command in commands:
        nsc.run(command)
    creds = creds_of(operator, folder)
    sandboxes.append(
        start_servers(
            operator.configuration(),
            User(accounts[0], None, None, creds[accounts[0]]),
            binary=PROGRAM,
        )
    )
    sandboxes[-1].start()
    return creds, sandboxes[-1]["hub"].url


def test_a_public_key_has_its_connection_beside_it(tmp_path: Path) -> None:
    """The text names the connection of an account that is known by its public key."""
    key = Operator().account("ACC").public
    found = required_access(space(tmp_path, acc={"account": key}))
    text = text_of(lambda console: render(found, console))

    assert f"# Account {key} (acc), in the configuration" in text
    assert "# Account IMP, in the configuration" in text


@pytest.mark.matrix
def test_jwt_accounts_pass_a_flow(tmp_path: Path, sandboxes: list[Sandbox]) -> None:
    """JWT accounts with the printed `nsc` commands pass 5,000 messages to mirrors and sources."""
    commands = [
        line for account in required_access(space(tmp_path)).accounts for line in account.nsc
    ]
    creds, url = jwt_server(tmp_path, sandboxes, ["ACC", "IMP"], commands)
    workspace = space(
        tmp_path, url, **{name.lower(): {"creds": str(path)} for name, path in creds.items()}
    )
    _, result = workspace.apply()

    assert result.exit_code == 0
    assert {need.status for need in check_access(workspace).needs} == {"ok"}
    assert {need.status for need in check_access(workspace, "sys").needs} == {"ok"}
    publish_and_compare(url, {"creds": creds["ACC"]}, {"creds": creds["IMP"]}, 5_000, 1024)
    assert left_to_do(workspace.plan()) == []
    for path in (tmp_path / "state").iterdir():
        assert "eyJ" not in path.read_text("utf-8")


@pytest.mark.parametrize("system", [None, "sys"])
def test_each_missing_part_is_named_alone(
    system: str | None, tmp_path: Path, sandboxes: list[Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one export or import, its subject is missing; the system account says whose it is."""
    monkeypatch.setattr("jsplan.facts.access.ANSWER_TIMEOUT", 0.0)
    count, imports, streams, domains = (
        8,
        list[dict[str, Any]](),
        list[dict[str, Any]](),
        dict[str, Any](),
    )
    connections = {"sys": {"account": "SYS"}}
    for n in range(count):  # pairs of accounts, each without another part
        connections |= {f"acc{n}": {"account": f"ACC{n}"}, f"imp{n}": {"account": f"IMP{n}"}}
        domains |= {
            f"hub{n}": {"connection": f"acc{n}", "js_domain": "hub"},
            f"imp{n}": {"connection": f"imp{n}", "js_domain": "hub"},
        }
        imports.append(IMPORT | {"from": f"hub{n}", "into": f"imp{n}"})
        streams += json.loads(
            json.dumps(STREAMS)
            .replace('"domain": "hub"', f'"domain": "hub{n}"')
            .replace('"imp"', f'"imp{n}"')
        )
    workspace = new_space(tmp_path)
    workspace.write(connections=connections, domains=domains, imports=imports, streams=streams)
    needed = required_access(workspace)
    optional = [need.subject for need in needed.needs if need.optional]
    printed = {
        account.account: [
            line for line in account.nsc if not any(subject in line for subject in optional)
        ]
        for account in needed.accounts
    }
    subjects = [need.subject for need in needed.required if need.owner == "ACC0"]
    assert {len(commands) for commands in printed.values()} == {len(subjects)} == {count // 2}
    for n in range(count):
        del printed[f"{'ACC' if n < count // 2 else 'IMP'}{n}"][n % (count // 2)]

    creds, url = jwt_server(
        tmp_path,
        sandboxes,
        list(printed),
        [line for commands in printed.values() for line in commands],
    )
    for key, connection in connections.items():
        connection |= {"url": url, "creds": str(creds[key.upper()])}
    found = check_access(
        workspace.write(connections=connections, domains=domains, imports=imports, streams=streams),
        system,
    )

    missing = {need.owner: (need.subject, need.detail) for need in found.with_status("missing")}
    assert {owner: subject for owner, (subject, _) in missing.items()} == {
        f"ACC{n}": subjects[n % (count // 2)] for n in range(count)
    }
    assert (len(found.with_status("missing")), len(found.with_status("ok"))) == (
        count,
        count * len(subjects) - count,
    )
    if system:
        reasons = [
            f"account ACC{n} does not export it"
            if n < count // 2
            else f"account IMP{n} does not import it"
            for n in range(count)
        ]
        assert [detail for _, (_, detail) in sorted(missing.items())] == reasons


def test_checking_access_changes_nothing(tmp_path: Path, sandboxes: list[Sandbox]) -> None:
    """Checking access leaves streams, consumers, positions and messages unchanged."""
    printed = required_access(space(tmp_path))
    workspace = start_static(
        tmp_path, sandboxes, {name: lines(printed, name) for name in ("ACC", "IMP")}
    )
    workspace.apply()
    url = sandboxes[-1]["hub"].url
    with Raw(url, "acc", "acc") as acc, Raw(url, "imp", "imp") as imp:
        publish_many(acc, {"orders.new": 10}, 10)
        expected = dict.fromkeys(FILTERED, 10)
        assert wait_for_messages(imp, expected) == expected

        def seen() -> list[Any]:
            shown = [raw.api_ok("$JS.API.STREAM.LIST")["streams"] for raw in (acc, imp)]
            consumers = [
                acc.api_ok("$JS.API.CONSUMER.LIST.ORDERS")["consumers"],
                *(imp.api_ok(f"$JS.API.CONSUMER.LIST.{n}")["consumers"] for n in FILTERED),
            ]
            states = [
                [(s["config"], s["state"], s["created"]) for s in streams] for streams in shown
            ]
            return [states, [[c["name"] for c in found] for found in consumers]]

        before = seen()
        assert {need.status for need in check_access(workspace, "sys").needs} == {"ok"}
        assert seen() == before


def test_a_probe_that_a_stream_would_store_is_not_sent(
    tmp_path: Path, sandboxes: list[Sandbox]
) -> None:
    """A probe that a stream would store is not sent, and the system account still answers."""
    printed = required_access(space(tmp_path))
    workspace = start_static(
        tmp_path, sandboxes, {name: lines(printed, name) for name in ("ACC", "IMP")}
    )
    url = sandboxes[-1]["hub"].url
    with Raw(url, "acc", "acc") as acc:
        acc.create("ALL", subjects=["deliver.>"])

        found = check_access(workspace)
        assert [(n.subject, n.detail) for n in found.with_status("unknown")] == [
            ("deliver.acc.imp.>", "not tried, since stream ALL in hub would store it")
        ]
        assert {need.status for need in check_access(workspace, "sys").needs} == {"ok"}
        assert acc.state("ALL")["messages"] == 0


def without_line(text: str, subject: str) -> str:
    """Remove the line of one export or import."""
    kept = [line for line in text.splitlines() if f'"{subject}"' not in line]
    assert len(kept) == len(text.splitlines()) - 1
    return "\n".join(kept)


def test_slow_answers_change_no_status(
    tmp_path: Path, sandboxes: list[Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With answers slower than the first wait, what is missing is missing, and the rest is ok."""
    monkeypatch.setattr("jsplan.facts.access.ANSWER_TIMEOUT", 0.0)
    monkeypatch.setattr("jsplan.facts.access.MIN_TRIES", 2)
    printed = required_access(space(tmp_path))
    blocks = {name: lines(printed, name) for name in ("ACC", "IMP")}
    start_static(
        tmp_path, sandboxes, blocks | {"IMP": without_line(blocks["IMP"], "$JS.FC.ORDERS.>")}
    )
    server = sandboxes[-1]["hub"]
    with Slow(server.port, 3 * FIRST_WAIT) as relay:
        found = check_access(space(tmp_path, server.url.replace(str(server.port), str(relay.port))))

    assert {need.subject: need.status for need in found.needs} == {
        "$JS.FC.ORDERS.>": "missing",
        "$JS.FC.hub.jal3Zke2.ORDERS.>": "ok",
        "$JS.hub.API.CONSUMER.CREATE.ORDERS": "ok",
        "$JS.hub.API.CONSUMER.CREATE.ORDERS.>": "ok",
        "deliver.acc.imp.>": "ok",
    }


def test_requests_without_an_answer_prove_nothing(
    tmp_path: Path, sandboxes: list[Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that is taken and not answered leaves a status unknown, and no probe is stored."""
    monkeypatch.setattr("jsplan.facts.access.ANSWER_TIMEOUT", 0.0)
    blocks = static_accounts({"ACC": "", "IMP": ""}, without=("IMP",))
    sandboxes.append(start_servers(blocks, static_user("ACC"), binary=PROGRAM))
    sandboxes[-1].start()
    url = sandboxes[-1]["hub"].url
    login = {"user": "imp", "password": "imp", "timeout": "1s"}
    with Raw(url, "imp", "imp") as domain, Raw(url, "imp", "imp") as imported:
        domain.subscribe("$JS.other.API.STREAM.NAMES")
        imported.subscribe("JS.acc@hub.API.CONSUMER.CREATE.ORDERS")
        workspace = space(tmp_path, url, imp=login)
        workspace.base["domains"]["imp"]["js_domain"] = "other"
        found = check_access(workspace.write(streams=STREAMS))

    service, stream = found.with_status("unknown")
    assert (service.subject, service.detail) == (
        "$JS.hub.API.CONSUMER.CREATE.ORDERS",
        "no answer within 1 s: the servers are slow, or only another client receives it",
    )
    assert stream.subject == "deliver.acc.imp.>"
    assert str(stream.detail).startswith(
        "not tried, since a stream may store it: domain imp does not answer: no answer to $JS.other.API.STREAM.NAMES"
    )
    assert [need.subject for need in found.with_status("missing")] == [
        "$JS.FC.ORDERS.>",
        "$JS.hub.API.CONSUMER.CREATE.ORDERS.>",
    ]


def test_requests_of_another_account_prove_nothing(
    tmp_path: Path, sandboxes: list[Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import is missing although the same subject is received from another account."""
    monkeypatch.setattr("jsplan.facts.access.ANSWER_TIMEOUT", 0.0)
    workspace = space(tmp_path)
    base = workspace.base
    base["connections"]["other"] = {"account": "OTHER", "user": "other", "password": "other"}
    base["domains"]["other"] = {"connection": "other", "js_domain": "hub"}
    base["imports"] = [IMPORT, IMPORT | {"into": "other", "deliver": "deliver.acc.other"}]
    copies = json.loads(json.dumps(STREAMS[1:]).replace('"imp"', '"other"'))
    base["connections"]["other"]["url"] = base["connections"]["acc"]["url"]
    workspace.write(streams=[*STREAMS, *copies])
    printed = required_access(workspace)
    subject = "$JS.hub.API.CONSUMER.CREATE.ORDERS"
    blocks = {name: lines(printed, name) for name in ("ACC", "IMP", "OTHER")}
    start_static(tmp_path, sandboxes, blocks | {"OTHER": without_line(blocks["OTHER"], subject)})
    for connection in base["connections"].values():
        connection["url"] = sandboxes[-1]["hub"].url

    found = check_access(workspace.write(streams=[*STREAMS, *copies]))
    assert [(need.subject, need.user) for need in found.with_status("missing")] == [
        (subject, "OTHER")
    ]
    assert found.with_status("unknown") == []


def test_a_wide_export_without_an_import(
    tmp_path: Path, sandboxes: list[Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`$JS.API.>` of a server with a domain counts as an export, so the import is missing."""
    monkeypatch.setattr("jsplan.facts.access.ANSWER_TIMEOUT", 0.0)
    workspace = start_static(
        tmp_path, sandboxes, {"ACC": 'exports: [{service: "$JS.API.>"}]', "IMP": ""}
    )

    found = {need.subject: need.detail for need in check_access(workspace, "sys").needs}
    assert found == {
        "$JS.FC.ORDERS.>": "account ACC does not export it",
        "$JS.FC.hub.jal3Zke2.ORDERS.>": "account ACC does not export it",
        "$JS.hub.API.CONSUMER.CREATE.ORDERS": "account IMP does not import it",
        "$JS.hub.API.CONSUMER.CREATE.ORDERS.>": "account IMP does not import it",
        "deliver.acc.imp.>": "account ACC does not export it",
    }
