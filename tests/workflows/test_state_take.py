"""`jsplan state take`: a workspace gets environments, renames one, and loses them again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.cli.main import main
from tests.support.buckets import new_bucket
from tests.support.workspaces import Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

STREAMS = [{"name": "A", "subjects": ["a"]}, {"name": "B", "subjects": ["b"]}]
BACKENDS = ("default", "path", "kv")


class Scene:
    """A workspace with two applied streams, and its command line."""

    def __init__(
        self, folder: Path, server: Server, backend: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.space: Space = single_space(folder, server)
        self._capsys = capsys
        self._sections: dict[str, Any] = {"streams": STREAMS}
        if backend == "kv":
            self._sections["backend"] = {"kv": {"domain": "main", "bucket": new_bucket()}}
        elif backend == "path":
            self._sections["backend"] = {"local": {"path": "kept/here.json"}}
        self.space.write(**self._sections)
        assert self.run("apply", "-y")[0] == 0

    def declare(self, *environments: str) -> None:
        """Write the files with these environments."""
        more: dict[str, Any] = (
            {"environments": {name: {} for name in environments}} if environments else {}
        )
        self.space.write(**self._sections, **more)

    def run(self, *words: str) -> tuple[int, str]:
        """Run one command; return its exit code and all that it prints."""
        self._capsys.readouterr()
        code = main(["-C", str(self.space.folder), *words])
        printed = self._capsys.readouterr()
        return code, printed.out + printed.err

    def resources(self, *words: str) -> list[str]:
        """Return the addresses in a state."""
        code, text = self.run(*words, "state", "list")
        assert code == 0, text
        return text.split()


@pytest.mark.parametrize("backend", BACKENDS)
def test_into_an_environment_and_out_again(
    backend: str, tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """The state moves with its history, the plan stays empty, and the other state is empty."""
    scene = Scene(tmp_path, server, backend, capsys)
    both = ["main/stream/A", "main/stream/B"]
    scene.declare("prod", "eu")

    code, text = scene.run("-e", "prod", "state", "take")
    assert code == 0, text
    assert "Moved the state with 2 resources from environment none to prod" in text
    assert scene.resources("-e", "prod") == both
    code, text = scene.run("-e", "prod", "plan")
    assert (code, "No changes" in text) == (0, True), text
    assert len(json.loads(scene.run("-e", "prod", "history", "--json")[1])["entries"]) >= 2
    code, text = scene.run("-e", "eu", "state", "take", "--from", "prod")
    assert code == 0, text
    scene.declare()
    code, text = scene.run("state", "take", "--from", "eu")
    assert code == 0, text
    assert scene.resources() == both
    scene.declare("prod", "eu")
    if backend != "path":  # one file for all environments belongs to one of them
        assert scene.resources("-e", "prod") == scene.resources("-e", "eu") == []


def test_what_is_not_taken(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """A state with resources is not replaced, and there must be something to move."""
    scene = Scene(tmp_path, server, "default", capsys)
    code, text = scene.run("state", "take")
    assert (code, "in this environment already" in text) == (1, True), text
    code, text = scene.run("state", "take", "--from", "prod")
    assert (code, "has no resources: there is nothing to move" in text) == (1, True), text
    scene.declare("prod")
    assert scene.run("-e", "prod", "apply", "-y", "--adopt")[0] == 0
    code, text = scene.run("-e", "prod", "state", "take")
    assert (code, "has 2 resources of its own. Nothing was moved" in text) == (1, True), text
    scene.declare()
    assert scene.resources() == ["main/stream/A", "main/stream/B"]


def test_a_new_environment_names_the_state_that_is_there(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first plan of an environment names the state without one, and the command."""
    scene = Scene(tmp_path, server, "default", capsys)
    scene.declare("prod")
    code, text = scene.run("-e", "prod", "plan")
    assert code in (0, 2)
    assert "[JS479]" in text
    assert "jsplan state take -e prod" in text


def test_a_document_of_another_environment_is_pushed_with_force(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """From another backend the state comes as a document, and push says whose it was."""
    scene = Scene(tmp_path, server, "default", capsys)
    document = str(tmp_path / "state" / "test.json")
    scene.declare("prod")
    code, text = scene.run("-e", "prod", "state", "push", document)
    assert (code, "is the state of environment none" in text) == (1, True), text
    code, text = scene.run("-e", "prod", "state", "push", "--force", document)
    assert (code, "Overridden: it is the state of environment none" in text) == (0, True), text
    assert scene.run("-e", "prod", "plan")[0] == 0
