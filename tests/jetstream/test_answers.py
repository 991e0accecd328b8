"""Answers that are JSON but not JetStream's: each command refuses them with a message."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.jetstream import api as api_module
from jsplan.jetstream.answer_schema import MAX_CONFIG_DEPTH
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.contexts import ConnectionSettings
from tests.support.buckets import new_bucket
from tests.support.fake_api import DOMAIN, FakeApi
from tests.support.process import ProcessResult, jsplan
from tests.support.raw import Raw, delete_all_streams
from tests.support.wrong_values import JsonPath, nested_lists, replace_at

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
    "plan": ["plan"],
    "status": ["status"],
    "drift": ["drift"],
    "state": ["state", "list"],
    "import": ["import", "-y", f"{DOMAIN}/**", "--generate-config", "{folder}/found.jsplan.yaml"],
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
        assert jsplan(self.folder, "apply", "-y").code == 0
        with Raw(self.server.url) as raw:
            raw.create("OTHER", subjects=["other"])
            for _ in range(5):
                raw.api_ok("a.b", b"x")
        self.write(CHANGED)

    def write(self, bodies: list[dict[str, Any]]) -> None:
        """Write the file."""
        (self.folder / "jsplan.yaml").write_text(json.dumps(self.document | {"streams": bodies}))

    def run(self, command: str) -> ProcessResult:
        """Run a command."""
        (self.folder / "found.jsplan.yaml").unlink(missing_ok=True)
        return jsplan(self.folder, *(word.format(folder=self.folder) for word in COMMANDS[command]))


@pytest.fixture
def scene(tmp_path: Path, server: Server) -> Iterator[Scene]:
    """Set up a scene whose impostor changes nothing yet."""
    with FakeApi(server) as impostor:
        made = Scene(tmp_path, impostor, server)
        made.begin()
        yield made


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
def test_a_newer_server(scene: Scene, command: str) -> None:
    """Unknown fields, and unknown words for known fields, are no reason to refuse an answer."""
    truth = scene.run(command)
    scene.begin()
    scene.impostor.change_answer = lambda _, answer: newer_document(answer)
    said = scene.run(command)

    assert "JetStream's" not in said.text
    assert said.code == truth.code, said.text


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
def test_an_invalid_answer(scene: Scene, answer: Any, words: str) -> None:
    """An answer that is none is an error with domain and request, and nothing is planned."""
    scene.impostor.change_answer = lambda api, real: answer if api == "STREAM.INFO.A" else real

    ended = scene.run("plan")
    assert ended.code == 1
    assert f"domain {DOMAIN} answered STREAM.INFO.A with" in ended.text
    assert words in ended.text


@pytest.mark.parametrize(
    "more", [{"config": 5}, {"config": {"name": "A"}}, {"storage": "brand-new"}], ids=str
)
def test_a_newer_configuration(scene: Scene, more: dict[str, Any]) -> None:
    """A newer configuration with another `config` field or kind of storage is no bug."""
    scene.impostor.change_answer = lambda api, real: (
        real | {"config": real["config"] | more} if api == "STREAM.INFO.A" else real
    )

    ended = scene.run("plan")
    assert "bug in jsplan" not in ended.text
    assert ended.code == (0 if "config" in more else ended.code), ended.text


@pytest.mark.parametrize("levels", [MAX_CONFIG_DEPTH - 1, MAX_CONFIG_DEPTH])
def test_a_deep_field(scene: Scene, levels: int) -> None:
    """An unknown field is refused if it is too deep, and every other can be read again."""
    place = ("config", "newer")
    scene.impostor.change_answer = lambda api, real: (
        replace_at(real, place, nested_lists(levels - 1)) if api == "STREAM.INFO.OTHER" else real
    )

    is_too_deep = levels == MAX_CONFIG_DEPTH
    ended = scene.run("import")
    assert ended.code == int(is_too_deep)
    assert ("config is '…', expected at most 32 levels" in ended.text) == is_too_deep
    assert scene.run("state").code == 0


@pytest.mark.parametrize(
    ("stream", "place", "value", "words"),
    [
        ("A", ("ts",), "x", "ts is 'x', expected"),
        ("A", ("config", "name"), "EVIL", "config.name is 'EVIL', expected 'A'"),
        ("A", ("config", "retention"), None, "config.retention is missing"),
        ("A", ("config", "storage"), None, "config.storage is missing"),
        ("A", ("config", "num_replicas"), None, "config.num_replicas is missing"),
        (
            "S",
            ("config", "sources", 0, "name"),
            "",
            "config.sources[0].name is '', expected a name",
        ),
    ],
    ids=str,
)
def test_a_wrong_value(scene: Scene, stream: str, place: JsonPath, value: Any, words: str) -> None:
    """Another stream, an invalid time or no storage is sent by no server, so it is an error."""
    scene.impostor.change_answer = lambda api, real: (
        replace_at(real, place, value) if api == f"STREAM.INFO.{stream}" else real
    )
    ended = scene.run("plan")

    assert ended.code == 1
    assert words in ended.text


@pytest.mark.parametrize("command", ["status", "drift", "state"])
@pytest.mark.parametrize("moving", [False, True], ids=["same", "moving"])
def test_lists_without_an_end(
    scene: Scene,
    command: str,
    moving: bool,
    monkeypatch: pytest.MonkeyPatch,
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
    ended = scene.run(command)
    assert "bug in jsplan" not in ended.text
    assert ended.code == (1 if moving and command == "drift" else ended.code)
    assert ("more than 20 pages" in ended.text) == (moving and command != "state")


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
