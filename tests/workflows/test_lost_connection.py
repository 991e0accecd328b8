"""A lost connection is never read as "nothing to do" (contract, section 3)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.cli.main import main
from tests.support.raw import Raw, delete_all_streams, streams
from tests.support.relay import Failing
from tests.support.workspaces import single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Server
    from tests.support.relay import Failure

#: Timeout of a request where answers stop: it is waited for.
PATIENCE = "300ms"
#: Timeout where they are counted: none is asked for twice, also on a busy machine.
MUCH_PATIENCE = "30s"
BEFORE: list[dict[str, Any]] = [
    {"name": f"S{n}", "consumers": [{"name": "C", "ack_policy": "explicit"}]} for n in range(6)
]
AFTER: list[dict[str, Any]] = [body | {"max_age": "1d"} for body in BEFORE]
COMMANDS = {
    "plan": ["plan", "--detailed-exitcode"],
    "apply": ["apply", "-y"],
    "destroy": ["destroy", "-y", "--allow-hazard", "DELETES_STREAM"],
    "drift": ["drift"],
    "status": ["status"],
    "import": ["import", "-y", "main/**", "--generate-config", "{folder}/found.jsplan.yaml"],
}


class Scene:
    """A workspace with changes, drift and an import, behind a relay that fails."""

    def __init__(self, folder: Path, server: Server, command: str) -> None:
        self.space, self.server, self.command = single_space(folder, server), server, command
        self.space.write(streams=BEFORE).apply()
        with Raw(server.url) as raw:
            raw.api_ok(
                "$JS.API.STREAM.UPDATE.S5", {"name": "S5", "subjects": ["S5"], "max_msgs": 7}
            )
            raw.create("OTHER")

    def run(self, failure: Failure, after: float) -> tuple[int, int]:
        """Run the command; return its exit code and the number of bytes that the server answered."""
        with Failing(self.server.port, failure, after) as relay:
            patience = PATIENCE if math.isfinite(after) else MUCH_PATIENCE
            connections = {"main": {"url": f"nats://127.0.0.1:{relay.port}", "timeout": patience}}
            self.space.write(streams=AFTER, connections=connections)
            folder = str(self.space.folder)
            code = main(
                ["-C", folder, *(word.format(folder=folder) for word in COMMANDS[self.command])]
            )
            return code, relay.answered

    def has_happened(self) -> bool:
        """Return True if the servers are as the command leaves them."""
        with Raw(self.server.url) as raw:
            configs = [raw.config(name) for name in streams(raw) if name != "OTHER"]
        return (
            not configs
            if self.command == "destroy"
            else all(config["max_age"] for config in configs)
        )


#: Exit code of a command that has read and done everything.
DONE = {"plan": 2, "apply": 0, "destroy": 0, "drift": 2, "status": 0, "import": 0}


def reset_server(folder: Path, server: Server) -> Path:
    """Empty the server and return a new folder."""
    with Raw(server.url) as raw:
        delete_all_streams(raw)
    made = folder / str(len(list(folder.iterdir())))
    made.mkdir()
    return made


def answers(folder: Path, server: Server, command: str) -> int:
    """Return the number of bytes that the server answers without a failure."""
    code, total = Scene(folder, server, command).run("reset", math.inf)
    assert code == DONE[command]
    return total


@pytest.mark.parametrize("failure", ["reset", "hole", "garbage"])
@pytest.mark.parametrize("command", COMMANDS)
def test_the_only_domain_is_lost(
    tmp_path: Path,
    server: Server,
    command: str,
    failure: Failure,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A command that loses its only domain ends with 1, or with 6 after its first write."""
    total = answers(reset_server(tmp_path, server), server, command)
    for part in (0.25, 0.6, 0.9):
        scene = Scene(reset_server(tmp_path, server), server, command)
        code, _ = scene.run(failure, total * part)

        shown = "".join(capfd.readouterr())
        writes = command in ("apply", "destroy")
        if code == DONE[command]:
            assert writes
            assert scene.has_happened(), shown
        else:
            assert code == 1 or (writes and code == 6), (part, shown)
            assert "Error: " in shown or code == 6
        assert "bug in jsplan" not in shown
        assert "Traceback" not in shown


@pytest.mark.parametrize("failure", ["reset", "hole", "garbage"])
def test_one_of_two_domains_is_lost(tmp_path: Path, server: Server, failure: Failure) -> None:
    """A domain that is lost after its first answer is deferred, and the other one is planned."""
    space = single_space(tmp_path, server)
    domains = {key: {"connection": key, "js_domain": None} for key in ("main", "far")}
    bodies = [{"name": "NEAR"}, *({"name": f"FAR{n}", "domain": "far"} for n in range(4))]

    def plan_over(relay: Failing) -> Plan:
        far = {"url": f"nats://127.0.0.1:{relay.port}", "timeout": PATIENCE}
        space.write(
            streams=bodies, domains=domains, connections={"main": {"url": server.url}, "far": far}
        )
        return space.plan()

    with Failing(server.port, failure, math.inf) as relay:
        plan_over(relay)
    with Failing(server.port, failure, relay.answered * 0.7) as lost:
        plan = plan_over(lost)

    assert [deferred.address for deferred in plan.deferred] == [
        f"far/stream/FAR{n}" for n in range(4)
    ]
    assert [step.address for step in plan.steps] == ["main/stream/NEAR"]
