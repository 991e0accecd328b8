"""Answers that are JSON but not JetStream's: each command refuses them with a message."""

from __future__ import annotations

import itertools
import json
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.cli.main import main
from jsplan.jetstream import api as api_module
from jsplan.jetstream.answer_schema import MAX_CONFIG_DEPTH
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.contexts import ConnectionSettings
from tests.support.buckets import new_bucket
from tests.support.fake_api import DOMAIN, FakeApi, unchanged_answer
from tests.support.raw import Raw, delete_all_streams
from tests.support.wrong_values import WRONG, JsonPath, nested_lists, paths, replace_at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.sandbox import Server

BODIES: list[dict[str, Any]] = [
    {"name": "A", "subjects": ["a.>"], "consumers": [{"name": "C", "ack_policy": "explicit"}]},
    {"name": "S", "sources": [{"name": "A", "filter_subject": "a.b"}], "metadata": {"k": "v"}},
]
CHANGED = [body | {"max_msgs": 2} for body in BODIES]
COMMANDS = {
    "plan": ["plan"], "status": ["status"], "drift": ["drift"], "apply": ["apply", "-y", "--allow-hazard", "DELETES_MESSAGES"],
    "state": ["state", "list"], "import": ["import", "-y", f"{DOMAIN}/**", "--generate-config", "{folder}/found.jsplan.yaml"],
    "discover": ["domains", "discover"],
}  # fmt: skip
#: Changed answers that are tried of each command.
SAMPLE = {
    "plan": 30,
    "status": 30,
    "drift": 20,
    "apply": 15,
    "state": 30,
    "import": 8,
    "discover": 8,
}


class Scene:
    """A workspace whose domain and state are behind an impostor of a server."""

    def __init__(self, folder: Path, impostor: FakeApi, server: Server) -> None:
        self.folder, self.impostor, self.server = folder, impostor, server
        self.document: dict[str, Any] = {
            "jsplan": 1,
            "workspace": "shop",
            "connections": {"main": {"url": server.url, "timeout": "5s"}},
            "domains": {DOMAIN: {"connection": "main"}},
            "defaults": {"domain": DOMAIN},
        }

    def begin(self) -> None:
        """Apply once, add unmanaged streams, and change the files."""
        (self.folder / "found.jsplan.yaml").unlink(missing_ok=True)
        with Raw(self.server.url) as raw:
            delete_all_streams(raw)
        self.document["backend"] = {
            "kv": {"bucket": new_bucket(), "domain": DOMAIN, "lock_ttl": "1m"}
        }
        self.write(BODIES)
        assert main(["-C", str(self.folder), "apply", "-y"]) == 0
        with Raw(self.server.url) as raw:
            raw.create("OTHER", subjects=["other"])
            for _ in range(5):
                raw.api_ok("a.b", b"x")
        self.write(CHANGED)

    def write(self, bodies: list[dict[str, Any]]) -> None:
        """Write the file."""
        (self.folder / "jsplan.yaml").write_text(json.dumps(self.document | {"streams": bodies}))

    def run(self, command: str) -> int:
        """Run a command as the command line does."""
        (self.folder / "found.jsplan.yaml").unlink(missing_ok=True)
        return main(
            [
                "-C",
                str(self.folder),
                *(word.format(folder=self.folder) for word in COMMANDS[command]),
            ]
        )


@pytest.fixture
def scene(tmp_path: Path, server: Server) -> Iterator[Scene]:
    """Set up a scene whose impostor changes nothing yet."""
    with FakeApi(server) as impostor:
        made = Scene(tmp_path, impostor, server)
        made.begin()
        impostor.seen.clear()
        yield made


def change_answer(api: str, path: JsonPath, value: Any, asked: str, answer: Any) -> Any:
    """Change one place of the answer to one request."""
    return replace_at(answer, path, value) if asked == api else answer


def check(
    scene: Scene,
    command: str,
    choice: list[tuple[str, JsonPath, Any]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Run the command with each of the changed answers: it ends with its own code and a message."""
    for api, path, value in choice:
        if command in ("apply", "import"):
            scene.impostor.change_answer = unchanged_answer
            scene.begin()
        scene.impostor.change_answer = partial(change_answer, api, path, value)
        code = scene.run(command)
        shown = "".join(capfd.readouterr())

        assert "bug in jsplan" not in shown, (api, path, value, shown)
        assert "Traceback" not in shown, (api, path, value, shown)
        assert code in (0, 1, 2, 3, 4, 5, 6), (api, path, value, shown)


def wrong_answers(scene: Scene, command: str) -> list[tuple[str, JsonPath, Any]]:
    """Return each place in each answer that the command reads, with each wrong value."""
    scene.run(command)
    return [
        (api, path, value)
        for api, answer in sorted(scene.impostor.seen.items())
        for path in paths(answer)
        for value in WRONG
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_some_answers_of_the_wrong_shape(
    scene: Scene, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A sample of wrong values in real answers ends with a message."""
    found = wrong_answers(scene, command)
    check(
        scene,
        command,
        random.Random(command).sample(found, min(SAMPLE[command], len(found))),
        capfd,
    )


def newer_document(value: Any, *, nested: bool = True) -> Any:
    """Return a document of a newer server, with unknown fields and unknown words for its fields."""
    if isinstance(value, list):
        return [newer_document(each, nested=nested) for each in value] if nested else value
    if not isinstance(value, dict):
        return value
    words = {name: "brand-new" for name in ("persist_mode", "priority_policy") if name in value}
    kept = ("metadata", "limits", "subjects")
    more = {
        name: each if name in kept or not nested else newer_document(each, nested=name != "config")
        for name, each in value.items()
    }
    return more | {"brand_new": {"a": [1, None]}} | words


@pytest.mark.parametrize("command", ["plan", "status", "drift", "state", "import"])
def test_a_newer_server(scene: Scene, command: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Unknown fields, and unknown words for known fields, are no reason to refuse an answer."""
    truth = scene.run(command)
    scene.begin()
    scene.impostor.change_answer = lambda _, answer: newer_document(answer)
    said = scene.run(command)

    shown = "".join(capfd.readouterr())
    assert "JetStream's" not in shown
    assert said == truth, shown


#: What servers send of every stream.
SENT = {"retention": "limits", "storage": "file", "num_replicas": 1}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"error": "x"}, "error is 'x', expected an object"),
        ({"error": {"code": "x"}}, "error.code is 'x', expected a whole number"),
        ([1], "something that is not JSON"),
        (b'{"a": NaN}', "something that is not JSON"),
        (b"[" * 100_000, "something that is not JSON"),
        ({"error": None}, "config is missing, expected a value"),
        ({"config": None}, "config is missing, expected a value"),
        ({"config": {"name": "EVIL"}}, "config.retention is missing, expected a value"),
        ({"config": {"name": "EVIL"} | SENT}, "created is missing, expected a value"),
    ],
)
def test_an_invalid_answer(
    scene: Scene, answer: Any, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """An answer that is none is an error with domain and request, and nothing is planned."""
    scene.impostor.change_answer = lambda api, real: answer if api == "STREAM.INFO.A" else real

    assert scene.run("plan") == 1
    shown = " ".join("".join(capfd.readouterr()).split())
    assert f"domain {DOMAIN} answered STREAM.INFO.A with" in shown
    assert words in shown


@pytest.mark.parametrize(
    "more", [{"config": 5}, {"config": {"name": "A"}}, {"storage": "brand-new"}], ids=str
)
def test_a_newer_configuration(
    scene: Scene, more: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """A newer configuration with another `config` field or kind of storage is no bug."""
    scene.impostor.change_answer = lambda api, real: (
        real | {"config": real["config"] | more} if api == "STREAM.INFO.A" else real
    )

    code = scene.run("plan")
    shown = "".join(capfd.readouterr())
    assert "bug in jsplan" not in shown
    assert code == (0 if "config" in more else code), shown


@pytest.mark.parametrize("levels", [MAX_CONFIG_DEPTH - 1, MAX_CONFIG_DEPTH])
def test_a_deep_field(scene: Scene, levels: int, capfd: pytest.CaptureFixture[str]) -> None:
    """An unknown field is refused if it is too deep, and every other can be read again."""
    place = ("config", "newer")
    scene.impostor.change_answer = lambda api, real: (
        replace_at(real, place, nested_lists(levels - 1)) if api == "STREAM.INFO.OTHER" else real
    )

    is_too_deep = levels == MAX_CONFIG_DEPTH
    assert scene.run("import") == int(is_too_deep)
    shown = " ".join("".join(capfd.readouterr()).split())
    assert ("config is '…', expected at most 32 levels" in shown) == is_too_deep
    assert scene.run("state") == 0


def test_an_invalid_time(scene: Scene, capfd: pytest.CaptureFixture[str]) -> None:
    """An answer with an invalid time is an error in words."""
    scene.impostor.change_answer = lambda api, real: (
        real | {"ts": "x"} if api == "STREAM.INFO.A" else real
    )

    assert scene.run("plan") == 1
    assert "ts is 'x', expected" in " ".join("".join(capfd.readouterr()).split())


def test_an_answer_about_another_stream(scene: Scene, capfd: pytest.CaptureFixture[str]) -> None:
    """An answer about another stream is not taken for the requested one."""
    scene.impostor.change_answer = lambda api, real: (
        replace_at(real, ("config", "name"), "EVIL") if api == "STREAM.INFO.A" else real
    )

    assert scene.run("plan") == 1
    assert "config.name is 'EVIL', expected 'A'" in " ".join("".join(capfd.readouterr()).split())


@pytest.mark.parametrize("command", ["status", "drift", "state"])
@pytest.mark.parametrize("moving", [False, True], ids=["same", "moving"])
def test_lists_without_an_end(
    scene: Scene,
    command: str,
    moving: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A list that claims a thousand million elements ends.

    It ends with the first page without a new element, or after the most pages.
    """
    monkeypatch.setattr(api_module, "MAX_PAGES", 20)
    count, pages = itertools.count(), dict[str, Any]()

    def endless(api: str, real: Any) -> Any:
        if not api.startswith(("STREAM.NAMES", "STREAM.LIST", "CONSUMER.LIST", "STREAM.INFO.KV")):
            return real
        page = pages.setdefault(api, real) | {"total": 10**9}  # the first page again and again
        if moving and page.get("streams"):
            name = f"MOVING{next(count)}"
            page["streams"] = [
                name if isinstance(each, str) else replace_at(each, ("config", "name"), name)
                for each in page["streams"][:1]
            ]
        return page

    scene.impostor.change_answer = endless
    code = scene.run(command)
    shown = " ".join("".join(capfd.readouterr()).split())
    assert "bug in jsplan" not in shown
    assert code == (1 if moving and command == "drift" else code)
    assert ("more than 20 pages" in shown) == (moving and command != "state")


@pytest.mark.parametrize("name", ["retention", "storage", "num_replicas"])
def test_a_stream_without_a_field_that_servers_always_send(
    scene: Scene, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A field that jsplan relies on must be there: a message says which one is not."""
    scene.run("plan")
    scene.impostor.change_answer = partial(change_answer, "STREAM.INFO.A", ("config", name), None)
    assert scene.run("plan") == 1
    assert f"config.{name} is missing" in " ".join("".join(capfd.readouterr()).split())


def test_a_source_without_a_name(scene: Scene, capfd: pytest.CaptureFixture[str]) -> None:
    """No server accepts such a source, so the answer is not a server's."""
    scene.run("plan")
    place = ("config", "sources", 0, "name")
    scene.impostor.change_answer = partial(change_answer, "STREAM.INFO.S", place, "")
    assert scene.run("drift") == 1
    shown = " ".join("".join(capfd.readouterr()).split())
    assert "config.sources[0].name is '', expected a name" in shown


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("command", COMMANDS)
def test_many_answers_of_the_wrong_shape(
    scene: Scene, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A larger sample of wrong values ends with a message."""
    found = wrong_answers(scene, command)
    check(scene, command, random.Random(1).sample(found, min(1_500, len(found))), capfd)


async def test_a_greeting_of_other_types_counts_as_missing(server: Server) -> None:
    """A value of a server's greeting that has another type counts as missing."""
    link = NatsConnection(ConnectionSettings(key="main", url=server.url, shown="it"))
    await link.open()
    try:
        said = {"domain": {}, "version": 5, "max_payload": "1", "server_name": "\ud800x"}
        link._client._server_info |= said  # noqa: SLF001 - only a broken server says so
        assert {"domain", "version", "max_payload"}.isdisjoint(link.server)
        assert link.server["server_id"]
        assert link.server["server_name"] == "?x"
    finally:
        await link.close()
