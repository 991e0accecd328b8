"""Commands that read only the files need none of the variables that `${env.X}` names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.cli.main import main
from jsplan.config import LoadOptions, load
from jsplan.errors import ConfigError
from jsplan.workflows.validate import validate

if TYPE_CHECKING:
    from pathlib import Path

#: `${env.X}` in every place where it may be.
CONNECTIONS = {
    "login": {
        "url": "nats://${env.A_USER}:${env.A_PASS}@${env.A_HOST}:4222",
        "timeout": "${env.A_TIME}",
    },
    "user": {"url": "${env.B_URL}", "user": "${env.B_USER}", "password": "${env.B_PASS}"},
    "token": {"url": "nats://b:4222", "token": "${env.C_TOKEN}", "inbox_prefix": "${env.C_INBOX}"},
    "creds": {"url": "nats://c:4222", "creds": "${env.D_CREDS}", "account": "${env.D_ACCOUNT}"},
    "nkey": {"context": "${env.E_CONTEXT}", "nkey": "${env.E_NKEY}"},
    "tls": {
        "url": "tls://d:4222",
        "tls": {"ca": "${env.F_CA}", "cert": "${env.F_CERT}", "key": "${env.F_KEY}"},
    },
}
SINKS = [
    {"webhook": {"url": "${env.G_HOOK}", "headers": {"Authorization": "Bearer ${env.G_TOKEN}"}}},
    {"webhook": {"url": "https://${env.H_HOST}/hook"}},
    {"subject": "${env.I_SUBJECT}", "domain": "${env.I_DOMAIN}"},
    {"file": "${env.J_FILE}"},
]
BACKENDS = [
    {"local": {"path": "${env.K_PATH}/state.json"}},
    {"kv": {"domain": "${env.K_DOMAIN}", "bucket": "${env.K_BUCKET}", "lock_ttl": "${env.K_TTL}"}},
]
NAMES = {
    part.partition("}")[0]
    for part in json.dumps([CONNECTIONS, SINKS, BACKENDS]).split("${env.")[1:]
}
#: What is valid where "value" is not.
VALUES = {
    "A_TIME": "5s", "B_URL": "nats://b:4222", "G_HOOK": "https://g/hook", "I_DOMAIN": "tls",
    "K_DOMAIN": "login", "K_TTL": "1m",
}  # fmt: skip
COMMANDS = [
    ["validate"], ["validate", "--json"], ["lint"], ["lint", "--format", "sarif"], ["lint", "--json"],
    ["graph"], ["graph", "--json"], ["graph", "--format", "svg"], ["explain", "JS111"],
]  # fmt: skip


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(folder: Path, **sections: Any) -> None:
    """Write a workspace with a domain for each connection and one stream."""
    connections = sections.get("connections") or {"hub": {"url": "nats://hub:4222"}}
    domains = {key: {"connection": key} for key in connections}
    first = next(iter(domains))
    base = {
        "jsplan": 1,
        "workspace": "shop",
        "connections": connections,
        "domains": domains,
        "streams": [{"name": "ORDERS", "domain": first, "subjects": ["orders.>"], "max_age": "1d"}],
    }
    (folder / "jsplan.yaml").write_text(json.dumps(base | sections), "utf-8")


def error_codes(error: ConfigError) -> list[str]:
    return [d.code for d in error.diagnostics if d.severity == "error"]


@pytest.mark.parametrize("backend", BACKENDS, ids=["local", "kv"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_files_only(
    command: list[str],
    backend: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They succeed without the values, and print the same as with them."""
    write(tmp_path, connections=CONNECTIONS, backend=backend, drift={"sinks": SINKS})

    assert main(command) == 0
    without = capsys.readouterr()
    for name in NAMES:
        monkeypatch.setenv(name, VALUES.get(name, "value"))
    assert main(command) == 0
    assert capsys.readouterr() == without


@pytest.mark.parametrize(
    "command",
    [["plan"], ["apply", "-y"], ["drift"], ["status"], ["lint", "--live"], ["state", "list"]],
    ids=" ".join,
)
def test_other_commands(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every other command says which variable is not set, and where it is named."""
    write(tmp_path, connections={"hub": {"url": "nats://h:4222", "token": "${env.NOT_SET}"}})

    assert main(command) == 1
    shown = capsys.readouterr().err
    assert "the environment variable NOT_SET is not set [JS111]" in shown
    assert "jsplan.yaml:1:" in shown


def test_all_names_are_reported(tmp_path: Path) -> None:
    """A command that needs the values reports each variable of every section."""
    write(tmp_path, connections=CONNECTIONS, backend=BACKENDS[1], drift={"sinks": SINKS})
    with pytest.raises(ConfigError) as raised:
        load(LoadOptions(tmp_path))

    named = {d.summary.split()[3] for d in raised.value.diagnostics if d.code == "JS111"}
    text = json.dumps([CONNECTIONS, BACKENDS[1], SINKS])
    assert named >= {part.partition("}")[0] for part in text.split("${env.")[1:]} - {
        "A_PASS",
        "A_HOST",
    }


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    """A secret that a pull request of a fork may not see is an empty variable."""
    write(tmp_path, connections={"hub": {"url": "nats://h:4222", "token": "${env.TOKEN}"}})

    assert validate(LoadOptions(tmp_path, environ={"TOKEN": ""})).connections["hub"].token is None
    with pytest.raises(ConfigError):
        load(LoadOptions(tmp_path, environ={"TOKEN": ""}))


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("JS120", {"connections": {"hub": {"url": "${env.X}", "context": "${env.Y}"}}}),
    ("JS120", {"connections": {"hub": {"url": "nats://h", "password": "${env.X}"}}}),
    ("JS120", {"connections": {"hub": {"url": "nats://h", "user": "${env.X}", "creds": "${env.Y}"}}}),
    ("JS120", {"connections": {"hub": {"url": "tls://h", "tls": {"cert": "${env.X}"}}}}),
    ("JS105", {"connections": {"hub": {"url": "nats://h", "pasword": "${env.X}"}}}),
    ("JS113", {"connections": {"hub": {"url": "nats://h", "token": "${env.X"}}}),
    ("JS106", {"backend": {"kv": {"domain": "${env.X}"}}}),
    ("JS106", {"drift": {"sinks": [{"webhook": {"headers": {"A": "${env.X}"}}}]}}),
    ("JS104", {"drift": {"sinks": ["${env.X}"]}}),
    ("JS112", {"lint": {"JS220": "${env.X}"}}),
]  # fmt: skip


@pytest.mark.parametrize(("code", "sections"), WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_what_the_values_do_not_change_is_found(
    code: str, sections: dict[str, Any], tmp_path: Path
) -> None:
    """An error that no value can mend is found, with and without the values."""
    write(tmp_path, **sections)
    for environ in ({}, {"X": "value", "Y": "other"}):
        with pytest.raises(ConfigError) as raised:
            validate(LoadOptions(tmp_path, environ=environ))
        assert code in error_codes(raised.value)


def test_a_value_that_is_set_is_checked(tmp_path: Path) -> None:
    """With the variables, their values are checked as before, and not shown."""
    write(tmp_path, connections={"hub": {"url": "${env.X}"}})
    with pytest.raises(ConfigError) as raised:
        validate(LoadOptions(tmp_path, environ={"X": "http://secret-host"}))

    assert error_codes(raised.value) == ["JS130"]
    assert "secret-host" not in raised.value.full_text
