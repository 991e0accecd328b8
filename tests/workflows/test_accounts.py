"""Mirrors, sources and consumers between accounts on real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.documents.plan import Plan
from jsplan.errors import ConnectError
from jsplan.options import DriftOptions
from jsplan.sandbox.shapes import User
from jsplan.workflows.access import access
from jsplan.workflows.drift import drift
from tests.conftest import PROGRAM
from tests.support.account_sharing import (
    creds_of,
    publish_many,
    start_servers,
    static_accounts,
    static_user,
    wait_for_messages,
)
from tests.support.jwt import NO_JETSTREAM, Operator
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, Space, left_to_do, new_space

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.sandbox import Sandbox

EXPORTS = 'exports: [{service: "$JS.hub.API.>", response_type: stream}, {service: "$JS.FC.>"}, {stream: "deliver.>"}]'
IMPORTS = """imports: [
    {service: {account: ACC, subject: "$JS.hub.API.>"}, to: "JS.acc@hub.API.>"}
    {service: {account: ACC, subject: "$JS.FC.>"}}
    {stream: {account: ACC, subject: "deliver.>"}}
]"""
ROW = {"from": "hub", "into": "imp", "api": "JS.acc@hub.API", "deliver": "deliver.imp"}
ORDERS = {"name": "ORDERS", "domain": "hub", "subjects": ["orders.>"]}
COPY = {"name": "COPY", "domain": "imp", "mirror": {"name": "ORDERS", "domain": "hub"}}


@pytest.fixture(scope="module")
def system() -> Iterator[Sandbox]:
    """A server whose account IMP may use the whole API of ACC."""
    with start_servers(
        static_accounts({"ACC": EXPORTS, "IMP": IMPORTS}), static_user("ACC"), binary=PROGRAM
    ) as sandbox:
        yield sandbox


@pytest.fixture
def space(tmp_path: Path, system: Sandbox) -> Space:
    """A workspace of the two accounts, without streams."""
    url = system["hub"].url
    for name in ("acc", "imp"):
        with Raw(url, name, name) as raw:
            for stream in raw.api_ok("$JS.API.STREAM.NAMES")["streams"] or []:
                raw.api_ok(f"$JS.API.STREAM.DELETE.{stream}")
    connections = {
        name: {"url": url, "user": name, "password": name, "account": name.upper()}
        for name in ("acc", "imp")
    }
    domains = {"hub": {"connection": "acc"}, "imp": {"connection": "imp", "js_domain": "hub"}}
    return new_space(tmp_path, connections=connections, domains=domains, imports=[ROW])


def external(system: Sandbox, stream: str = "COPY") -> Any:
    """Return how a live stream reaches its origins."""
    with Raw(system["hub"].url, "imp", "imp") as raw:
        config = raw.config(stream)
    return (
        config["mirror"]["external"]
        if "mirror" in config
        else {o["name"]: o["external"] for o in config["sources"]}
    )


def codes(plan: Plan) -> list[tuple[str, str, str]]:
    """Return severity, code and address of all findings but notes of unchecked imports."""
    found = (d for d in plan.diagnostics if d.code != "JS478")
    return sorted((d.severity, d.code, str(d.address)) for d in found)


@pytest.mark.matrix
def test_a_mirror_that_exists_is_equal_whatever_its_prefix(space: Space, system: Sandbox) -> None:
    """A mirror that was created outside jsplan is adopted unchanged and keeps its prefix."""
    with Raw(system["hub"].url, "imp", "imp") as raw:
        by_hand = {"api": "JS.acc@hub.API", "deliver": "deliver.by.hand"}
        raw.create("COPY", mirror={"name": "ORDERS", "external": by_hand})
    plan, result = space.write(streams=[ORDERS, COPY]).apply()
    assert (
        plan.summary["import"],
        plan.summary["add"],
        plan.summary["change"],
        result.exit_code,
    ) == (1, 1, 0, 0)
    assert external(system) == by_hand
    with Raw(system["hub"].url, "acc", "acc") as raw:
        publish_many(raw, {"orders.a": 10}, 10)
    with Raw(system["hub"].url, "imp", "imp") as raw:
        assert wait_for_messages(raw, {"COPY": 10}) == {"COPY": 10}

    spelled = {
        "name": "COPY",
        "domain": "imp",
        "mirror": {"name": "ORDERS", "external": {"api": "JS.acc@hub.API"}},
    }
    for sections in (
        {"streams": [ORDERS, COPY]},
        {"streams": [ORDERS, COPY], "imports": [ROW | {"deliver": "deliver.other"}]},
        {"streams": [ORDERS, spelled]},
    ):
        assert [step.op for step in space.write(**sections).plan().steps if step.request] == []
    found = drift(space.load, DriftOptions(), RecordingObserver())
    assert (found.summary["changed"], found.summary["missing"], found.summary["unmanaged"]) == (
        0,
        0,
        0,
    )


@pytest.mark.since_2_12
@pytest.mark.matrix
def test_a_prefix_in_the_files_is_a_change(space: Space, system: Sandbox) -> None:
    """Only `deliver:` changes a prefix, which for a mirror is a replacement."""
    source = {"name": "ALL", "domain": "imp", "sources": [{"name": "ORDERS", "domain": "hub"}]}
    space.write(streams=[ORDERS, COPY, source]).apply()
    assert external(system) == {"api": "JS.acc@hub.API", "deliver": "deliver.imp.imp.COPY"}
    assert external(system, "ALL") == {
        "ORDERS": {"api": "JS.acc@hub.API", "deliver": "deliver.imp.imp.ALL.ORDERS"}
    }

    written = [{**COPY, "mirror": COPY["mirror"] | {"deliver": "deliver.mine"}}]  # type: ignore[operator]
    plan = space.write(streams=[ORDERS, *written, source]).plan()
    assert [
        (c.address, c.change.actions)
        for c in plan.resource_changes
        if c.change.actions != ["no-op"]
    ] == [("imp/stream/COPY", ["delete", "create"])]
    assert ("error", "JS303", "imp/stream/COPY") in codes(plan)


def test_a_new_source_leaves_the_prefix_of_the_other_one(space: Space, system: Sandbox) -> None:
    """A new source is added by an update that leaves the prefix of the other one unchanged."""
    before = {"name": "ALL", "domain": "imp", "sources": [{"name": "ORDERS", "domain": "hub"}]}
    space.write(streams=[ORDERS, before]).apply()
    other = {"name": "SALES", "domain": "hub", "subjects": ["sales.>"]}
    after = before | {
        "sources": [
            *before["sources"],
            {"name": "SALES", "domain": "hub", "filter_subject": "sales.x"},
        ]
    }
    space.write(streams=[ORDERS, other, after], imports=[ROW | {"deliver": "deliver.new"}])
    _, result = space.apply()
    assert result.exit_code == 0
    assert {
        name: external_of["deliver"] for name, external_of in external(system, "ALL").items()
    } == {
        "ORDERS": "deliver.imp.imp.ALL.ORDERS",
        "SALES": "deliver.new.imp.ALL.SALES",
    }
    assert left_to_do(space.plan()) == []


def test_unusual_origins_are_warnings(space: Space) -> None:
    """A missing origin and a filter without a match are warnings with a location."""
    part = {
        "name": "PART",
        "domain": "imp",
        "sources": [{"name": "COPY", "filter_subject": "sales.>"}],
    }
    lost = {"name": "LOST", "domain": "imp", "mirror": {"name": "MISSING", "domain": "hub"}}
    plan, result = space.write(streams=[ORDERS, COPY, part, lost]).apply()

    assert codes(plan) == [
        ("warning", "JS452", "imp/stream/LOST"),
        ("warning", "JS453", "imp/stream/PART"),
    ]
    assert all(d.range is not None for d in plan.diagnostics)
    assert "it stores orders.>" in next(d.summary for d in plan.diagnostics if d.code == "JS453")
    assert (result.exit_code, plan.summary["add"]) == (0, 4)
    assert codes(space.plan()) == codes(plan)
    with_origin = [
        ORDERS,
        COPY,
        part,
        lost,
        {"name": "MISSING", "domain": "hub", "subjects": ["missing"]},
    ]
    assert codes(space.write(streams=with_origin).plan()) == [
        ("warning", "JS453", "imp/stream/PART")
    ]


def test_an_unmanaged_origin_is_no_finding(space: Space, system: Sandbox) -> None:
    """An unmanaged origin has no finding."""
    with Raw(system["hub"].url, "acc", "acc") as raw:
        raw.create("THEIRS", subjects=["theirs.>"])
    ours = {
        "name": "OURS",
        "domain": "imp",
        "sources": [{"name": "THEIRS", "domain": "hub", "filter_subject": "theirs.a"}],
    }
    assert codes(space.write(streams=[ours]).plan()) == []


def test_a_mirror_of_its_own_jetstream_is_replaced(space: Space, system: Sandbox) -> None:
    """A live mirror whose external prefix is its own JetStream is replaced."""
    with Raw(system["hub"].url, "acc", "acc") as raw:
        raw.create("ORDERS", subjects=["orders.>"])
        raw.create("HERE", mirror={"name": "ORDERS", "external": {"api": "$JS.hub.API"}})
    plan = space.write(
        streams=[
            ORDERS,
            {"name": "HERE", "domain": "hub", "mirror": {"name": "ORDERS", "domain": "hub"}},
        ]
    ).plan()
    assert {c.address: c.change.actions for c in plan.resource_changes}["hub/stream/HERE"] == [
        "delete",
        "create",
    ]


def test_a_missing_import_is_an_error(space: Space) -> None:
    """A missing import is an error that names `jsplan access`."""
    space.base["domains"]["hub-by-imp"] = {
        "connection": "imp",
        "api_prefix": "JS.missing.API",
        "same_as": "hub",
    }
    consumer = {"domain": "hub-by-imp", "stream": "ORDERS", "name": "C", "ack_policy": "explicit"}
    with pytest.raises(
        ConnectError, match=r"no server answers JS\.missing\.API over connection imp"
    ) as caught:
        space.write(streams=[ORDERS], consumers=[consumer]).plan()
    assert "jsplan access" in (caught.value.hint or "")


# --- exports of the tutorials ---------------------------------------------------------------------

LEAF_TUTORIAL = {
    "ACC": """exports: [
            {service: "$JS.hub.API.CONSUMER.CREATE.*", response_type: "stream"}
            {stream: "deliver.acc.hub.>"}
            {service: "$JS.hub.API.CONSUMER.MSG.NEXT.aggregate-test-leaf.dur", response_type: "stream"}
            {service: "$JS.ACK.aggregate-test-leaf.dur.>"}
            {service: "$JS.FC.aggregate-test-leaf.dur.>"}
        ]""",
    "IMPORT_MIRROR": """imports: [
            {service: {account: ACC, subject: "$JS.hub.API.CONSUMER.CREATE.*"}, to: "JS.acc@hub.API.CONSUMER.CREATE.*" }
            {service: {account: ACC, subject: "$JS.FC.aggregate-test-leaf.dur.>"}}
            {stream: {account: ACC, subject: deliver.acc.hub.import_mirror.>}}
        ]""",
    "IMPORT_CLIENT": """imports: [
            {service: {account: ACC, subject: "$JS.hub.API.CONSUMER.MSG.NEXT.aggregate-test-leaf.dur"},
                to: "JS.acc@hub.API.CONSUMER.MSG.NEXT.aggregate-test-leaf.dur" }
            {service: {account: ACC, subject: "$JS.ACK.aggregate-test-leaf.dur.>"}}
        ]""",
}  # fmt: skip


@pytest.mark.matrix
def test_the_exports_of_the_leaf_node_tutorial(tmp_path: Path) -> None:
    """The exports of the leaf node tutorial pass few messages, and the check names two more."""
    with start_servers(
        static_accounts(LEAF_TUTORIAL), static_user("ACC"), binary=PROGRAM
    ) as sandbox:
        url = sandbox["hub"].url
        names = {
            "acc": "ACC",
            "mirror": "IMPORT_MIRROR",
            "client": "IMPORT_CLIENT",
            "system": "SYS",
        }
        connections = {
            key: {
                "url": url,
                "user": account.lower(),
                "password": account.lower(),
                "account": account,
            }
            for key, account in names.items()
        }
        domains = {
            "hub": {"connection": "acc"},
            "hub-mirror": {"connection": "mirror", "js_domain": "hub"},
            "hub-client": {
                "connection": "client",
                "api_prefix": "JS.acc@hub.API",
                "same_as": "hub",
            },
        }
        deliver = "deliver.acc.hub.import_mirror"
        imports = [
            {"from": "hub", "into": "hub-mirror", "api": "JS.acc@hub.API", "deliver": deliver},
            {
                "from": "hub",
                "into": "hub-client",
                "api": "JS.acc@hub.API",
                "consumers": ["aggregate-test-leaf/dur"],
            },
        ]
        origin = {"name": "aggregate-test-leaf", "domain": "hub"}
        streams = [
            {
                "name": "aggregate-test-leaf",
                "domain": "hub",
                "subjects": ["test", "test.>"],
                "consumers": [{"name": "dur", "ack_policy": "explicit"}],
            },
            {"name": "aggregate-test-leaf-from-acc", "domain": "hub-mirror", "mirror": origin},
        ]
        space = new_space(tmp_path, connections=connections, domains=domains, imports=imports)
        _, result = space.write(streams=streams).apply()
        assert result.exit_code == 0
        with Raw(url, "acc", "acc") as raw:
            publish_many(raw, {"test": 5}, 100)
        with Raw(url, "import_mirror", "import_mirror") as raw:
            assert wait_for_messages(raw, {"aggregate-test-leaf-from-acc": 5}) == {
                "aggregate-test-leaf-from-acc": 5
            }
        part = {
            "name": "part",
            "domain": "hub-mirror",
            "sources": [origin | {"filter_subject": "test.a"}],
        }
        for system_connection in (None, "system"):
            found = access(
                space.write(streams=[*streams, part]).load,
                RecordingObserver(),
                ask=True,
                system=system_connection,
            )
            assert [(need.subject, need.user) for need in found.with_status("missing")] == [
                ("$JS.FC.aggregate-test-leaf.>", "IMPORT_MIRROR"),
                ("$JS.hub.API.CONSUMER.CREATE.aggregate-test-leaf.>", "IMPORT_MIRROR"),
            ]
            assert len(found.with_status("ok")) == len(found.required) - 2


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("domain", "exported"), [(None, "$JS.API"), ("hub", "$JS.API"), ("hub", "$JS.hub.API")]
)
def test_the_exports_of_the_sharing_tutorial(
    domain: str | None, exported: str, tmp_path: Path
) -> None:
    """The exports of the sharing tutorial suffice for a mirror of 5 MB and consumers of B."""
    operator = Operator()
    a, b, c = operator.account("A"), operator.account("B", NO_JETSTREAM), operator.account("C")
    a.export("service", f"{exported}.>")
    a.export("stream", "toaccount.*.>", token_position=2)
    a.export("service", "$JS.FC.>")
    for account in (b, c):
        account.take("service", a, f"{exported}.>", "$JS.A.API.>")
        account.take("stream", a, f"toaccount.{account.public}.>")
        account.take("service", a, "$JS.FC.>")
    creds = creds_of(operator, tmp_path)
    with start_servers(
        operator.configuration(), User("A", None, None, creds["A"]), domain=domain, binary=PROGRAM
    ) as sandbox:
        url = sandbox["hub"].url
        connections = {
            name.lower(): {"url": url, "creds": str(path), "account": name}
            for name, path in creds.items()
        }
        domains = {
            "a": {"connection": "a", "js_domain": domain},
            "c": {"connection": "c", "js_domain": domain},
            "a-by-b": {"connection": "b", "api_prefix": "$JS.A.API", "same_as": "a"},
        }
        imports = [
            {"from": "a", "into": "c", "api": "$JS.A.API", "deliver": f"toaccount.{c.public}"}
        ]
        base = {
            "jsplan": 1,
            "workspace": "test",
            "connections": connections,
            "domains": domains,
            "imports": imports,
        }
        push = {
            "deliver_subject": f"toaccount.{b.public}.bb",
            "flow_control": True,
            "idle_heartbeat": "30s",
            "ack_policy": "none",
        }
        space = Space(tmp_path, base).write(
            streams=[
                {"name": "S", "domain": "a", "subjects": ["S.>"]},
                {"name": "SS", "domain": "c", "mirror": {"name": "S", "domain": "a"}},
            ],
            consumers=[
                {"domain": "a-by-b", "stream": "S", "name": "b", "ack_policy": "none"},
                {"domain": "a-by-b", "stream": "S", "name": "bb", **push},
            ],
        )
        plan, result = space.apply()
        assert (codes(plan), result.exit_code, plan.summary["add"]) == ([], 0, 4)
        assert left_to_do(space.plan()) == []
        with Raw(url, creds=creds["A"], timeout=30) as raw:
            publish_many(raw, {"S.1": 500}, 10_000)
        with Raw(url, creds=creds["C"], timeout=30) as raw:
            assert wait_for_messages(raw, {"SS": 500}) == {"SS": 500}
        found = access(space.load, RecordingObserver(), ask=True, system="sys")
        assert [(need.subject, need.detail) for need in found.needs if need.status != "ok"] == [
            (
                f"$JS.{domain}.API.CONSUMER.MSG.NEXT.S.b"
                if domain
                else "$JS.API.CONSUMER.MSG.NEXT.S.b",
                "account A exports it for one answer only; it needs response_type: stream",
            )
        ]
