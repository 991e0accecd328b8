"""`jsplan state take`: a workspace gets environments, renames one, and loses them again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.buckets import new_bucket
from tests.support.workspaces import Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

STREAMS = [{"name": "A", "subjects": ["a"]}, {"name": "B", "subjects": ["b"]}]
BACKENDS = ("default", "path", "kv")


class Scene:
    """A workspace with two applied streams, and its command line."""

    def __init__(self, folder: Path, server: Server, backend: str) -> None:
        self.space: Space = single_space(folder, server)
        self.run = self.space.run
        self._sections: dict[str, Any] = {"streams": STREAMS}
        if backend == "kv":
            self._sections["backend"] = {"kv": {"domain": "main", "bucket": new_bucket()}}
        elif backend == "path":
            self._sections["backend"] = {"local": {"path": "kept/here.json"}}
        self.space.write(**self._sections)
        assert self.run("apply", "-y").code == 0

    def declare(self, *environments: str) -> None:
        """Write the files with these environments."""
        more: dict[str, Any] = (
            {"environments": {name: {} for name in environments}} if environments else {}
        )
        self.space.write(**self._sections, **more)

    def resources(self, *words: str) -> list[str]:
        """Return the addresses in a state."""
        ended = self.run(*words, "state", "list")
        assert ended.code == 0, ended.text
        return ended.out.split()


@pytest.mark.parametrize("backend", BACKENDS)
def test_into_an_environment_and_out_again(backend: str, tmp_path: Path, server: Server) -> None:
    """The state moves with its history, the plan stays empty, and the other state is empty."""
    scene = Scene(tmp_path, server, backend)
    both = ["main/stream/A", "main/stream/B"]
    scene.declare("prod", "eu")

    ended = scene.run("-e", "prod", "state", "take")
    assert ended.code == 0, ended.text
    assert "Moved the state with 2 resources from environment none to prod" in ended.text
    assert scene.resources("-e", "prod") == both
    ended = scene.run("-e", "prod", "plan")
    assert (ended.code, "No changes" in ended.text) == (0, True), ended.text
    assert len(json.loads(scene.run("-e", "prod", "history", "--json").out)["entries"]) >= 2
    ended = scene.run("-e", "eu", "state", "take", "--from", "prod")
    assert ended.code == 0, ended.text
    scene.declare()
    ended = scene.run("state", "take", "--from", "eu")
    assert ended.code == 0, ended.text
    assert scene.resources() == both
    scene.declare("prod", "eu")
    if backend != "path":  # one file for all environments belongs to one of them
        assert scene.resources("-e", "prod") == scene.resources("-e", "eu") == []


def test_what_is_not_taken(tmp_path: Path, server: Server) -> None:
    """A state with resources is not replaced, and there must be something to move."""
    scene = Scene(tmp_path, server, "default")
    ended = scene.run("state", "take")
    assert (ended.code, "in this environment already" in ended.text) == (1, True), ended.text
    ended = scene.run("state", "take", "--from", "prod")
    assert (ended.code, "has no resources: there is nothing to move" in ended.text) == (1, True), (
        ended.text
    )
    scene.declare("prod")
    assert scene.run("-e", "prod", "apply", "-y", "--adopt").code == 0
    ended = scene.run("-e", "prod", "state", "take")
    assert (ended.code, "has 2 resources of its own. Nothing was moved" in ended.text) == (
        1,
        True,
    ), ended.text
    scene.declare()
    assert scene.resources() == ["main/stream/A", "main/stream/B"]


def test_a_new_environment_names_the_state_that_is_there(tmp_path: Path, server: Server) -> None:
    """The first plan of an environment names the state without one, and the command."""
    scene = Scene(tmp_path, server, "default")
    scene.declare("prod")
    ended = scene.run("-e", "prod", "plan")
    assert ended.code in (0, 2)
    assert "[JS479]" in ended.text
    assert "jsplan state take -e prod" in ended.text


def test_a_document_of_another_environment_is_pushed_with_force(
    tmp_path: Path, server: Server
) -> None:
    """From another backend the state comes as a document, and push says whose it was."""
    scene = Scene(tmp_path, server, "default")
    document = str(tmp_path / "state" / "test.json")
    scene.declare("prod")
    ended = scene.run("-e", "prod", "state", "push", document)
    assert (ended.code, "is the state of environment none" in ended.text) == (1, True), ended.text
    ended = scene.run("-e", "prod", "state", "push", "--force", document)
    assert (ended.code, "Overridden: it is the state of environment none" in ended.text) == (
        0,
        True,
    ), ended.text
    assert scene.run("-e", "prod", "plan").code == 0
