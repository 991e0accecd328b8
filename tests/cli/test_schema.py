"""`jsplan schema`."""

from __future__ import annotations

import json
from functools import cache

import pytest

from jsplan.cli.main import main
from jsplan.workflows.schemas import schemas
from tests.support.schemas import FOLDER


def test_a_schema_is_printed_as_it_ships(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each schema that is printed is the file in the wheel."""
    monkeypatch.setattr("jsplan.workflows.schemas.schemas", cache(schemas))
    for path in FOLDER.glob("*.json"):
        document = path.name.removesuffix("-v1.json")
        assert main(["schema", document, *(["--json"] if document == "plan" else [])]) == 0
        assert json.loads(capsys.readouterr().out) == json.loads(path.read_bytes())


def test_the_schema_of_workspaces_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    """The schema of workspaces is printed without a workspace."""
    assert main(["schema"]) == 0

    assert capsys.readouterr().out == (FOLDER / "workspace-v1.json").read_text("utf-8")


def test_another_word_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown schema is wrong usage, and the message lists the known ones."""
    assert main(["schema", "bucket"]) == 64
    assert "workspace" in capsys.readouterr().err
