"""Refused applies and plans on a real server, and what is said where."""

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
    - JS302 of main/stream/LEGACY
    - DELETES_MESSAGES of main/stream/A
    To allow all of it:
      --adopt --allow-hazard DELETES_MESSAGES:main/stream/A
"""
UNMANAGED = "is not managed yet"
HAZARD = "DELETES_MESSAGES:main/stream/A"


@pytest.fixture
def space(tmp_path: Path, server: Server) -> Space:
    """A stream with more messages than its files allow, and an unmanaged one that differs."""
    space = single_space(tmp_path, server).write(streams=[stream("A")])
    space.apply()
    with Raw(server.url) as raw:
        for _ in range(5):
            raw.request("a", b"x")
        raw.create("LEGACY", subjects=["legacy"])
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
    assert "      --adopt --allow-hazard DELETES_MESSAGES:main/stream/A\n" in ended.err


@pytest.mark.parametrize("options", [["--json"], ["--json-into", "error.json"]])
def test_the_document_of_a_refusal_explains_it(space: Space, options: list[str]) -> None:
    """The JSON document has each sentence, also where the terminal shows the plan."""
    ended = jsplan(space.folder, "apply", "-y", *options)
    text = (space.folder / options[1]).read_text("utf-8") if options[1:] else ended.out
    message = json.loads(text)["error"]["message"]

    assert (ended.code, message.count(SENTENCE), message.count(UNMANAGED)) == (3, 1, 1)
    shown = ended.err if options == ["--json"] else ended.out
    assert (shown.count(SENTENCE), shown.count(UNMANAGED)) == (1, 1)


def test_a_plan_that_no_apply_accepts(space: Space) -> None:
    """Such a plan ends with 3, with and without `-o`, and is saved with its reason."""
    for options in ([], ["--detailed-exitcode"], ["--json"]):
        assert jsplan(space.folder, "plan", *options).code == 3

    saved = jsplan(space.folder, "plan", "-o", "saved.plan")

    assert saved.code == 3
    assert saved.err.endswith(
        "\nSaved to saved.plan. It cannot be applied:\n"
        "  - main/stream/LEGACY: exists on the server, is not managed yet, and differs from the "
        "files [JS302]\n"
    )
    assert jsplan(space.folder, "show", "saved.plan").code == 0
    assert jsplan(space.folder, "apply", "saved.plan", "--allow-hazard", HAZARD).code == 3
    assert jsplan(space.folder, "plan", "--adopt").code == 0


OWNED = {"ownership": {"marker": True}}
#: What is applied before, if anything is, and the files that are refused.
REFUSED: dict[str, list[dict[str, Any]]] = {
    "JS301": [{"streams": [stream("B", lifecycle={"prevent_destroy": True})]}, {}],
    "JS303": [{"streams": [stream("B")]}, {"streams": [stream("B", storage="memory")]}],
    "JS306": [
        {"workspace": "other", "streams": [stream("B")]} | OWNED,
        {"workspace": "mine", "streams": [stream("B", max_msgs=9)]} | OWNED,
    ],
    "JS220": [{"streams": [stream("B")], "lint": {"JS220": "error"}}],
}


@pytest.mark.parametrize("code", REFUSED)
def test_each_refusal_ends_a_plan_with_3(code: str, tmp_path: Path, server: Server) -> None:
    """Every finding that refuses an apply makes the plan end with 3, and is named beside `-o`."""
    refused = single_space(tmp_path, server)
    *before, wanted = REFUSED[code]
    for sections in before:
        refused.write(**sections).apply()
    refused.write(**wanted)
    planned = jsplan(tmp_path, "plan", "-o", "p")

    assert (planned.code, "Saved to p. It cannot be applied:" in planned.err) == (3, True)
    assert f"[{code}]" in planned.err
    assert jsplan(tmp_path, "apply", "-y").code == 3


def test_a_hazard_without_permission_is_no_refusal_of_the_plan(space: Space) -> None:
    """The plan ends with 0 or 2, and says with which flags it can be applied."""
    space.write(streams=[stream("A", max_msgs=3)])
    planned = jsplan(space.folder, "plan", "--detailed-exitcode")
    saved = jsplan(space.folder, "plan", "-o", "p")

    assert (planned.code, saved.code) == (2, 0)
    for text in (planned.out, saved.out):
        assert f"Apply will refuse without:\n    --allow-hazard {HAZARD}\n" in text
    assert saved.err.endswith(
        "\nSaved to p. Its hazards are not allowed yet. Allow them and apply exactly this with:\n"
        f"  jsplan apply p --allow-hazard {HAZARD}\n"
    )
    assert jsplan(space.folder, "apply", "p").code == 3
    assert jsplan(space.folder, "apply", "p", "--allow-hazard", HAZARD).code == 0


def test_an_allowed_hazard_needs_no_flag(space: Space) -> None:
    """A permission in the plan is not asked for again."""
    space.write(streams=[stream("A", max_msgs=3)])
    saved = jsplan(space.folder, "plan", "-o", "p", "--allow-hazard", HAZARD)

    assert saved.err.endswith("\nSaved to p. Apply exactly this with:\n  jsplan apply p\n")
    assert jsplan(space.folder, "apply", "p").code == 0
