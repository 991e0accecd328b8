from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import jsplan, start_process
from tests.support.raw import Raw
from tests.support.state import hold_lock, local_state
from tests.support.workspaces import Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server


@dataclass
class Scene:
    """A workspace with one server, in which commands are run as processes."""

    space: Space
    server: Server

    def run(self, *args: str) -> int:
        return jsplan(self.space.folder, *args).code

    def write(self, *streams: dict[str, Any]) -> None:
        self.space.write(streams=list(streams))

    def update(self, name: str, **fields: Any) -> None:
        """Change a stream outside jsplan."""
        with Raw(self.server.url) as raw:
            config = raw.config(name)
            raw.api_ok(f"$JS.API.STREAM.UPDATE.{name}", config | fields)

    def names(self) -> set[str]:
        with Raw(self.server.url) as raw:
            return set(raw.api_ok("$JS.API.STREAM.NAMES")["streams"] or [])

    def state_streams(self) -> set[str]:
        """Return the streams in the state file, and require that there is no journal."""
        folder = self.space.folder / "state"
        assert not (folder / "test.json.journal").exists()
        return {
            address.split("/")[2]
            for address in json.loads((folder / "test.json").read_bytes())["resources"]
        }


def nothing_to_change(scene: Scene) -> int:
    scene.write({"name": "A"})
    assert scene.run("apply", "-y") == 0
    assert scene.run("plan", "--detailed-exitcode") == 0
    return scene.run("drift")


def an_error(scene: Scene) -> int:
    scene.space.base["connections"]["main"]["url"] = "nats://127.0.0.1:1"
    scene.write({"name": "A"})
    return scene.run("plan")


def a_plan_with_changes(scene: Scene) -> int:
    scene.write({"name": "A"})
    return scene.run("plan", "--detailed-exitcode")


def drift(scene: Scene) -> int:
    scene.write({"name": "A"})
    assert scene.run("apply", "-y") == 0
    scene.update("A", max_msgs=7)
    return scene.run("drift")


def a_hazard(scene: Scene) -> int:
    scene.write({"name": "A", "consumers": [{"name": "C"}]})
    assert scene.run("apply", "-y") == 0
    scene.write()
    return scene.run("apply", "-y")


def changed_since_it_was_planned(scene: Scene) -> int:
    scene.write({"name": "A"})
    assert scene.run("apply", "-y") == 0
    scene.write({"name": "A", "max_age": "1d"}, {"name": "B"})
    assert scene.run("plan", "-o", "p") == 0
    scene.update("A", description="theirs")
    code = scene.run("apply", "p")
    assert scene.names() == {"A"}
    return code


def applied_before(scene: Scene) -> int:
    scene.write({"name": "A"})
    assert scene.run("plan", "-o", "p") == 0
    assert scene.run("apply", "p") == 0
    return scene.run("apply", "p")


def locked(scene: Scene) -> int:
    scene.write({"name": "A"})
    with hold_lock(local_state(scene.space.folder)):
        return scene.run("apply", "-y", "--lock-timeout", "0s")


def a_step_that_the_server_refuses(scene: Scene) -> int:
    """Apply a field that only newer servers know, which no plan can check."""
    scene.write(
        {"name": "A"},
        {"name": "B", "x_raw": {"not_known_yet": True}},
        {"name": "C", "consumers": [{"name": "ONE"}]},
    )
    code = scene.run("apply", "-y")
    assert scene.names() == scene.state_streams() == {"A", "C"}
    return code


def wrong_usage(scene: Scene) -> int:
    scene.write()
    return scene.run("plan", "--no-such-option")


def interrupted(scene: Scene, times: int = 1, number: signal.Signals = signal.SIGINT) -> int:
    """Interrupt apply while the server is paused, so that a request is unanswered."""
    scene.write(*({"name": f"S{each:03}"} for each in range(300)))
    # Under nohup, the process would inherit that the signal is ignored.
    reset_signal = partial(signal.signal, number, signal.SIG_DFL)
    process = start_process(
        scene.space.folder,
        "apply",
        "-y",
        "--parallelism",
        "2",
        preexec_fn=None if number == signal.SIGINT else reset_signal,
    )
    assert process.stderr is not None
    while (
        not (line := process.stderr.readline()).startswith(b"[")
        or int(line[1:].split(b"/")[0]) < 10
    ):
        assert line, "apply ended too early"
    scene.server.pause()
    process.send_signal(number)
    if times == 1:
        scene.server.resume()
    else:
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    scene.server.resume()

    assert b"Traceback" not in out + err
    assert 10 < len(scene.names()) < 300
    assert scene.state_streams() <= scene.names()
    assert len(scene.names() - scene.state_streams()) <= (0 if times == 1 else 2)
    with hold_lock(local_state(scene.space.folder)):
        return process.returncode


def terminated(scene: Scene) -> int:
    return interrupted(scene, number=signal.SIGTERM)


def hung_up(scene: Scene) -> int:
    """Close the terminal, as when an ssh session breaks."""
    return interrupted(scene, number=signal.SIGHUP)


def interrupted_twice(scene: Scene) -> int:
    """Interrupt apply twice; the next apply finds the steps that were running."""
    code = interrupted(scene, times=2)
    assert scene.run("apply", "-y") == 0
    assert len(scene.state_streams()) == 300
    return code


TABLE: list[tuple[int, Callable[[Scene], int]]] = [
    (0, nothing_to_change),
    (1, an_error),
    (2, a_plan_with_changes),
    (2, drift),
    (3, a_hazard),
    (4, changed_since_it_was_planned),
    (4, applied_before),
    (5, locked),
    (6, a_step_that_the_server_refuses),
    (64, wrong_usage),
    (130, interrupted),
    (130, interrupted_twice),
    (130, terminated),
    (130, hung_up),
]


@pytest.mark.parametrize(
    ("code", "scenario"), TABLE, ids=[f"{code}-{scenario.__name__}" for code, scenario in TABLE]
)
@pytest.mark.usefixtures("newer_servers")
def test_exit_code(
    code: int, scenario: Callable[[Scene], int], tmp_path: Path, server: Server
) -> None:
    """The installed `jsplan` ends with the exit code that the contract documents."""
    assert scenario(Scene(single_space(tmp_path, server), server)) == code
