"""Refused applies on a real server: each hazard is said in full once, and by name beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import jsplan
from tests.support.raw import Raw
from tests.support.workspaces import Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

SENTENCE = "the server deletes 2 of 5 messages"
NAMED = """\
Error: refused, nothing was changed:
    - JS302 of main/stream/LEGACY. To allow it:
      --adopt
    - DELETES_MESSAGES of main/stream/A. To allow it:
      --allow-hazard DELETES_MESSAGES:main/stream/A
"""
UNMANAGED = "is not managed yet"


@pytest.fixture
def space(tmp_path: Path, server: Server) -> Space:
    """A stream with more messages than its files allow, and an unmanaged one that differs."""
    space = single_space(tmp_path, server).write(streams=[stream("A")])
    space.apply()
    with Raw(server.url) as raw:
        for _ in range(5):
            raw.request("a", b"x")
        raw.api_ok("$JS.API.STREAM.CREATE.LEGACY", {"name": "LEGACY", "subjects": ["legacy"]})
    return space.write(streams=[stream("A", max_msgs=3), stream("LEGACY", max_age="1d")])


def stream(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "subjects": [name.lower()], **fields}


def test_the_message_beside_a_plan_names_what_the_plan_explains(space: Space) -> None:
    """A printed plan explains each reason, and the error names it with its flag."""
    ended = jsplan(space.folder, "apply", "-y")

    assert ended.code == 3
    assert (ended.out.count(SENTENCE), ended.out.count(UNMANAGED)) == (1, 1)
    assert ended.err.endswith(NAMED)
    assert "Not allowed yet" not in ended.out, "the flags are in the error below it"


def test_a_saved_plan_is_explained_when_it_is_refused(space: Space) -> None:
    """`apply FILE` prints no plan, so its error has each sentence."""
    saved = jsplan(space.folder, "plan", "-o", "saved.plan")
    assert "Not allowed yet" in saved.out

    ended = jsplan(space.folder, "apply", "saved.plan")

    assert (ended.code, ended.out) == (3, "")
    assert (ended.err.count(SENTENCE), ended.err.count(UNMANAGED)) == (1, 1)
    assert "      --allow-hazard DELETES_MESSAGES:main/stream/A\n" in ended.err


@pytest.mark.parametrize("options", [["--json"], ["--json-into", "error.json"]])
def test_the_document_of_a_refusal_explains_it(space: Space, options: list[str]) -> None:
    """The JSON document has each sentence, also where the terminal shows the plan."""
    ended = jsplan(space.folder, "apply", "-y", *options)
    text = (space.folder / options[1]).read_text("utf-8") if options[1:] else ended.out
    message = json.loads(text)["error"]["message"]

    assert (ended.code, message.count(SENTENCE), message.count(UNMANAGED)) == (3, 1, 1)
    shown = ended.err if options == ["--json"] else ended.out
    assert (shown.count(SENTENCE), shown.count(UNMANAGED)) == (1, 1)
