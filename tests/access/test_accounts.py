"""Accounts of an operator are resources: plan and apply create, change and delete them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import nkeys  # type: ignore[import-untyped]  # it has no stubs
import pytest

from jsplan.cli.main import main
from jsplan.config import load as load_workspace
from jsplan.config.model import LoadOptions
from jsplan.errors import ConfigError, ExitCode, JsplanError
from jsplan.jetstream.contexts import decode_claims
from jsplan.options import DriftOptions
from jsplan.resources.account import mark_of, merge_claims, parse_claims
from jsplan.sandbox import Sandbox
from jsplan.sandbox.shapes import Layout, Node, User
from jsplan.topology import build_topology
from jsplan.workflows.access import access
from jsplan.workflows.drift import drift
from tests.conftest import PROGRAM
from tests.support.account_sharing import FakeNsc, start_servers
from tests.support.jwt import Account, Keys, Operator, format_creds
from tests.support.raw import Raw
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, Space, left_to_do

if TYPE_CHECKING:
    from collections.abc import Callable

    from jsplan.sandbox import Server

EXAMPLE = Path(__file__).parents[2] / "examples/cross-account/jwt/jsplan.yaml"
ROLE, USER = Keys(nkeys.PREFIX_BYTE_ACCOUNT), Keys(nkeys.PREFIX_BYTE_USER)
MARK = mark_of("shop")
APP: dict[str, Any] = {
    "name": "billing",
    "client": "py",
    "nkey": USER.public,
    "role": ROLE.public,
    "publishes": [{"stream": "hub/stream/ORDERS", "subjects": ["orders.eu.*"]}],
    "consumes": [{"consumer": "hub/consumer/ORDERS/PULL"}],
}
STREAM: dict[str, Any] = {
    "name": "ORDERS",
    "subjects": ["orders.>"],
    "consumers": [{"name": "PULL", "ack_policy": "explicit"}],
}


class Operated:
    """A server of an operator that knows its system account alone, and a workspace for SHOP."""

    def __init__(self, folder: Path, sandboxes: list[Sandbox], resolver: str = "full") -> None:
        self.operator, self.folder = Operator(), folder
        servers = (
            self.operator.resolving_configuration(folder / "accounts")
            if resolver == "full"
            else self.operator.configuration()
        )
        system = self.operator.system.creds(folder, "sys")
        self.shop = Account("SHOP")
        self.creds = self.shop.creds(folder, "shop")
        (folder / "operator.nk").write_bytes(self.operator.signing.seed)
        sandbox = start_servers(servers, User("SYS", None, None, system), binary=PROGRAM)
        sandboxes.append(sandbox)
        sandbox.start()
        self.url = sandbox["hub"].url
        self.system = system
        self.space = Space(folder, {
            "jsplan": 1,
            "workspace": "shop",
            "connections": {
                "system": {"url": self.url, "creds": "./sys.creds", "operator_key": "./operator.nk"},
                "hub": {"url": self.url, "creds": "./shop.creds", "account": "SHOP"},
            },
            "domains": {"hub": {"connection": "hub"}},
            "accounts": [{"name": "SHOP", "key": self.shop.public, "jetstream": {"disk": "1GiB"}}],
            "streams": [STREAM],
            "apps": [APP],
        })  # fmt: skip
        self.space.write()

    def look_up(self) -> dict[str, Any]:
        """Return the claims of SHOP that the server has."""
        with Raw(self.url, creds=self.system) as raw:
            token = raw.request(f"$SYS.REQ.ACCOUNT.{self.shop.public}.CLAIMS.LOOKUP", b"")[1]
        return decode_claims(token.decode()) or {}

    def push(self, claims: dict[str, Any]) -> None:
        """Change SHOP as another tool does."""
        with Raw(self.url, creds=self.system) as raw:
            own = {name: claims[name] for name in ("name", "sub", "nats")}
            token = self.operator.keys.signed(own)
            assert b'"error"' not in raw.request("$SYS.REQ.CLAIMS.UPDATE", token.encode())[1]


@pytest.fixture
def operated(tmp_path: Path, sandboxes: list[Sandbox]) -> Operated:
    """A server and a workspace whose account does not exist yet."""
    return Operated(tmp_path, sandboxes)


@contextlib.asynccontextmanager
async def connected(url: str, creds: Path) -> Any:
    """Connect as an application, with a function that waits until a subject is denied."""
    denied: list[str] = []

    async def on_error(error: Exception) -> None:
        denied.append(str(error))

    client = await nats.connect(
        url, user_credentials=str(creds), inbox_prefix=b"_INBOX_billing", error_cb=on_error
    )

    async def expect_denial(subject: str) -> None:
        await client.publish(subject, b"")
        while not any(f'"{subject.lower()}"' in text for text in denied):  # as nats-py writes it
            await client.flush()

    yield client, denied, expect_denial
    await client.close()


@pytest.mark.matrix
async def test_from_nothing_to_the_last_message(
    operated: Operated, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two applies make account, stream and role; a user of the role may do what it declares.

    What the application no longer does is taken from its connected user, if that is allowed.
    """
    space = operated.space
    first, _ = await asyncio.to_thread(space.apply)
    assert first.summary["add"] == 1
    assert {each.address for each in first.deferred} == {
        "hub/stream/ORDERS", "hub/consumer/ORDERS/PULL",
    }  # fmt: skip
    second, _ = await asyncio.to_thread(space.apply)
    assert second.summary["add"] == 2
    assert left_to_do(await asyncio.to_thread(space.plan)) == []

    (operated.folder / "role.nk").write_bytes(ROLE.seed)
    words = ["--jwt", "billing", "--signing-key", str(operated.folder / "role.nk")]
    assert main(["access", "-C", str(operated.folder), *words]) == 0
    token, creds = capsys.readouterr().out.strip(), operated.folder / "billing.creds"
    creds.write_text(format_creds(token, USER))
    async with connected(operated.url, creds) as (client, denied, expect_denial):
        stream = client.jetstream(timeout=10)
        await stream.publish("orders.eu.1", b"1")
        pull = await stream.pull_subscribe("orders.>", durable="PULL", stream="ORDERS")
        await (await pull.fetch(1, timeout=10))[0].ack_sync(timeout=10)
        assert denied == []
        await expect_denial("orders.us.1")

    space.write(apps=[APP | {"consumes": []}])
    with pytest.raises(JsplanError, match="REVOKES_ACCESS"):
        await asyncio.to_thread(space.apply)
    plan, _ = await asyncio.to_thread(space.apply, allow_hazards=("REVOKES_ACCESS:**",))
    (hazard,) = plan.resource_changes[-1].hazards
    assert hazard.message == "billing loses 4 permissions"
    async with connected(operated.url, creds) as (client, _, expect_denial):
        await client.jetstream(timeout=10).publish("orders.eu.2", b"2")
        await expect_denial("$JS.API.CONSUMER.MSG.NEXT.ORDERS.PULL")


def test_a_change_is_reverted(operated: Operated) -> None:
    """The account gets back what an apply took, whatever the files say now."""
    operated.space.apply()
    operated.space.apply()
    before = operated.look_up()["nats"]["signing_keys"]
    operated.space.write(apps=[APP | {"consumes": []}])
    operated.space.apply(allow_hazards=("REVOKES_ACCESS:**",))
    assert operated.look_up()["nats"]["signing_keys"] != before

    words = ["-C", str(operated.folder), "--auto-approve"]
    assert main(["revert", "3", *words]) == 0

    assert operated.look_up()["nats"]["signing_keys"] == before
    assert operated.space.plan().summary["change"] == 1
    assert main(["revert", "1", *words, "--allow-hazard", "REVOKES_ACCESS:**", "--allow-hazard", "DELETES_STREAM:**"]) == 0  # fmt: skip
    assert operated.look_up() == {}


@pytest.mark.matrix
def test_what_another_tool_added_stays(operated: Operated) -> None:
    """Entries of others are no drift and survive an update; ours are put back."""
    operated.space.apply()
    claims = operated.look_up()
    theirs = {"name": "metrics", "subject": "metrics.>", "type": "stream"}
    claims["nats"]["exports"] = [theirs]
    claims["nats"]["signing_keys"].append(Keys(nkeys.PREFIX_BYTE_ACCOUNT).public)
    claims["nats"]["limits"]["conn"] = 77
    operated.push(claims)
    operated.space.apply()
    assert left_to_do(operated.space.plan()) == []

    theirs_too = dict(claims["nats"]["signing_keys"][0])
    theirs_too["template"] = {"pub": {"allow": [">"]}, "sub": {}}
    claims["nats"]["signing_keys"] = [theirs_too]
    operated.push(claims)

    found = drift(operated.space.load, DriftOptions(), RecordingObserver())
    assert [each.address for each in found.resource_drift] == ["system/account/SHOP"]
    plan, _ = operated.space.apply(allow_hazards=("REVOKES_ACCESS:**",))
    (hazard,) = plan.resource_changes[-1].hazards
    assert hazard.message == "billing loses 1 permission"
    now = operated.look_up()["nats"]
    assert now["exports"] == [theirs]
    assert now["limits"]["conn"] == 77
    assert ">" not in now["signing_keys"][0]["template"]["pub"]["allow"]


@pytest.mark.matrix
def test_a_key_that_the_servers_do_not_trust(operated: Operated) -> None:
    """Servers would store what a foreign key signs, and refuse every user from then on."""
    operated.space.apply()
    before = operated.look_up()
    (operated.folder / "operator.nk").write_bytes(Keys(nkeys.PREFIX_BYTE_OPERATOR).seed)
    operated.space.write(accounts=[{"name": "SHOP", "key": operated.shop.public, "jetstream": {"disk": "2GiB"}}])  # fmt: skip

    _, result = operated.space.apply()

    assert result.exit_code == ExitCode.PARTIAL
    assert "do not trust the key" in json.dumps(result.to_json(), default=str)
    assert operated.look_up() == before


@pytest.mark.matrix
def test_an_account_of_nsc_is_adopted(operated: Operated) -> None:
    """It needs `--adopt`, keeps what it has, and a store that it loses is a hazard."""
    operated.shop.export("service", "metrics.>")
    operated.push(operated.shop.claims())
    with pytest.raises(JsplanError, match="is not managed yet"):
        operated.space.apply()

    plan = operated.space.plan(adopt=True)
    (change,) = (c for c in plan.resource_changes if c.type == "account")
    assert [each.message for each in change.hazards] == [
        "it may have no streams in memory any more"
    ]
    _, result = operated.space.apply(adopt=True, allow_hazards=("REVOKES_ACCESS:**",))

    assert result.exit_code == 0
    assert [each["name"] for each in operated.look_up()["nats"]["exports"]] == ["metrics.>"]
    assert left_to_do(operated.space.plan()) == []


@pytest.mark.soak
@pytest.mark.matrix
def test_a_cluster(tmp_path: Path, sandboxes: list[Sandbox]) -> None:
    """Each of three servers may answer, and a read finds what another one has stored."""
    operator, shop = Operator(), Account("SHOP")
    login = User(None, None, None, operator.account("BOOT").creds(tmp_path, "boot"))
    system = User("SYS", None, None, operator.system.creds(tmp_path, "sys"))
    (tmp_path / "operator.nk").write_bytes(operator.signing.seed)
    shop.creds(tmp_path, "shop")

    def layout(port_of: Callable[[str], int]) -> Layout:
        names = ("n1", "n2", "n3")
        routes = {name: port_of(f"{name}.routes") for name in names}
        return Layout("cluster", tuple(
            Node(
                name, port_of(name), domain="hub", login=login, system=system,
                routes=(routes[name], *(routes[other] for other in names if other != name)),
                extra=operator.resolving_configuration(tmp_path / name),
            )
            for name in names
        ))  # fmt: skip

    servers = Sandbox(layout, binary=PROGRAM)
    sandboxes.append(servers)
    servers.start()
    url = ",".join(servers[name].url for name in ("n1", "n2", "n3"))
    space = Space(tmp_path, {
        "jsplan": 1,
        "workspace": "shop",
        "connections": {
            "system": {"url": url, "creds": "./sys.creds", "operator_key": "./operator.nk"},
            "hub": {"url": url, "creds": "./shop.creds", "account": "SHOP"},
        },
        "domains": {"hub": {"connection": "hub"}},
        "streams": [STREAM | {"num_replicas": 3}],
    })  # fmt: skip
    for size in range(1, 11):
        limits = {"jetstream": {"disk": f"{size}GiB"}}
        space.write(accounts=[{"name": "SHOP", "key": shop.public, **limits}])
        assert space.apply()[1].exit_code == 0
    assert left_to_do(space.plan()) == []


def test_a_resolver_that_cannot_change(tmp_path: Path, sandboxes: list[Sandbox]) -> None:
    """A server with its accounts in memory does not answer, and the message says what it needs."""
    operated = Operated(tmp_path, sandboxes, "memory")
    with pytest.raises(JsplanError, match="no server answers for accounts") as caught:
        operated.space.plan()
    assert "resolver: {type: full}" in str(caught.value.hint)


@pytest.mark.matrix
def test_everything_is_deleted(operated: Operated) -> None:
    """An account that left the files is deleted after what is in it, and can come back."""
    operated.space.apply()
    operated.space.apply()
    with pytest.raises(JsplanError, match="REVOKES_ACCESS"):
        operated.space.apply(destroy=True, allow_hazards=("DELETES_STREAM:**",))

    plan, result = operated.space.apply(
        destroy=True, allow_hazards=("DELETES_STREAM:**", "REVOKES_ACCESS:**")
    )

    assert result.exit_code == 0
    assert plan.steps[-1].op == "account.delete"
    assert operated.look_up() == {}
    operated.space.apply()
    assert operated.look_up()["name"] == "SHOP"


@pytest.mark.matrix
def test_a_killed_apply_is_finished(operated: Operated) -> None:
    """A death before or after each push is recovered by the next apply."""
    space, small = operated.space, {"name": "SHOP", "key": operated.shop.public}
    steps: tuple[dict[str, Any], ...] = (
        {"accounts": [small]},
        {"accounts": [small | {"jetstream": {"disk": "2GiB"}}]},
        {"accounts": []},
    )
    allowed = ("REVOKES_ACCESS:**",)
    sections: dict[str, Any] = {"streams": [], "apps": []}
    for change in steps:
        before = read_state(operated.folder, "shop").resources
        for moment in range(1, 4):
            space.write(**sections, **change)
            with kill_after(moment), contextlib.suppress(SimulatedKill):
                space.apply(allow_hazards=allowed)
        _, result = space.apply(allow_hazards=allowed)
        assert result.exit_code == 0
        assert read_state(operated.folder, "shop").pending == {}
        assert read_state(operated.folder, "shop").resources != before
        assert left_to_do(space.plan()) == []
    assert operated.look_up() == {}


def test_nsc_would_write_the_same(tmp_path: Path) -> None:
    """The commands of `--style nsc` give the exports and imports that an apply gives."""
    shutil.copy(EXAMPLE, tmp_path)
    operator = Operator()
    accounts = {name: operator.account(name) for name in "ABC"}
    keys = {name: each.public for name, each in accounts.items()}
    variables = tuple(f"account_{name.lower()}={key}" for name, key in keys.items())
    variables += (f"worker={ROLE.public}",)
    load, nsc = LoadOptions(tmp_path, variables=variables), FakeNsc(operator)
    for shared in access(load, RecordingObserver()).accounts:
        for command in shared.nsc:
            nsc.run(command)
    bodies = bodies_of(load)
    for name, account in accounts.items():
        ours = merge_claims({}, bodies[name], "", keys)["nats"]
        for section, theirs in (("exports", account.exports), ("imports", account.imports)):
            assert [simplified(each) for each in ours[section]] == [simplified(e) for e in theirs]


def bodies_of(load: LoadOptions) -> dict[str, dict[str, Any]]:
    """Return the bodies of the accounts by name."""
    workspace = load_workspace(load)
    topology = build_topology(workspace)
    return {address.name: topology.bodies[address] for address in workspace.accounts}


def simplified(claim: dict[str, Any]) -> tuple[Any, ...]:
    """Return what counts of an export or import."""
    kind, answers = claim["type"], claim.get("response_type")
    local = claim.get("local_subject") or claim["subject"]
    many = answers == "Stream"
    return (kind, claim["subject"], claim.get("account"), local, many, claim.get("account_token_position"))  # fmt: skip


CLAIMS: dict[str, Any] = {
    "name": "SHOP",
    "sub": "A1",
    "nats": {
        "exports": [{"name": "x", "subject": "x.>", "type": "stream"}],
        "signing_keys": ["AKEY", {"kind": "user_scope", "key": "AOTHER", "role": "theirs"}],
        "limits": {"conn": 5, "mem_storage": 0, "disk_storage": 7, "streams": -1, "consumer": 3},
        "revocations": {"*": 1},
    },
}
CONFIGS: dict[str, dict[str, Any]] = {
    "nothing": {"name": "SHOP"},
    "exports": {"name": "SHOP", "exports": ["service a.* many-answers", "stream b.*.> token 2"]},
    "imports": {"name": "SHOP", "imports": ["service a.b from OWNER as c.d", "stream e from AXYZ"]},
    "a role": {"name": "SHOP", "roles": ["app key AROLE", "app may publish x.>", "app may subscribe y.* workers"]},
    "a role that may do nothing": {"name": "SHOP", "roles": ["app key AROLE"]},
    "limits": {"name": "SHOP", "jetstream": {"disk": 1024, "consumers": 3}},
}  # fmt: skip


@pytest.mark.parametrize("before", [{}, CLAIMS], ids=["new", "with entries of others"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_claims_have_what_was_written(config: dict[str, Any], before: dict[str, Any]) -> None:
    """A configuration in claims is read from them again; the rest of the claims is unchanged."""
    keys = {"OWNER": "AOWNER"}

    merged = merge_claims(before, config, MARK, keys)

    found = parse_claims(merged, MARK, keys)
    if "jetstream" not in config:
        found.pop("jetstream", None)
    assert found == config
    again = merge_claims(merged, {"name": "SHOP"}, MARK, keys)["nats"]
    for section in ("exports", "signing_keys"):
        assert again[section] == before.get("nats", {}).get(section, [])
    assert again.get("revocations") == before.get("nats", {}).get("revocations")
    assert again["limits"]["conn"] == before.get("nats", {}).get("limits", {}).get("conn", -1)


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"accounts": [{"name": "SHOP", "key": "UABC"}]}, "no public key of an account"),
        ({"accounts": [{"name": "A", "key": ROLE.public}] * 2}, "account A is declared twice"),
        ({"accounts": [{"name": "A", "key": ROLE.public, "connection": "hub"}]}, "no connection with `operator_key`"),
        ({"domains": {"system": {"connection": "hub"}}}, "is the name of a domain"),
        ({"apps": [APP | {"name": "one"}, APP | {"name": "two"}]}, "have the same `role`"),
        ({"apps": [APP | {"role": "SAABC"}]}, "no public key of an account's signing key"),
    ],
)  # fmt: skip
def test_mistakes_in_the_files(sections: dict[str, Any], text: str, tmp_path: Path) -> None:
    """Each is named with its place."""
    base = {
        "jsplan": 1,
        "workspace": "shop",
        "connections": {"system": {"url": "nats://127.0.0.1:1", "operator_key": "./o.nk"}, "hub": {"url": "nats://127.0.0.1:1"}},
        "domains": {"hub": {"connection": "hub"}},
        "streams": [STREAM],
    }  # fmt: skip
    space = Space(tmp_path, base)
    space.write(**sections)
    with pytest.raises(ConfigError) as caught:
        bodies_of(space.load)
    assert text in "\n".join(each.summary for each in caught.value.diagnostics)


@pytest.mark.matrix
def test_a_role_is_proven(tmp_path: Path, server_version: tuple[int, ...]) -> None:
    """Embedded servers know the accounts by their public keys, which acknowledgements may have."""
    shutil.copy(EXAMPLE, tmp_path)
    names = ("account_a", "account_b", "account_c", "worker")
    variables = tuple(f"{name}={Keys(nkeys.PREFIX_BYTE_ACCOUNT).public}" for name in names)
    (app,) = access(
        LoadOptions(tmp_path, variables=variables), RecordingObserver(), prove=True
    ).apps
    assert app.proof is not None
    assert app.proof.is_complete, app.proof
    assert app.proof.unproven == (server_version < (2, 14))  # which know no other replies
    assert app.proof.refused > 40


@pytest.mark.parametrize(
    ("settings", "changed", "text"),
    [
        (b"<html>", b"", "the answer is b'<html>', expected JSON"),
        (b'{"data": {"trusted_operators_claim": [5]}}', b"", "trusted_operators_claim[0] is 5"),
        (b'{"data": null}', b"", "do not trust the key"),
        (None, b"[]", "CLAIMS.UPDATE with something that is not JetStream's"),
        (None, b'{"error": 5}', "error is 5"),
    ],
    ids=["no-json", "operator", "null", "no-object", "error"],
)
async def test_what_is_no_server_answers(
    server: Server, tmp_path: Path, settings: bytes | None, changed: bytes, text: str
) -> None:
    """An answer without the shape of a server is refused with a message; here a client sends it."""
    key = Keys(nkeys.PREFIX_BYTE_OPERATOR)
    trusted = json.dumps({"data": {"trusted_operators_claim": [{"sub": key.public}]}}).encode()
    (tmp_path / "operator.nk").write_bytes(key.seed)
    space = Space(tmp_path, {
        "jsplan": 1,
        "workspace": "shop",
        "connections": {"system": {"url": server.url, "operator_key": "./operator.nk"}},
        "domains": {"hub": {"connection": "system"}},
        "accounts": [{"name": "SHOP", "key": ROLE.public}],
    })  # fmt: skip
    space.write()
    answers = {
        f"$SYS.REQ.ACCOUNT.{ROLE.public}.CLAIMS.LOOKUP": b"",
        "$SYS.REQ.SERVER.*.VARZ": trusted if settings is None else settings,
        "$SYS.REQ.CLAIMS.UPDATE": changed,
    }
    client = await nats.connect(server.url)
    for subject, answer in answers.items():

        async def reply(message: Any, answer: bytes = answer) -> None:
            await message.respond(answer)

        await client.subscribe(subject, cb=reply)
    await client.flush()

    _, result = await asyncio.to_thread(space.apply)

    assert text in json.dumps(result.to_json())
    await client.close()
