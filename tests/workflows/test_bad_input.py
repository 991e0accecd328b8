from __future__ import annotations

import json
import os
import resource
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import ProcessResult, jsplan, run_process
from tests.support.raw import Raw, streams
from tests.support.workspaces import Space, hub_leaf_space, single_space
from tests.support.yaml_text import read_yaml

if TYPE_CHECKING:
    from jsplan.sandbox import Sandbox, Server
    from tests.conftest import MakeServer

NARROW = """
no_auth_user: full
authorization {
    users: [
        {user: full, password: full}
        {user: reader, password: reader, permissions: {publish: {deny: ["$JS.API.STREAM.CREATE.>"]}}}
        {user: blind, password: blind, permissions: {publish: {deny: ["$JS.API.>"]}}}
    ]
}
"""


#: An account with JetStream and one without.
TWO_ACCOUNTS = """
no_auth_user: a
accounts {
    A: {users: [{user: a, password: a}], jetstream: enabled}
    B: {users: [{user: b, password: b}]}
}
"""


#: Connections, files and arguments that are wrong.
ROWS: dict[str, list[Any]] = read_yaml(
    Path(__file__).with_name("bad_input.yaml").read_text("utf-8")
)


def require_clean_exit(ended: ProcessResult, code: int, *words: str) -> None:
    """Require the exit code, all words in the output, and no traceback."""
    assert "Traceback" not in ended.err + ended.out
    assert "bug in jsplan" not in ended.err
    missing = [word for word in words if word not in ended.text]
    assert (ended.code, missing) == (code, []), ended.err + ended.out


# --- servers and connections ---------------------------------------------------------------------------------


@dataclass
class Scene:
    """A workspace with one empty server."""

    space: Space
    server: Server

    @property
    def folder(self) -> Path:
        return self.space.folder

    @property
    def connection(self) -> dict[str, Any]:
        found: dict[str, Any] = self.space.base["connections"]["main"]
        return found

    def write(self, *streams: dict[str, Any], **sections: Any) -> None:
        self.space.write(streams=list(streams), **sections)


@pytest.fixture
def scene(tmp_path: Path, server: Server) -> Scene:
    return Scene(single_space(tmp_path, server), server)


def test_an_unreachable_server(scene: Scene) -> None:
    """The error names connection and address, without the password."""
    scene.connection["url"] = "nats://user:secret@127.0.0.1:1"
    scene.write({"name": "A"})
    ended = jsplan(scene.folder, "plan")

    require_clean_exit(ended, 1, "connection main", "nats://127.0.0.1:1", "Is the server running")
    assert "secret" not in ended.text


def test_a_server_that_does_not_answer(scene: Scene) -> None:
    """A server that accepts and does not answer is an error after the timeout."""
    scene.connection["timeout"] = "1s"
    scene.write({"name": "A"})
    scene.server.pause()
    started = time.monotonic()
    ended = jsplan(scene.folder, "plan")
    took = time.monotonic() - started
    scene.server.resume()

    require_clean_exit(ended, 1, "connection main", "cannot be reached: no answer in time")
    assert took < 30


def test_wrong_credentials(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """The error names the connection and what to check, without the password."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.base["connections"]["hub"]["password"] = "wr0ng"
    ended = jsplan(space.write(streams=[{"name": "A", "domain": "hub"}]).folder, "plan")

    require_clean_exit(
        ended, 1, "connection hub", "refused the credentials", "Check user, password"
    )
    assert "wr0ng" not in ended.text


def test_wrong_credentials_of_one_of_two_connections(
    tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """Refused credentials are an error and no offline domain."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.base["connections"]["leaf"] = {
        "url": clean_hub_leaf["leaf"].url,
        "user": "acc",
        "password": "wr0ng",
    }
    space.base["domains"] = {"hub": {"connection": "hub"}, "leaf": {"connection": "leaf"}}
    streams = [{"name": "A", "domain": "hub"}, {"name": "A", "domain": "leaf"}]

    require_clean_exit(
        jsplan(space.write(streams=streams).folder, "plan"),
        1,
        "connection leaf",
        "refused the credentials",
    )


def test_a_server_without_jetstream(make_server: MakeServer, tmp_path: Path) -> None:
    """The error says that JetStream is missing, and not that a domain is offline."""
    space = single_space(tmp_path, make_server(jetstream=False))

    require_clean_exit(
        jsplan(space.write(streams=[{"name": "A"}]).folder, "plan"),
        1,
        "domain main",
        "has no JetStream",
        "Enable jetstream",
    )


def test_an_account_without_jetstream(make_server: MakeServer, tmp_path: Path) -> None:
    """The error says that the account has no JetStream and where to enable it."""
    space = single_space(tmp_path, make_server(extra=TWO_ACCOUNTS))
    space.base["connections"]["main"] |= {"user": "b", "password": "b"}

    require_clean_exit(
        jsplan(space.write(streams=[{"name": "A"}]).folder, "plan"),
        1,
        "domain main",
        "not enabled for this account",
        "Enable jetstream",
    )


def test_a_server_with_another_domain_name(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """The error prints the line to write, with which the plan succeeds."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.base["domains"] = {"center": {"connection": "hub"}}
    streams = [{"name": "A", "domain": "center"}]
    ended = jsplan(space.write(streams=streams).folder, "plan")

    require_clean_exit(
        ended,
        1,
        "domain center",
        "calls its JetStream domain hub",
        "center: {connection: hub, js_domain: hub}",
    )
    space.base["domains"] = {"center": {"connection": "hub", "js_domain": "hub"}}
    require_clean_exit(jsplan(space.write(streams=streams).folder, "plan"), 0, "1 to add")


def test_a_server_without_a_domain(scene: Scene) -> None:
    """The error prints `js_domain: null` as the line to write."""
    scene.space.base["domains"] = {"main": {"connection": "main"}}
    scene.write({"name": "A"})

    require_clean_exit(
        jsplan(scene.folder, "plan"),
        1,
        "without a domain",
        "main: {connection: main, js_domain: null}",
    )


def test_a_server_with_a_domain_where_none_is_expected(
    tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """The error prints the name of the domain as the line to write."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.base["domains"] = {"main": {"connection": "hub", "js_domain": None}}

    require_clean_exit(
        jsplan(space.write(streams=[{"name": "A", "domain": "main"}]).folder, "plan"),
        1,
        "main: {connection: hub, js_domain: hub}",
    )


def test_wrong_settings_of_a_connection(scene: Scene) -> None:
    """Each wrong setting is named, with its file or value."""
    right = dict(scene.connection)
    for connection, words in ROWS["connections"]:
        wanted = right | connection
        if wanted.pop("scheme", None):
            wanted["url"] = scene.server.url.replace("nats://", "tls://")
        if "context" in wanted:
            del wanted["url"]
        scene.space.base["connections"]["main"] = wanted
        scene.write({"name": "A"})
        require_clean_exit(jsplan(scene.folder, "plan"), 1, *words)


def test_a_denied_permission(make_server: MakeServer, tmp_path: Path) -> None:
    """A missing permission is reported at once, with the subject to permit."""
    space = single_space(tmp_path, make_server(extra=NARROW))
    space.base["connections"]["main"] |= {"user": "reader", "password": "reader", "timeout": "60s"}
    started = time.monotonic()
    ended = jsplan(space.write(streams=[{"name": "A"}]).folder, "apply", "-y")

    require_clean_exit(
        ended, 6, "does not permit", "$JS.API.STREAM.CREATE.A", "permission", "connection main"
    )
    assert time.monotonic() - started < 30, "the timeout is a minute"
    space.base["connections"]["main"] |= {"user": "blind", "password": "blind"}
    require_clean_exit(
        jsplan(space.write(streams=[{"name": "A"}]).folder, "plan"),
        1,
        "does not permit",
        "$JS.API.INFO",
        "connection main",
    )


# --- files ---------------------------------------------------------------------------------------------------


def test_broken_files(tmp_path: Path) -> None:
    """Each broken file is reported with file, line and mistake."""
    for text, words in ROWS["files"]:
        (tmp_path / "jsplan.yaml").write_text(text, "utf-8")
        require_clean_exit(jsplan(tmp_path, "validate"), 1, *words)


def test_no_workspace(tmp_path: Path) -> None:
    """Without a jsplan.yaml, the error names `jsplan init`."""
    require_clean_exit(jsplan(tmp_path, "plan"), 1, "jsplan.yaml", "jsplan init")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are an error without a traceback."""
    (tmp_path / "jsplan.yaml").write_bytes(b"jsplan: 1\nworkspace: \xff\xfe\n")
    require_clean_exit(jsplan(tmp_path, "plan"), 1, "jsplan.yaml")


# --- saved plans ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plan: plan | {"format_version": "2.0"}, ["format 2.0", "reads 1.x"]),
        (lambda plan: plan | {"steps": []}, ["changed after it was planned", "Plan again"]),
        (lambda plan: plan | {"kind": "drift"}, ["not a jsplan plan"]),
        (lambda _: {"kind": "plan", "format_version": "1.0"}, ["p"]),
    ],
    ids=["newer", "edited", "kind", "hollow"],
)
def test_files_that_are_no_valid_plan(
    scene: Scene, change: Callable[[dict[str, Any]], dict[str, Any]], words: list[str]
) -> None:
    """A plan of a newer format, an edited plan and another document are refused."""
    scene.write({"name": "A"})
    assert jsplan(scene.folder, "plan", "-o", "p").code == 0
    path = scene.folder / "p"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))

    require_clean_exit(jsplan(scene.folder, "apply", "p"), 1, *words)
    require_clean_exit(jsplan(scene.folder, "show", "p"), 1, *words)


def test_a_plan_that_is_cut_or_missing(scene: Scene) -> None:
    """Half a plan and a missing plan are errors that name the file."""
    scene.write({"name": "A"})
    jsplan(scene.folder, "plan", "-o", "p")
    data = (scene.folder / "p").read_bytes()
    (scene.folder / "p").write_bytes(data[: len(data) // 2])

    require_clean_exit(jsplan(scene.folder, "apply", "p"), 1, "p is not a plan file")
    require_clean_exit(jsplan(scene.folder, "apply", "nowhere"), 1, "nowhere", "No such file")


def test_a_plan_of_another_workspace(scene: Scene) -> None:
    """A plan is applied only in its own workspace and environment."""
    scene.write({"name": "A"})
    jsplan(scene.folder, "plan", "-o", "p")
    scene.write({"name": "A"}, workspace="other")

    require_clean_exit(jsplan(scene.folder, "apply", "p"), 64, "workspace test")


def test_a_plan_with_other_options(scene: Scene) -> None:
    """Options that shape a plan are refused together with a saved plan."""
    scene.write({"name": "A"})
    jsplan(scene.folder, "plan", "-o", "p")

    require_clean_exit(jsplan(scene.folder, "apply", "p", "--target", "main/**"), 64, "--target")


# --- state ---------------------------------------------------------------------------------------------------


def test_a_state_that_is_cut(scene: Scene) -> None:
    """A damaged state is an error for each command, and the file stays unchanged."""
    scene.write({"name": "A"})
    assert jsplan(scene.folder, "apply", "-y").code == 0
    path = scene.folder / "state" / "test.json"
    half = path.read_bytes()[:200]
    path.write_bytes(half)

    for args in (
        ["plan"],
        ["apply", "-y"],
        ["drift"],
        ["destroy", "-y"],
        ["state", "list"],
        ["show", "--state"],
    ):
        require_clean_exit(
            jsplan(scene.folder, *args), 1, "test.json is damaged", "state push --force"
        )
    assert path.read_bytes() == half


def test_a_journal_that_is_damaged(scene: Scene) -> None:
    """Only the last line of a journal may be incomplete; another damaged line is an error."""
    scene.write({"name": "A"})
    assert jsplan(scene.folder, "apply", "-y").code == 0
    journal = scene.folder / "state" / "test.json.journal"
    session = b'{"session": {"lineage": "x", "serial": 9}}\n'
    journal.write_bytes(session + b'{"put": {"addr\n{"end": "main/stream/A"}\n')
    require_clean_exit(jsplan(scene.folder, "plan"), 1, "test.json.journal:2 is damaged")
    journal.write_bytes(
        session + b'{"put": {"address": "main/stream/A", "entry": {}}}\n{"end": "x"}\n'
    )
    require_clean_exit(jsplan(scene.folder, "plan"), 1, "test.json.journal:2 is damaged")
    journal.write_bytes(session + b'{"session": 5}\n[1]\n')
    require_clean_exit(jsplan(scene.folder, "plan"), 1, "test.json.journal:2 is damaged")
    journal.write_bytes(session + b'{"put": {"addr')
    require_clean_exit(jsplan(scene.folder, "plan"), 0)


@pytest.mark.parametrize("blocked", ["", ".lock", ".lock.info", ".journal"])
def test_a_state_that_may_not_be_written(scene: Scene, blocked: str) -> None:
    """A file of the state that cannot be written is an error before the first write to a server."""
    (scene.folder / "state" / f"test.json{blocked}").mkdir(parents=True)
    scene.write({"name": "A"})

    require_clean_exit(
        jsplan(scene.folder, "apply", "-y"),
        1,
        f"test.json{blocked}",
        "Move it, or name another place",
    )
    with Raw(scene.server.url) as raw:
        assert streams(raw) == []


def test_a_state_without_a_folder(scene: Scene) -> None:
    """A folder that cannot be created is an error before the first write to a server."""
    (scene.folder / "blocked").write_text("a file, not a folder")
    scene.write({"name": "A"}, backend={"local": {"path": "blocked/state.json"}})
    require_clean_exit(jsplan(scene.folder, "apply", "-y"), 1, "blocked")


def test_a_full_disk(scene: Scene) -> None:
    """When state cannot be written, no more steps begin, and the next apply adopts the rest."""
    scene.write(*({"name": f"S{number}", "description": "x" * 500} for number in range(40)))
    small = 20_000

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (small, small))

    require_clean_exit(
        run_process(scene.folder, "apply", "-y", preexec_fn=limit), 6, "test.json", "File too large"
    )
    small = 10
    require_clean_exit(
        run_process(scene.folder, "apply", "-y", preexec_fn=limit),
        1,
        "test.json.lock.info",
        "File too large",
        "Free space on the disk.",
    )
    require_clean_exit(jsplan(scene.folder, "apply", "-y"), 0)
    require_clean_exit(jsplan(scene.folder, "plan", "--detailed-exitcode"), 0, "No changes")
    assert len(jsplan(scene.folder, "state", "list").out.split()) == 40


# --- the rest ------------------------------------------------------------------------------------------------


def test_closed_streams(scene: Scene) -> None:
    """Without stdin apply needs --auto-approve; without stdout or stderr there is no traceback."""
    scene.write({"name": "A"})

    require_clean_exit(
        run_process(scene.folder, "apply", stdin=None, preexec_fn=lambda: os.close(0)),
        1,
        "--auto-approve",
    )
    assert (
        run_process(
            scene.folder, "plan", "--detailed-exitcode", preexec_fn=lambda: os.close(1)
        ).code
        == 2
    )
    assert (
        run_process(
            scene.folder, "plan", "--detailed-exitcode", preexec_fn=lambda: os.close(2)
        ).code
        == 2
    )


def test_longest_and_unusual_names(scene: Scene) -> None:
    """The longest names and names in any script work from plan to destroy."""
    longest, script, strange = "L" * 255, "Bestellungen-日本-ü-🐇", "a$b=c%d~{x}"
    streams = [
        {"name": name, "subjects": [f"s{i}"], "consumers": [{"name": name}]}
        for i, name in enumerate((longest, script, strange))
    ]
    scene.write(*streams)
    require_clean_exit(jsplan(scene.folder, "apply", "-y"), 0, "6 added")
    require_clean_exit(jsplan(scene.folder, "plan", "--detailed-exitcode"), 0, "No changes")
    require_clean_exit(
        jsplan(scene.folder, "destroy", "-y", "--allow-hazard", "DELETES_STREAM"), 0, "6 destroyed"
    )
    scene.write({"name": "L" * 256})
    require_clean_exit(jsplan(scene.folder, "validate"), 1, "jsplan.yaml:1", "255")


def test_nothing_to_import_is_reported(scene: Scene) -> None:
    """Import reports when all declared resources are managed or missing."""
    scene.write({"name": "A"})
    texts = (
        "nothing is on the server that is not managed already",
        "declare it first",
        "jsplan apply",
    )
    for _ in range(2):
        require_clean_exit(
            jsplan(scene.folder, "import", "--all", "--domain", "main", "-y"),
            0,
            "Nothing to import in main: ",
            *texts,
        )
        require_clean_exit(
            jsplan(scene.folder, "import", "--all", "-y"), 0, "Nothing to import: ", *texts
        )
        ended = jsplan(scene.folder, "import", "main/stream/A*", "-y")
        require_clean_exit(ended, 0, "Nothing to import under main/stream/A*: ", *texts)
        assert "match the configuration" not in ended.text
        require_clean_exit(jsplan(scene.folder, "apply", "-y"), 0)
    require_clean_exit(
        jsplan(scene.folder, "plan", "--target", "main/**"),
        0,
        "No changes. Your streams match the configuration.",
    )


def test_an_empty_wave_is_wrong_usage_without_changes(scene: Scene) -> None:
    """A wave without a domain is wrong usage, even if nothing changes."""
    scene.write({"name": "A"})
    require_clean_exit(jsplan(scene.folder, "apply", "-y", "--wave", "ma*"), 0, "1 added")
    require_clean_exit(jsplan(scene.folder, "apply", "-y", "--wave", "ma*"), 0, "No changes")
    require_clean_exit(
        jsplan(scene.folder, "apply", "-y", "--wave", "bogus"), 64, "--wave bogus names no domain"
    )


def test_wrong_arguments(scene: Scene) -> None:
    """An argument that names nothing, or is invalid, is quoted in the message."""
    scene.write({"name": "A"})
    for line, code, words in ROWS["arguments"]:
        require_clean_exit(jsplan(scene.folder, *shlex.split(line)), code, *words)
