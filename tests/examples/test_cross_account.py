"""The shipped examples with several accounts converge on real servers, and large flows pass."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nkeys  # type: ignore[import-untyped]  # it has no stubs
import pytest

from jsplan.config.model import LoadOptions
from jsplan.jetstream.contexts import read_account
from jsplan.options import DriftOptions, PlanOptions
from jsplan.sandbox.shapes import User
from jsplan.workflows.access import access
from jsplan.workflows.apply import apply
from jsplan.workflows.drift import drift
from jsplan.workflows.plan import plan
from tests.conftest import PROGRAM
from tests.support.account_sharing import (
    creds_of,
    include_of,
    publish_many,
    start_servers,
    wait_for_messages,
)
from tests.support.jwt import Keys, Operator, format_creds
from tests.support.raw import NoResponders, Raw
from tests.support.workspaces import RecordingObserver, approve, left_to_do

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsplan.sandbox import Sandbox

EXAMPLE = Path(__file__).parent.parent.parent / "examples/cross-account"
#: Messages of one large flow, and their size: 15 MB; 10 MB already need every form of flow control
#: (`tests/workflows/test_access.py`).
COUNT, SIZE = 15_000, 1024


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Copy the example into a folder of the test."""
    return tmp_path


def without_system(text: str) -> str:
    """Return a server configuration without ports, names, stores and links of the sandbox."""
    return text[text.index("accounts {") :]


def converge(load: LoadOptions, count: int) -> None:
    """Apply everything; check that the second plan is empty and nothing drifted."""
    first, result = apply(load, PlanOptions(), approve, RecordingObserver())
    assert {d.code for d in first.diagnostics} == {"JS478"}  # the imports are not checked
    assert (result.exit_code, first.summary["add"]) == (0, count)
    assert left_to_do(plan(load, PlanOptions(), RecordingObserver())) == []
    found = drift(load, DriftOptions(), RecordingObserver())
    assert (found.summary["changed"], found.summary["missing"], found.summary["unmanaged"]) == (
        0,
        0,
        0,
    )


# --- static accounts -----------------------------------------------------------------------------------------


@pytest.fixture
def static(folder: Path) -> Iterator[tuple[Sandbox, LoadOptions]]:
    """Start the hub and the leaf of the example, with its accounts and workspace."""
    shutil.copy(EXAMPLE / "static/jsplan.yaml", folder)
    files = PlanOptions(targets=("static/**",))
    _, result = apply(LoadOptions(folder), files, approve, RecordingObserver())
    assert result.summary["added"] == 3
    accounts = re.sub(
        r"include \./(\S+)",
        lambda found: include_of(folder / found[1]),
        (EXAMPLE / "static/accounts.conf").read_text("utf-8"),
    )
    login, remotes = User("ACC", "acc", "acc"), [("admin:admin", "SYS"), ("acc:acc", "ACC")]
    with start_servers(
        accounts, login, leaf=accounts, leaf_login=login, remotes=remotes, binary=PROGRAM
    ) as sandbox:
        with Raw(sandbox["hub"].url, "acc", "acc") as raw:
            sandbox["hub"].wait_until(
                lambda: "streams" in answer(raw, "$JS.leaf.API.INFO"), "be reached by its leaf", 30
            )
        yield (
            sandbox,
            LoadOptions(
                folder, variables=tuple(f"{name}={sandbox[name].url}" for name in ("hub", "leaf"))
            ),
        )


def answer(raw: Raw, subject: str) -> dict[str, Any]:
    """Return the answer of a request, or nothing while no listener is there."""
    try:
        return raw.api(subject)
    except NoResponders:
        return {}


@pytest.mark.matrix
def test_static_accounts_converge_and_copy(static: tuple[Sandbox, LoadOptions]) -> None:
    """15,000 messages and 15 MB go from the leaf to the hub and into the other account.

    All of them go through one flow, a part through a flow with a filter.
    """
    sandbox, load = static
    converge(load, 6)
    hub, leaf = sandbox["hub"].url, sandbox["leaf"].url
    with Raw(leaf, "acc", "acc", timeout=60) as raw:
        publish_many(raw, {"test.error": COUNT, "test": 100}, SIZE)
    with Raw(hub, "acc", "acc", timeout=60) as raw:
        expected = {"backup-test-leaf": COUNT + 100, "aggregate-test-leaf": COUNT + 100}
        assert wait_for_messages(raw, expected) == expected
    with Raw(hub, "import_mirror", "import_mirror", timeout=60) as raw:
        expected = {"aggregate-test-leaf-from-acc": COUNT + 100, "errors-from-acc": COUNT}
        assert wait_for_messages(raw, expected) == expected
    assert left_to_do(plan(load, PlanOptions(), RecordingObserver())) == []


def test_a_consumer_serves_clients_of_another_account(static: tuple[Sandbox, LoadOptions]) -> None:
    """A client of another account on the leaf takes and acknowledges messages of a hub consumer.

    A later plan sees no change in that.
    """
    sandbox, load = static
    converge(load, 6)
    with Raw(sandbox["leaf"].url, "acc", "acc") as raw:
        publish_many(raw, {"test": 3}, 11)
    with Raw(sandbox["hub"].url, "acc", "acc") as raw:
        assert wait_for_messages(raw, {"aggregate-test-leaf": 3}) == {"aggregate-test-leaf": 3}
    with Raw(sandbox["leaf"].url, "import_client", "import_client") as client:
        client.subscribe("taken")
        client.publish(
            "JS.acc@hub.API.CONSUMER.MSG.NEXT.aggregate-test-leaf.dur",
            b'{"batch": 3}',
            reply="taken",
        )
        for _ in range(3):
            client.publish(client.next_reply(), b"+ACK")
        client.flush()
        with Raw(sandbox["hub"].url, "acc", "acc") as raw:
            floor: dict[str, Any] = {}
            while floor.get("stream_seq") != 3:
                floor = raw.api_ok("$JS.API.CONSUMER.INFO.aggregate-test-leaf.dur")["ack_floor"]
    assert left_to_do(plan(load, PlanOptions(), RecordingObserver())) == []


def test_access_prints_the_accounts_of_the_example(
    static: tuple[Sandbox, LoadOptions],
) -> None:
    """The files have what `jsplan access` prints; the check on the servers finds all of it."""
    _, load = static
    printed = access(load, RecordingObserver())
    texts = [(each.account, each.configuration) for each in printed.accounts]
    texts += [(app.account or "", app.configuration) for app in printed.apps]
    for name, text in texts:
        written = (load.directory / f"accounts/{name}.conf").read_text("utf-8")
        assert re.sub("  #.*", "", text) in written
    apply(load, PlanOptions(), approve, RecordingObserver())
    for system in (None, "system"):
        found = access(load, RecordingObserver(), ask=True, system=system)
        assert [(need.subject, need.detail) for need in found.needs if need.status != "ok"] == []


# --- accounts of an operator ---------------------------------------------------------------------------------


@pytest.fixture
def jwt(folder: Path) -> Iterator[tuple[Sandbox, LoadOptions, dict[str, Path]]]:
    """Start servers that know the system account alone, and let an apply create A, B and C.

    A leaf joins A with its creds, as soon as there is an account A.
    """
    shutil.copy(EXAMPLE / "jwt/jsplan.yaml", folder)
    operator = Operator()
    servers = operator.resolving_configuration(folder / "accounts")
    accounts = [operator.account(name) for name in "ABC"]
    creds = creds_of(operator, folder)
    role, user = Keys(nkeys.PREFIX_BYTE_ACCOUNT), Keys(nkeys.PREFIX_BYTE_USER)
    nats = {"issuer_account": accounts[1].public, "type": "user", "version": 2}
    token = role.signed({"name": "worker", "sub": user.public, "nats": nats})
    creds["worker"] = folder / "worker.creds"
    creds["worker"].write_text(format_creds(token, user))
    (folder / "operator.nk").write_bytes(operator.signing.seed)
    system, anybody = User("SYS", None, None, creds["SYS"]), User(None, None, None)
    remotes = [(str(creds["A"]), "")]
    with start_servers(
        servers, system, leaf=" ", leaf_login=anybody, remotes=remotes, binary=PROGRAM
    ) as sandbox:
        urls = [f"{name}={sandbox[name].url}" for name in ("hub", "leaf")]
        keys = [f"account_{each.name.lower()}={each.public}" for each in accounts]
        keys.append(f"worker={role.public}")
        load = LoadOptions(folder, variables=(*urls, *keys))
        options = PlanOptions(targets=("system/**",))
        first, result = apply(load, options, approve, RecordingObserver())
        assert (result.exit_code, first.summary["add"]) == (0, 3)
        with Raw(sandbox["hub"].url, creds=creds["A"]) as raw:
            sandbox["hub"].wait_until(
                lambda: "streams" in answer(raw, "$JS.leaf.API.INFO"), "be reached by its leaf", 30
            )
        yield sandbox, load, creds


@pytest.mark.matrix
def test_jwt_accounts_converge_and_copy(jwt: tuple[Sandbox, LoadOptions, dict[str, Path]]) -> None:
    """Flows between accounts of an operator, and onto a leaf, copy 15,000 messages and 15 MB.

    At last all is deleted again, the accounts after what is in them.
    """
    sandbox, load, creds = jwt
    converge(load, 8)
    with Raw(sandbox["hub"].url, creds=creds["A"], timeout=60) as raw:
        publish_many(raw, {"S.1": COUNT, "S.2": 100}, SIZE)
    with Raw(sandbox["hub"].url, creds=creds["C"], timeout=60) as raw:
        expected = {"SS": COUNT + 100, "SS_1": COUNT}
        assert wait_for_messages(raw, expected) == expected
    with Raw(sandbox["leaf"].url, timeout=60) as raw:
        expected = {"MS": COUNT + 100, "MS_1": COUNT}
        assert wait_for_messages(raw, expected) == expected
    assert left_to_do(plan(load, PlanOptions(), RecordingObserver())) == []

    all_of_it = ("DELETES_STREAM:**", "DELETES_CONSUMER:**", "REVOKES_ACCESS:**")
    options = PlanOptions(destroy=True, allow_hazards=all_of_it)
    _, result = apply(load, options, approve, RecordingObserver())
    assert result.exit_code == 0, result
    with Raw(sandbox["hub"].url, creds=creds["SYS"]) as raw:
        left = json.loads(raw.request("$SYS.REQ.CLAIMS.LIST", b"")[1])["data"]
    assert left == [read_account(creds["SYS"])]


@pytest.mark.matrix
def test_b_uses_consumers_in_the_jetstream_of_a(
    jwt: tuple[Sandbox, LoadOptions, dict[str, Path]],
) -> None:
    """The worker of B, without JetStream, pulls with `b`; `bb` pushes 5 MB with flow control."""
    sandbox, load, creds = jwt
    converge(load, 8)
    url, count = sandbox["hub"].url, 500
    with Raw(url, creds=creds["A"], timeout=30) as raw:
        publish_many(raw, {"S.1": count}, 10_000)
        deliver = raw.api_ok("$JS.API.CONSUMER.INFO.S.bb")["config"]["deliver_subject"]
        with Raw(url, creds=creds["worker"], timeout=30) as client:
            client.subscribe(inbox := "_INBOX_worker.taken")
            client.publish("JS.A.API.CONSUMER.MSG.NEXT.S.b", b'{"batch": 10}', reply=inbox)
            for _ in range(10):
                client.publish(client.next_reply(), b"+ACK")
        with Raw(url, creds=creds["B"], timeout=30) as client:
            client.subscribe(deliver, wait=False)
            asked = taken = 0
            while taken < count:
                _, reply, headers, _ = client.next_with_reply()
                if headers.get("Status") == "100":
                    asked += bool(reply)
                    client.publish(reply or headers.get("Nats-Consumer-Stalled", "nowhere"))
                else:
                    taken += 1
                    client.publish(reply, b"+ACK")
            client.subscribe("nothing")  # after which the server has every ack
        assert asked > 0
        floors: dict[str, int] = {}
        while floors != {"b": 10, "bb": count}:
            floors = {
                name: raw.api_ok(f"$JS.API.CONSUMER.INFO.S.{name}")["ack_floor"]["stream_seq"]
                for name in ("b", "bb")
            }
    assert left_to_do(plan(load, PlanOptions(), RecordingObserver())) == []


def test_access_between_operator_accounts(
    jwt: tuple[Sandbox, LoadOptions, dict[str, Path]],
) -> None:
    """The check finds every printed subject, and the system account those that it cannot try.

    No secret is shown.
    """
    _, load, creds = jwt
    apply(load, PlanOptions(), approve, RecordingObserver())
    found = access(load, RecordingObserver(), ask=True)
    assert [need.subject for need in found.with_status("missing")] == []
    untried = [need.subject.replace(".hub.", ".") for need in found.with_status("unknown")]
    assert untried[:2] == ["$JS.API.CONSUMER.DELETE.S.b", "$JS.API.CONSUMER.DELETE.S.bb"]
    assert [subject.split(".")[::2] for subject in untried[2:]] == [["toaccount", "bb"]]

    text = (load.directory / "jsplan.yaml").read_text("utf-8")
    system = f'  sys: {{url: "${{var.hub}}", creds: {creds["SYS"]}}}\n'
    (load.directory / "jsplan.yaml").write_text(
        text.replace("  leaf: {url:", system + "  leaf: {url:"), encoding="utf-8"
    )
    looked_up = access(load, RecordingObserver(), ask=True, system="sys").needs
    assert [
        (need.subject, need.status, need.detail) for need in looked_up if need.status != "ok"
    ] == []
    shown = json.dumps([found.to_json(), plan(load, PlanOptions(), RecordingObserver()).to_json()])
    assert "eyJ" not in shown


def test_keys_stand_for_names(jwt: tuple[Sandbox, LoadOptions, dict[str, Path]]) -> None:
    """Without `account:` the creds files give the accounts' keys, and the output is as complete."""
    _, load, creds = jwt
    named = access(load, RecordingObserver())
    text = (load.directory / "jsplan.yaml").read_text("utf-8")
    text = re.sub(r"(?s)\naccounts:.*?\n\n", "\n\n", text)
    for name in "ABC":
        text = text.replace(f", account: {name}}}", "}")
    (load.directory / "jsplan.yaml").write_text(text, encoding="utf-8")
    keyed = access(load, RecordingObserver())
    keys = {read_account(creds[name]): name for name in "ABC"}
    assert {keys[account.account]: len(account.nsc) for account in keyed.accounts} == {
        a.account: len(a.nsc) for a in named.accounts
    }
