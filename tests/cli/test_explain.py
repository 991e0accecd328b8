"""`jsplan explain` explains every code, and names the closest ones of an unknown code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from jsplan.cli.main import main
from jsplan.codes import CODES, EXIT_CODES, FILE_CODES, HAZARD_TEXTS, HAZARDS, SERVER_CODES
from jsplan.errors import ExitCode
from jsplan.lint.rules import RULES
from jsplan.workflows.explain import list_explanations

if TYPE_CHECKING:
    from pathlib import Path

Capture = pytest.CaptureFixture[str]


def test_every_code_has_an_explanation() -> None:
    """Each finding, lint rule, hazard and exit code is explained once."""
    known = [found.code for found in list_explanations()]

    assert len(known) == len(set(known))
    assert set(known) == {*CODES, *HAZARDS, *(str(int(code)) for code in ExitCode)}
    assert {rule.code for rule in RULES} <= set(known)


def test_every_explanation_is_complete() -> None:
    """Meaning, cause and what to do of every code are sentences, and the meaning is a short one."""
    for found in list_explanations():
        for text in (found.title, found.why, found.fix):
            assert text[-1] in ".)", (found.code, text)
        assert len(found.title) <= 90, found.code


def test_the_tables_are_in_order() -> None:
    """The codes of each table are in ascending order."""
    for table in (FILE_CODES, SERVER_CODES):
        assert list(table) == sorted(table)
    assert list(EXIT_CODES) == [int(code) for code in ExitCode]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("JS438", SERVER_CODES["JS438"]),
        ("js117", FILE_CODES["JS117"]),
        ("deletes_messages", HAZARD_TEXTS["DELETES_MESSAGES"]),
        ("4", EXIT_CODES[4]),
    ],
)
def test_a_code_is_explained(
    code: str,
    said: tuple[str, str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    """Meaning, cause and what to do are printed in a folder without a workspace, in any case."""
    monkeypatch.chdir(tmp_path)
    assert main(["explain", code]) == 0

    out = capsys.readouterr().out
    assert [text for text in said if text not in out] == []


def test_a_hazard_says_how_to_allow_it(capsys: Capture) -> None:
    """The flag that allows a hazard is explained for those that stop an apply, and for no other."""
    assert main(["explain", "DELETES_STREAM"]) == 0
    assert "--allow-hazard DELETES_STREAM:ADDRESS" in capsys.readouterr().out

    assert main(["explain", "MOVES_DATA"]) == 0
    assert "--allow-hazard" not in capsys.readouterr().out


def test_a_lint_rule_reads_the_same_in_lint(capsys: Capture) -> None:
    """`lint --explain` prints what `explain` prints."""
    assert main(["lint", "--explain", "JS201"]) == 0
    expected = capsys.readouterr().out

    assert main(["explain", "JS201"]) == 0
    assert capsys.readouterr().out == expected


def test_json(capsys: Capture) -> None:
    """With --json one code is a document, and all codes together are one."""
    assert main(["explain", "JS438", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert (one["kind"], one["code"], one["title"]) == ("explanation", "JS438", CODES["JS438"])

    assert main(["explain", "--json"]) == 0
    everything = json.loads(capsys.readouterr().out)
    assert everything["kind"] == "explanations"
    assert one in everything["codes"]


def test_all_codes_are_listed(capsys: Capture) -> None:
    """Without a code there is one line for each, under five titles."""
    assert main(["explain"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("  ")]) == len(list_explanations())
    assert len([line for line in lines if line and not line.startswith(" ")]) == 5


@pytest.mark.parametrize(
    ("code", "close"),
    [("JS4388", "JS438"), ("DELETE_MESSAGES", "DELETES_MESSAGES"), ("JS39", "JS")],
)
def test_an_unknown_code_is_wrong_usage(code: str, close: str, capsys: Capture) -> None:
    """An unknown code exits with 64 and names the closest ones."""
    assert main(["explain", code]) == 64

    err = capsys.readouterr().err
    assert f'there is no code "{code}". The closest are {close}' in err
    assert "See: jsplan explain" in err


def test_an_error_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """After the findings of a failed command comes `jsplan explain` with the first error, once."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jsplan.yaml").write_text("jsplan: 1\nworkspace: A B\nfoo: 1\n")

    assert main(["validate"]) == 1
    err = capsys.readouterr().err
    assert err.count("jsplan explain") == 1
    assert err.splitlines()[-1].startswith("To explain a code: jsplan explain JS1")
