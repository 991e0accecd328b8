"""`jsplan access` and `jsplan domains`: output, exit codes, and no secret in either."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.conftest import PROGRAM
from tests.support.account_sharing import start_servers, static_accounts, static_user
from tests.support.process import jsplan, run_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsplan.sandbox import Sandbox

EXAMPLE = Path(__file__).parent.parent.parent / "examples/cross-account/static"

NOWHERE = ["--var", "hub=nats://127.0.0.1:1", "--var", "leaf=nats://127.0.0.1:1"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Copy the example of static accounts."""
    shutil.copy(EXAMPLE / "jsplan.yaml", tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def accounts_without_exports() -> Iterator[Sandbox]:
    """Return the accounts of the example without any export."""
    accounts = static_accounts({"ACC": "", "IMPORT_MIRROR": "", "IMPORT_CLIENT": ""})
    with start_servers(accounts, static_user("ACC"), binary=PROGRAM) as sandbox:
        yield sandbox


def test_access_prints_without_a_server(folder: Path) -> None:
    """`jsplan access` prints server configuration, nsc commands or both, without any password."""
    both, config, nsc = (
        jsplan(folder, "access", *more) for more in ([], ["--style", "config"], ["--style", "nsc"])
    )
    document = jsplan(folder, "access", "--json")

    assert [ended.code for ended in (both, config, nsc, document)] == [0, 0, 0, 0]
    assert [ended.err for ended in (both, config, nsc, document)] == [""] * 4
    assert both.out.startswith(
        "# 3 flows between accounts:\n#   clients over hub-client use hub/consumer/aggregate-test-leaf/dur\n"
    )
    assert "exports: [" in config.out
    assert "nsc add" not in config.out
    assert "exports: [" not in nsc.out
    found = json.loads(document.out)
    assert (found["kind"], found["checked"]) == ("access", False)
    optional = [need.get("optional", False) for need in found["needs"]]
    assert (optional.count(False), optional.count(True)) == (6, 2)
    for account in found["accounts"]:
        assert all(
            line in both.out for line in [*account["configuration"].splitlines(), *account["nsc"]]
        )
    assert "password" not in both.out.replace("password: …", "") + document.out


def test_a_check_that_finds_something_missing(
    folder: Path, accounts_without_exports: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`jsplan access --check` exits with 1 and prints a line for each missing subject."""
    monkeypatch.setattr("jsplan.facts.access.ANSWER_TIMEOUT", 0.0)
    url = accounts_without_exports["hub"].url
    ended = jsplan(folder, "access", "--check", "--var", f"hub={url}", "--var", f"leaf={url}")
    assert ended.code == 1
    assert ended.out.splitlines()[-1] == (
        "Access: 6 missing of 6 subjects. 2 of 2 for js_ack_fc_v2 are not there."
    )
    assert "✗ stream deliver.acc.hub.import_mirror.> from ACC to IMPORT_MIRROR: " in ended.out
    assert (
        "    needed: hub-mirror/stream/errors-from-acc sources hub/stream/aggregate-test-leaf with a filter\n"
        in ended.out
    )
    found = json.loads(
        jsplan(
            folder, "access", "--check", "--json", "--var", f"hub={url}", "--var", f"leaf={url}"
        ).out
    )
    assert found["summary"] == {"missing": 6, "ok": 0, "unknown": 0}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["access", "--system-connection", "system"], 64, "--system-connection requires --check"),
        (
            ["access", "--check", "--system-connection", "sytem"],
            64,
            'there is no connection "sytem". Did you mean "system"?',
        ),
        (["domains", "discover", "--connection", "accs"], 64, 'there is no connection "accs"'),
        (["domains", "discovr"], 64, 'Did you mean "discover"?'),
        (
            [
                "access",
                "--check",
                "--var",
                "hub=nats://127.0.0.1:1",
                "--var",
                "leaf=nats://127.0.0.1:1",
            ],
            1,
            "Access: 6 not known of 6 subjects.",
        ),
    ],
)
def test_wrong_words_and_silent_servers_are_reported(
    words: list[str], code: int, said: str, folder: Path
) -> None:
    """Wrong words exit with 64; servers that do not answer leave every subject unknown."""
    ended = jsplan(folder, *words)
    assert (ended.code, said in ended.text) == (code, True), ended


def test_a_connection_without_an_account(folder: Path) -> None:
    """The missing account of a connection is an error that names where to write it."""
    text = (folder / "jsplan.yaml").read_text("utf-8").replace(", account: IMPORT_MIRROR", "")
    (folder / "jsplan.yaml").write_text(text, encoding="utf-8")
    ended = jsplan(folder, "access")
    assert ended.code == 1
    assert "JS455" in ended.err
    assert "connection mirror does not say its account" in ended.text
    assert "jsplan.yaml:13:" in ended.err


def test_discovered_domains_are_yaml(tmp_path: Path, accounts_without_exports: Sandbox) -> None:
    """`jsplan domains` prints YAML with the domains on stdout, or a document."""
    environ = {
        "NATS_URL": accounts_without_exports["hub"].url,
        "NATS_USER": "acc",
        "NATS_PASSWORD": "acc",
        "PATH": "/usr/bin",
    }
    ended = run_process(tmp_path, "domains", "discover", env=environ)
    assert ended.code == 0
    assert yaml.safe_load(ended.out) == {"domains": {"hub": {"connection": "default"}}}
    found = json.loads(run_process(tmp_path, "domains", "discover", "--json", env=environ).out)
    assert [
        (d["key"], d["js_domain"], d["reachable"], d["declared"]) for d in found["domains"]
    ] == [("hub", "hub", True, False)]
