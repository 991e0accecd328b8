from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from jsplan.address import Address
from jsplan.cli.main import main
from jsplan.documents.base import dumps
from jsplan.state import State
from jsplan.state.document import Entry
from tests.render import samples

if TYPE_CHECKING:
    from pathlib import Path

WORKSPACE = {
    "jsplan": 1,
    "workspace": "shop",
    "environments": {"prod": {}, "staging": {}},
    "connections": {"hub": {"url": "nats://127.0.0.1:1", "user": "a", "password": "${env.HUB_PW}"}},
    "domains": {"hub": {"connection": "hub"}, "leaf": {"connection": "hub"}},
    "streams": [
        {
            "name": "ORDERS",
            "domain": "hub",
            "subjects": ["orders.>"],
            "consumers": [{"name": "NEW"}],
        }
    ],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace whose password is not in the environment, without any network."""
    (tmp_path / "jsplan.yaml").write_text(json.dumps(WORKSPACE))
    (tmp_path / "state").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("JSPLAN_")]:
        monkeypatch.delenv(name)

    def refuse(*args: object) -> None:
        raise AssertionError("completion used the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    return tmp_path


def complete(line: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what a shell offers for the last word of the line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMP_WORDS", line)
        patch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        patch.setenv("_JSPLAN_COMPLETE", "bash_complete")
        with pytest.raises(SystemExit) as ended:
            main(line.split(" ")[1:])
    assert ended.value.code == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.split()


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("jsplan plan -e ", ["plain,prod", "plain,staging"]),
        ("jsplan plan -e prod --target hub/s", ["plain,hub/stream/ORDERS"]),
        ("jsplan -e prod state show hub/c", ["plain,hub/consumer/ORDERS/NEW"]),
        ("jsplan plan --allow-hazard REM", ["plain,REMOVES_SUBJECTS"]),
        (
            "jsplan apply -e prod --allow-hazard DELETES_STREAM:hub/s",
            ["plain,DELETES_STREAM:hub/stream/ORDERS"],
        ),
        ("jsplan explain JS438", ["plain,JS438"]),
        ("jsplan lint --explain JS201", ["plain,JS201"]),
        ("jsplan plan -e prod --reinstalled l", ["plain,leaf"]),
        ("jsplan plan --target hub/s", []),
        ("jsplan -C nowhere plan --target hub/s", []),
        ("jsplan -C nowhere plan -e p", []),
    ],
)
def test_values(
    folder: Path, line: str, offers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Values are completed from the files, without secrets and without the network."""
    assert complete(line, capsys) == offers


def complete_in_bash(folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a real bash offers for the last of the words of `jsplan apply`."""
    given = ["jsplan", "apply", "-e", "prod", *words]
    main(["completion", "bash"])
    script = capsys.readouterr().out
    (folder / "jsplan").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m jsplan "$@"\n')
    (folder / "jsplan").chmod(0o755)
    script += "\nCOMP_WORDS=({})\nCOMP_CWORD={}\n_jsplan_completion jsplan\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"".format(
        " ".join(map(shlex.quote, given)), len(given) - 1
    )

    environ = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script],  # noqa: S607 - the bash of the user
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("words", "replies"),
    [
        (["--allow-hazard", "DELETES_STREAM", ":", "hub/s"], ["hub/stream/ORDERS"]),
        (
            ["--allow-hazard", "DELETES_STREAM", ":"],
            ["hub/consumer/ORDERS/NEW", "hub/stream/ORDERS"],
        ),
        (["--allow-hazard", "DELETES_STREAM:hub/s"], ["DELETES_STREAM:hub/stream/ORDERS"]),
        (["--allow-hazard", "=", "REM"], ["REMOVES_SUBJECTS"]),
        (["--env", "="], ["prod", "staging"]),
        (["--allow-hazard", "=", "DELETES_STREAM", ":", "hub/s"], ["hub/stream/ORDERS"]),
    ],
)
def test_words_that_bash_cuts(
    folder: Path, words: list[str], replies: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Bash cuts words at colons and equals signs, and replaces only the last piece."""
    assert complete_in_bash(folder, words, capsys).split() == replies


def test_the_environment_variable_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSPLAN_ENV chooses the environment of a completion, too."""
    monkeypatch.setenv("JSPLAN_ENV", "prod")

    assert complete("jsplan plan --target hub/s", capsys) == ["plain,hub/stream/ORDERS"]


def test_addresses_of_the_state(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An address that only the state has is completed, too."""
    state = State("shop", "prod")
    entry = Entry(
        {"name": "OLD"}, {"name": "OLD"}, "2026-01-01T00:00:00Z", "created", False, [], ""
    )
    state.resources[Address.parse("hub/stream/OLD")] = entry
    (folder / "state" / "shop.prod.json").write_text(json.dumps(state.to_json()))

    offers = complete("jsplan state rm -e prod hub/stream/O", capsys)

    assert offers == ["plain,hub/stream/OLD", "plain,hub/stream/ORDERS"]


def test_saved_plans(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only saved plans are offered; without one, the shell offers its files."""
    assert complete("jsplan apply ", capsys) == ["file,"]
    (folder / "prod.plan").write_bytes(dumps(samples.everything().to_json()))

    assert complete("jsplan apply ", capsys) == ["plain,prod.plan", "plain,state/"]
    assert complete("jsplan show jsp", capsys) == ["file,jsp"]


def test_a_name_is_no_command_of_the_shell(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bash inserts a completion unchanged, so what has a meaning for it is quoted."""
    text = (folder / "jsplan.yaml").read_text()
    name = "B$(touch$${IFS}X)`x`;&'|é"
    (folder / "jsplan.yaml").write_text(text.replace("ORDERS", json.dumps(name)[1:-1]))
    replies = complete_in_bash(folder, ["--target", "hub/stream/B"], capsys)
    assert shlex.split(replies) == [f"hub/stream/{name.replace('$$', '$')}"]
    assert replies.startswith("hub/stream/B")
