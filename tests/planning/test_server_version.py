"""`validate --server-version`: the files against imagined servers of one release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.config.model import LoadOptions
from jsplan.errors import ConfigError
from jsplan.resources.server_features import find_level
from jsplan.sandbox import Sandbox
from jsplan.sandbox.versions import VERSIONS, ensure_version
from jsplan.workflows.validate import validate
from tests.support.process import jsplan
from tests.support.raw import Raw
from tests.support.workspaces import Space

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def space(tmp_path: Path) -> Space:
    """A workspace without servers."""
    base = {
        "jsplan": 1,
        "workspace": "test",
        "connections": {"main": {"url": "nats://127.0.0.1:1"}},
    }
    domains = {"main": {"connection": "main", "js_domain": None}}
    return Space(tmp_path, base | {"domains": domains, "defaults": {"domain": "main"}})


def find(space: Space, version: str, code: str) -> dict[str | None, str]:
    """Return the findings of one code by address."""
    try:
        found = validate(LoadOptions(space.folder), version).diagnostics
    except ConfigError as error:
        found = tuple(error.diagnostics)
    return {d.address: d.summary for d in found if d.code == code}


@pytest.mark.parametrize(
    ("version", "level"),
    [
        *(("2.10", 0), ("2.10.26", 0), ("v2.11.3", 1), ("2.12.4", 2), ("2.12.5", 3)),
        *(("2.13.0", 3), ("2.14", 4), ("2.15.1", 5), ("2.15.99", 5)),
    ],
)
def test_the_level_of_a_release(version: str, level: int) -> None:
    """The level is that of the last release that raised it."""
    assert find_level(version) == level


@pytest.mark.parametrize(
    "version", ["2.9.25", "2.16", "3.0", "2", "", "2.x", "latest", "2.12.8-RC.1"]
)
def test_a_release_without_rules_is_an_error(space: Space, version: str) -> None:
    """There are no guesses about other releases."""
    space.write(streams=[{"name": "A"}])

    assert list(find(space, version, "JS466").values()) == [
        f"jsplan has no rules for nats-server {version}"
    ]


def test_what_every_release_refuses_is_not_listed(space: Space) -> None:
    """Creating a sealed stream is refused everywhere, so it says nothing of 2.12."""
    space.write(
        streams=[{"name": "A", "sealed": True}, {"name": "B", "allow_batched": True}],
        consumers=[{"stream": "ELSEWHERE", "name": "C"}],
    )

    with pytest.raises(ConfigError) as raised:
        validate(LoadOptions(space.folder), "2.12")

    errors = {(d.code, d.address) for d in raised.value.diagnostics if d.severity == "error"}
    assert errors == {("JS413", "main/stream/B")}


def test_what_only_an_old_release_accepts_is_refused_by_the_others(space: Space) -> None:
    """Schedules together with `discard: new` pass on 2.12 only."""
    space.write(streams=[{"name": "A", "allow_msg_schedules": True, "discard": "new"}])

    refused = {v: set(find(space, v, "JS445")) for v in ("2.12", "2.14", "2.15")}

    assert refused == {"2.12": set(), "2.14": {"main/stream/A"}, "2.15": {"main/stream/A"}}


@pytest.mark.download
@pytest.mark.parametrize("version", VERSIONS)
def test_the_duplicate_window_of_sources(space: Space, version: str) -> None:
    """The note about the window of a stream with sources is what a real server does."""
    space.write(
        streams=[
            {"name": "A"},
            {"name": "ALL", "sources": [{"name": "A"}]},
            {"name": "SET", "sources": [{"name": "A"}], "duplicate_window": "1m"},
        ]
    )
    with (
        Sandbox.single(binary=ensure_version(version)) as servers,
        Raw(servers["server"].url) as raw,
    ):
        created = raw.create("ALL", sources=[{"name": "A"}])

    notes = find(space, version, "JS465")

    remembers = created["config"].get("duplicate_window") == 120 * 10**9
    assert notes.keys() == {"main/stream/ALL"}
    assert notes["main/stream/ALL"].endswith("ids for 2m" if remembers else "no message ids")


def test_the_expiry_of_messages_behind_gaps(space: Space) -> None:
    """Only the release that keeps messages longer than `max_age` has a note."""
    body: dict[str, Any] = {"name": "A", "max_age": "1h", "max_msgs_per_subject": 3}
    space.write(streams=[body, {"name": "B", "max_age": "1h"}])

    assert find(space, "2.10", "JS465").keys() == {"main/stream/A"}
    assert find(space, "2.11", "JS465") == {}


def test_the_command(space: Space) -> None:
    """The last line names the release; an error is exit code 1."""
    space.write(streams=[{"name": "A", "allow_atomic": True}])

    old = jsplan(space.folder, "validate", "--server-version", "2.11")
    new = jsplan(space.folder, "validate", "--server-version", "2.12")

    assert (old.code, new.code) == (1, 0)
    assert "allow_atomic needs API level 2 (nats-server 2.12)" in old.text
    assert new.out == "The workspace is valid for nats-server 2.12: 1 resource in 1 domain.\n"
