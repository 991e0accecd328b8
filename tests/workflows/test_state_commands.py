"""`jsplan state pull|push|unlock`, as a user runs them, on every backend."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.buckets import new_bucket
from tests.support.process import run_process, start_process
from tests.support.raw import Raw
from tests.support.state import hold_lock, load_context
from tests.support.workspaces import Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

HOLDER = {
    "id": "6b1f",
    "who": "ann",
    "host": "ci-7",
    "pid": 812,
    "operation": "apply",
    "since": "2026-01-31T12:00:00Z",
}


class Commands:
    """A workspace and its command line, run in this process."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.run = space.run

    def pulled(self, *args: str) -> dict[str, Any]:
        """Return the document that `state pull` prints."""
        ended = self.run("state", "pull", *args)
        assert ended.code == 0, ended.err
        document = json.loads(ended.out)
        assert isinstance(document, dict)
        return document

    def saved(self, document: object) -> str:
        """Write the document into a file and return its path."""
        path = self.space.folder / "pushed.json"
        path.write_text(json.dumps(document), "utf-8")
        return str(path)


@pytest.fixture
def commands(space: Space) -> Commands:
    """The command line in the workspace."""
    return Commands(space)


@pytest.fixture(params=["local", "kv"])
def space(request: pytest.FixtureRequest, tmp_path: Path, server: Server) -> Space:
    """A workspace that has applied stream A and then B, with its state at serial 2."""
    space = single_space(tmp_path, server)
    if request.param == "kv":
        space.base["backend"] = {"kv": {"bucket": new_bucket(), "lock_ttl": "30s"}}
    space.write(streams=[{"name": "A"}]).apply()
    space.write(streams=[{"name": "A"}, {"name": "B"}]).apply()
    return space


def test_pull_and_push_again(commands: Commands) -> None:
    """An edited state is pushed with a new serial, and the next plan uses it."""
    document = commands.pulled()
    assert (document["kind"], document["serial"], sorted(document["resources"])) == (
        "state",
        2,
        ["main/stream/A", "main/stream/B"],
    )
    del document["resources"]["main/stream/B"]
    ended = commands.run("state", "push", commands.saved(document))

    assert (ended.code, ended.out) == (
        0,
        "The state is at serial 3 now. See what that means: jsplan plan\n",
    )
    after = commands.pulled()
    assert (after["serial"], after["lineage"], list(after["resources"])) == (
        3,
        document["lineage"],
        ["main/stream/A"],
    )
    assert "1 to import" in commands.run("plan").out


def test_push_from_standard_input(commands: Commands) -> None:
    """`-` is standard input, and with `--json` the result is a document."""
    ended = run_process(
        commands.space.folder, "state", "push", "-", "--json", input=json.dumps(commands.pulled())
    )
    result = json.loads(ended.out)

    assert (ended.code, result["kind"], result["serial"], result["overrode"]) == (
        0,
        "state-push",
        3,
        [],
    )


def test_push_of_an_unreadable_file(commands: Commands) -> None:
    """A missing file and a file without JSON are errors."""
    missing = commands.run("state", "push", "/nowhere/x.json")
    (commands.space.folder / "text").write_text("hello")
    text = commands.run("state", "push", str(commands.space.folder / "text"))

    assert (missing.code, text.code) == (1, 1)
    assert "cannot read /nowhere/x.json: No such file or directory" in missing.text
    assert "text is no JSON" in text.text
    assert commands.pulled()["serial"] == 2


def test_an_older_serial_is_refused(commands: Commands) -> None:
    """An older serial is refused, and `--force` pushes it and reports what was overridden."""
    old = commands.pulled()
    commands.space.write(streams=[{"name": "A"}]).apply(allow_hazards=("DELETES_STREAM",))
    path = commands.saved(old)
    refused = commands.run("state", "push", path)
    assert refused.code == 1
    assert (
        "pushed.json has serial 2, and the state here is at 3. Nothing was written" in refused.text
    )
    assert commands.pulled()["serial"] == 3

    forced = commands.run("state", "push", "--force", path)
    assert forced.code == 0
    assert "Overridden: it has serial 2, and the state here is at 3." in forced.text
    assert sorted(commands.pulled()["resources"]) == ["main/stream/A", "main/stream/B"]
    assert commands.pulled()["serial"] == 4


def test_another_lineage_is_refused(commands: Commands) -> None:
    """A state of another lineage is refused, also with a higher serial."""
    other = commands.pulled() | {"lineage": "0000-other", "serial": 99}
    path = commands.saved(other)
    refused = commands.run("state", "push", path)
    assert refused.code == 1
    assert "has lineage 0000-other, and the state here has" in refused.text

    assert commands.run("state", "push", "--force", path).code == 0
    assert (commands.pulled()["lineage"], commands.pulled()["serial"]) == ("0000-other", 100)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"workspace": "other"}, "is the state of workspace other"),
        ({"kind": "plan"}, "is not a jsplan state"),
        ({"domains": None}, ""),
    ],
)
def test_a_document_that_is_no_state_of_the_workspace_is_refused(
    commands: Commands, change: dict[str, Any], words: str
) -> None:
    """The state of another workspace and another document are refused, even with `--force`."""
    wrong = commands.pulled() | change
    if change == {"domains": None}:
        del wrong["resources"]
        words = "is damaged"
    refused = commands.run("state", "push", "--force", commands.saved(wrong))

    assert refused.code == 1
    assert words in refused.text
    assert "Traceback" not in refused.err
    assert commands.pulled()["serial"] == 2


def test_restoring_an_earlier_serial(commands: Commands) -> None:
    """`state pull --serial N` prints an earlier state, which `state push --force` restores."""
    before = commands.pulled("--serial", "1")
    assert (before["serial"], list(before["resources"])) == (1, ["main/stream/A"])
    missing = commands.run("state", "pull", "--serial", "7")
    assert (missing.code, missing.out) == (1, "")
    assert "Kept are: 1, 2." in missing.text

    assert commands.run("state", "push", "--force", commands.saved(before)).code == 0
    assert list(commands.pulled()["resources"]) == ["main/stream/A"]


def test_a_damaged_state_is_replaced_only_with_force(commands: Commands) -> None:
    """A damaged state is replaced only with `--force`, which reports the damage."""
    good = commands.pulled()
    # Overwrite the state with a damaged document.
    write_document(commands.space, b'{"kind": "sta')
    path = commands.saved(good)
    refused = commands.run("state", "push", path)
    assert (refused.code, "damaged" in refused.text) == (1, True)

    forced = commands.run("state", "push", "--force", path)
    assert forced.code == 0
    assert "takes the place of something that cannot be read" in forced.text
    assert commands.run("plan", "--detailed-exitcode").code == 0


def test_rm_of_an_address_that_nothing_can_read(commands: Commands) -> None:
    """`state rm` removes an address that makes the state unreadable, and nothing else."""
    assert commands.run("apply", "-y").code == 0
    bad = "main/schedule/S/s.a>b"
    document = commands.pulled()
    document["resources"][bad] = next(iter(document["resources"].values()))
    write_document(commands.space, json.dumps(document).encode())
    assert f"expected an address at $.resources['{bad}']" in commands.run("plan").text

    ended = commands.run("state", "rm", bad)
    assert (ended.code, ended.out) == (0, f"Forgot {bad}\n")
    assert commands.run("plan", "--detailed-exitcode").code == 0
    assert commands.run("state", "rm", bad).code == 1


def write_document(space: Space, data: bytes) -> None:
    """Overwrite the state without the lock."""
    backend = space.base.get("backend")
    if backend is None:
        (space.folder / "state" / "test.json").write_bytes(data)
        return
    with Raw(space.base["connections"]["main"]["url"]) as raw:
        raw.api_ok(f"$KV.{backend['kv']['bucket']}.test", data)


def test_unlock(commands: Commands) -> None:
    """A lock is removed only with its id, and then the state can be written."""
    hold(commands)
    wrong = commands.run("state", "unlock", "other")
    if commands.space.base.get("backend"):
        assert (wrong.code, f"is locked by {WHO}" in wrong.text) == (1, True)
        assert "To remove that lock: jsplan state unlock 6b1f" in wrong.text
    else:  # the system freed the lock when its process ended
        assert (wrong.code, "the lock has ended" in wrong.text) == (0, True)

    ended = commands.run("state", "unlock", "6b1f")
    assert (ended.code, ended.out) == (0, f"Unlocked. It was held by {WHO}\n")
    again = commands.run("state", "unlock", "6b1f")
    assert (again.code, "the lock has ended" in again.text) == (0, True)
    assert commands.run("apply", "-y", "--lock-timeout", "0s").code == 0


WHO = "ann@ci-7 (process 812) for apply since 2026-01-31T12:00:00Z, lock 6b1f"


def hold(commands: Commands) -> None:
    """Leave a lock behind, as a killed process does."""
    space = commands.space
    backend = space.base.get("backend")
    if backend is None:
        (space.folder / "state" / "test.json.lock.info").write_text(json.dumps(HOLDER), "utf-8")
        return
    with Raw(space.base["connections"]["main"]["url"]) as raw:
        raw.api_ok(f"$KV.{backend['kv']['bucket']}._lock.test", {"lock": HOLDER, "lease": 600})
    assert commands.run("apply", "-y", "--lock-timeout", "0s").code == 5


@pytest.mark.parametrize("command", ["apply -y", "state rm main/stream/B"])
def test_a_waiting_command_names_the_lock_holder(space: Space, command: str) -> None:
    """A waiting command prints one line about the holder of the lock, and then continues."""
    backend = load_context(space.load).backend
    with hold_lock(backend, "destroy"):
        process = start_process(space.folder, *command.split(), "--lock-timeout", "5m")
        assert process.stderr is not None
        text = process.stderr.readline().decode()
        while text and "waiting for" not in text:
            text = process.stderr.readline().decode()
    _, rest = process.communicate(timeout=60)

    assert " for destroy since 20" in text
    assert "is locked by" in text
    assert (process.returncode, b"waiting for" in rest) == (0, False)
