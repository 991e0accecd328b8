"""Each printed command about an interrupted replacement does what its message says."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.preserve.conftest import AFTER, BEFORE, PERMITTED
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
    from tests.kills.scene import Scene

DOWN = "A is down: publishes to A.> are rejected, because its replacement was interrupted. Its messages are in "
FINISH, ROLL_BACK = (
    r"To finish it: (jsplan [a-z]+)\.",
    r"put the old configuration back into the files, and run (jsplan [a-z]+)\.",
)


@pytest.fixture
def stopped(scene: Scene) -> Scene:
    """An interrupted replacement, whose new stream has no subjects yet."""
    with refuse_request("STREAM.UPDATE.A", 2):
        scene.space.apply(allow_hazards=PERMITTED)
    return scene


def run(folder: Path, command: str, *more: str) -> ProcessResult:
    """Run a command as it was printed; `-y` answers its question."""
    return jsplan(folder, *command.split()[1:], *more)


def storage(server: Server) -> str:
    """Return the storage of the stream."""
    with Raw(server.url) as raw:
        return str(raw.config("A")["storage"])


@pytest.mark.parametrize("command", ["plan", "drift", "status"])
def test_the_printed_command_finishes(
    command: str, stopped: Scene, tmp_path: Path, server: Server
) -> None:
    """The command that `plan`, `drift` and `status` print finishes the replacement."""
    result = jsplan(tmp_path, command)
    (printed,) = set(re.findall(FINISH, result.text))

    assert result.code == (0 if command == "plan" else 2)
    assert DOWN in result.text
    if command != "plan":
        assert result.out.startswith(DOWN)
    assert run(tmp_path, printed, "-y").code == 0
    assert storage(server) == "memory"
    stopped.require_finished()


def test_the_printed_command_rolls_back(stopped: Scene, tmp_path: Path, server: Server) -> None:
    """With the old files the printed command restores the old stream."""
    (printed,) = set(re.findall(ROLL_BACK, jsplan(tmp_path, "plan").text))
    stopped.space.write(streams=[BEFORE])

    assert run(tmp_path, printed, "-y").code == 0
    assert storage(server) == "file"
    stopped.require_taken_back()


def test_a_failing_apply_reports_it_first(scene: Scene, tmp_path: Path, server: Server) -> None:
    """The output of a failing apply and its JSON begin with the stream that is down."""
    scene.row = replace(scene.row, after={"streams": [AFTER | {"subjects": ["A.>", "B"]}]})
    scene.declare(scene.row.after)
    with Raw(server.url) as raw:
        raw.create("TAKER", subjects=["B"])
    flags = [f"--allow-hazard={code}" for code in PERMITTED]
    assert jsplan(tmp_path, "apply", "-y", *flags).code == 1  # refused before any change
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.DELETE.TAKER")
    saved = jsplan(tmp_path, "plan", "-o", "saved.plan", *flags)
    assert saved.code == 0
    with Raw(server.url) as raw:
        raw.create("TAKER", subjects=["B"])
        applied = jsplan(tmp_path, "apply", "saved.plan")
        assert applied.code == 6
        assert DOWN in applied.out
        assert applied.out.index(DOWN) < applied.out.index("Error: ")
        document: dict[str, Any] = json.loads(jsplan(tmp_path, "status", "--json").out)
        assert document["summary"]["down"] == 1
        raw.api_ok("$JS.API.STREAM.DELETE.TAKER")
    (printed,) = set(re.findall(FINISH, applied.out))
    assert run(tmp_path, printed, "-y").code == 0
    scene.require_finished()


def test_a_revert_of_an_earlier_apply_is_refused(stopped: Scene, tmp_path: Path) -> None:
    """A refused revert of an earlier apply works after the printed command."""
    first = str(read_state(tmp_path).history[0]["id"])
    refused = jsplan(tmp_path, "revert", first)
    (printed,) = set(re.findall(r"finish the replacement: (jsplan [a-z]+)\.", refused.text))

    assert refused.code != 0
    assert run(tmp_path, printed, "-y").code == 0
    assert "was interrupted" not in jsplan(tmp_path, "revert", first).text
    stopped.require_finished()


def test_the_printed_command_for_a_stream_in_no_file(stopped: Scene, tmp_path: Path) -> None:
    """A stream that is down and in no file is finished first, and deleted then."""
    stopped.space.write(streams=[])
    refused = jsplan(tmp_path, "plan")
    (printed,) = set(
        re.findall(
            r"Put the stream into the files and finish the replacement: (jsplan [a-z]+)\. Then",
            refused.text,
        )
    )

    assert refused.code == 1
    stopped.space.write(streams=[AFTER])
    assert run(tmp_path, printed, "-y").code == 0
    stopped.require_finished()
    stopped.space.write(streams=[])
    assert jsplan(tmp_path, "apply", "-y", "--allow-hazard=DELETES_STREAM").code == 0


def test_the_printed_command_after_outside_changes(
    stopped: Scene, tmp_path: Path, server: Server
) -> None:
    """After outside changes the printed command forgets the replacement and deletes nothing."""
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.DELETE.A")
        raw.create("A", subjects=["A.>"])
        refused, drift_result = jsplan(tmp_path, "plan"), jsplan(tmp_path, "drift")
        (printed,) = set(
            re.findall(r"which deletes nothing: (jsplan state rm main/stream/A)", refused.text)
        )

        assert (refused.code, drift_result.code) == (1, 2)
        assert run(tmp_path, printed).code == 0
        staging = next(name for name in streams(raw) if name != "A")
        assert {m[3] for m in stream_content.messages(raw, staging)} >= {
            m[3] for m in stopped.expected["main/A"]
        }
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
        assert raw.config("A")["storage"] == "memory"


def test_an_interrupted_consumer_in_a_revert(tmp_path: Path, server: Server) -> None:
    """A revert finishes an interrupted consumer as it was before."""
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
    last = str(read_state(tmp_path).history[-1]["id"])
    assert jsplan(tmp_path, "revert", "-y", last).code == 0

    with Raw(server.url) as raw:
        assert raw.api_ok("$JS.API.CONSUMER.INFO.A.C")["config"]["ack_policy"] == "explicit"
    assert space.write(streams=[body]).plan().steps == []
