"""Each command that jsplan prints about an interrupted replacement does what is said of it, as it is printed."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.preserve.test_deaths import AFTER, BEFORE, PERMITTED, Scene
from tests.support import stream_content
from tests.support.process import ProcessResult, jsplan
from tests.support.raw import Raw, streams
from tests.support.refused_request import refuse_request
from tests.support.simulated_kill import SimulatedKill, kill_at_request
from tests.support.state import read_state
from tests.support.workspaces import single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

DOWN = "A is down: publishes to A.> are rejected, because its replacement was interrupted. Its messages are in "
FINISH, BACK = (
    r"To finish it: (jsplan [a-z]+)\.",
    r"put the old configuration back into the files, and run (jsplan [a-z]+)\.",
)


@pytest.fixture
def scene(tmp_path: Path, server: Server) -> Scene:
    """A replacement whose new stream is there and does not get its subjects."""
    found = Scene(single_space(tmp_path, server), server, BEFORE, 24)
    found.reset(AFTER)
    with refuse_request("STREAM.UPDATE.A", 2):
        found.space.apply(allow_hazards=PERMITTED)
    return found


def run(folder: Path, command: str, *more: str) -> ProcessResult:
    """What was printed, as it was printed; `-y` stands for the answer to its question."""
    return jsplan(folder, *command.split()[1:], *more)


def storage(server: Server) -> str:
    """Where the stream stores its messages."""
    with Raw(server.url) as raw:
        return str(raw.api_ok("$JS.API.STREAM.INFO.A")["config"]["storage"])


@pytest.mark.parametrize("command", ["plan", "drift", "status"])
def test_the_printed_way_forward(
    command: str, scene: Scene, tmp_path: Path, server: Server
) -> None:
    """`plan`, `drift` and `status` say first that the stream is down, and the command that they name finishes the replacement."""
    said = jsplan(tmp_path, command)
    (printed,) = set(re.findall(FINISH, said.text))

    assert said.code == (2 if command == "drift" else 0)
    assert DOWN in said.text
    if command != "plan":
        assert said.out.startswith(DOWN)
    assert run(tmp_path, printed, "-y").code == 0
    assert storage(server) == "memory"
    scene.require_preserved(places=True)


def test_the_printed_way_back(scene: Scene, tmp_path: Path, server: Server) -> None:
    """With the old files the command that is named for it gives the stream back what it was."""
    (printed,) = set(re.findall(BACK, jsplan(tmp_path, "plan").text))
    scene.space.write(streams=[BEFORE])

    assert run(tmp_path, printed, "-y").code == 0
    assert storage(server) == "file"
    scene.require_preserved(places=True)


def test_the_failing_apply_says_it_first(tmp_path: Path, server: Server) -> None:
    """The result of the apply begins with the stream that is down; its JSON has the same."""
    found = Scene(single_space(tmp_path, server), server, BEFORE, 24)
    found.reset(AFTER)
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.CREATE.TAKER", {"name": "TAKER", "subjects": ["B"]})
    found.space.write(streams=[AFTER | {"subjects": ["A.>", "B"]}])
    flags = [f"--allow-hazard={code}" for code in PERMITTED]
    assert jsplan(tmp_path, "apply", "-y", *flags).code == 1  # known beforehand, so refused
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.DELETE.TAKER")
    saved = jsplan(tmp_path, "plan", "-o", "saved.plan", *flags)
    assert saved.code == 0
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.CREATE.TAKER", {"name": "TAKER", "subjects": ["B"]})
        ended = jsplan(tmp_path, "apply", "saved.plan")
        assert ended.code == 6
        assert DOWN in ended.out
        assert ended.out.index(DOWN) < ended.out.index("Error: ")
        document: dict[str, Any] = json.loads(jsplan(tmp_path, "status", "--json").out)
        assert document["summary"]["down"] == 1
        raw.api_ok("$JS.API.STREAM.DELETE.TAKER")
    (printed,) = set(re.findall(FINISH, ended.out))
    assert run(tmp_path, printed, "-y").code == 0
    found.require_preserved(places=True)


def test_the_refused_revert_of_what_was_something_else(scene: Scene, tmp_path: Path) -> None:
    """An apply from before the interrupted one cannot be undone over it: the command that is named first, then the revert again."""
    first = str(read_state(tmp_path).history[0]["id"])
    refused = jsplan(tmp_path, "revert", first)
    (printed,) = set(re.findall(r"Finish the replacement first: (jsplan [a-z]+)\.", refused.text))

    assert refused.code != 0
    assert run(tmp_path, printed, "-y").code == 0
    assert "its replacement was interrupted" not in jsplan(tmp_path, "revert", first).text
    scene.require_preserved(places=True)


def test_the_printed_way_out_of_a_stream_that_left_the_files(scene: Scene, tmp_path: Path) -> None:
    """A stream that is down and in no file: put back, the command that is named finishes it, and then it can go."""
    scene.space.write(streams=[])
    refused = jsplan(tmp_path, "plan")
    (printed,) = set(
        re.findall(
            r"Put the stream into the files and finish the replacement: (jsplan [a-z]+)\. Then",
            refused.text,
        )
    )

    assert refused.code == 1
    scene.space.write(streams=[AFTER])
    assert run(tmp_path, printed, "-y").code == 0
    scene.require_preserved(places=True)
    scene.space.write(streams=[])
    assert jsplan(tmp_path, "apply", "-y", "--allow-hazard=DELETES_STREAM").code == 0


def test_the_printed_command_after_outside_changes(
    scene: Scene, tmp_path: Path, server: Server
) -> None:
    """With another stream under the name the replacement cannot be finished: the command that is named forgets it and deletes nothing."""
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.DELETE.A")
        raw.api_ok("$JS.API.STREAM.CREATE.A", {"name": "A", "subjects": ["A.>"]})
        refused, looked = jsplan(tmp_path, "plan"), jsplan(tmp_path, "drift")
        (printed,) = set(
            re.findall(r"which deletes nothing: (jsplan state rm main/stream/A)", refused.text)
        )

        assert (refused.code, looked.code) == (1, 2)
        assert run(tmp_path, printed).code == 0
        kept = next(name for name in streams(raw) if name != "A")
        assert {m[3] for m in stream_content.messages(raw, kept)} >= {m[3] for m in scene.held}
        assert (
            jsplan(
                tmp_path,
                "apply",
                "-y",
                "--adopt",
                *(f"--allow-hazard={code}" for code in PERMITTED),
            ).code
            == 0
        )
        assert raw.api_ok("$JS.API.STREAM.INFO.A")["config"]["storage"] == "memory"


def test_an_interrupted_consumer_in_a_revert(tmp_path: Path, server: Server) -> None:
    """Of a consumer whose replacement was interrupted a revert names the command that finishes it."""
    body = {
        "name": "A",
        "subjects": ["A.>"],
        "consumers": [{"name": "C", "ack_policy": "explicit"}],
    }
    space = single_space(tmp_path, server).write(streams=[body])
    space.apply()
    space.write(streams=[body | {"consumers": [{"name": "C", "ack_policy": "all"}]}])
    with kill_at_request("CONSUMER.CREATE.A.C", answered=False), suppress(SimulatedKill):
        space.apply()
    refused = jsplan(tmp_path, "revert", str(read_state(tmp_path).history[-1]["id"]))
    (printed,) = set(re.findall(r"Finish the replacement first: (jsplan [a-z]+)\.", refused.text))

    assert refused.code != 0
    assert run(tmp_path, printed, "-y").code == 0
    assert jsplan(tmp_path, "revert", "-y", str(read_state(tmp_path).history[-1]["id"])).code == 0
