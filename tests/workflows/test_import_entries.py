"""Import of entries of KV buckets: declared ones, and into a generated file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.process import jsplan
from tests.support.raw import Raw
from tests.support.state import read_state
from tests.support.workspaces import Space, hub_leaf_space, left_to_do

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.sandbox import Sandbox

pytestmark = pytest.mark.matrix


@pytest.fixture
def space(tmp_path: Path, clean_hub_leaf: Sandbox) -> Space:
    """A workspace of hub and leaf without a resource."""
    return hub_leaf_space(tmp_path, clean_hub_leaf).write()


@pytest.fixture
def raw(clean_hub_leaf: Sandbox) -> Iterator[Raw]:
    """A client of the hub, with a bucket of an application."""
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as client:
        config = {"name": "KV_CONFIG", "subjects": ["$KV.CONFIG.>"], "max_msgs_per_subject": 1}
        client.api_ok("$JS.hub.API.STREAM.CREATE.KV_CONFIG", config)
        for key, value in (
            ("app.a", b"one"),
            ("app.number", b"007"),
            ("app.json", b'{"x": [1]}'),
            ("app.text", b"two\nlines: #1 ${env.X}\n"),
            ("app.empty", b""),
            ("app.binary", b"\xff\x00"),
            ("app.gone", b"x"),
            ("other", b"x"),
        ):
            client.request(f"$KV.CONFIG.{key}", value)
        client.request("$KV.CONFIG.app.gone", b"", {"KV-Operation": "DEL"})
        yield client


def test_entries_below_a_prefix_are_generated_with_their_bucket(space: Space, raw: Raw) -> None:
    """Text is written unchanged, the rest is named, and the next plan is empty."""
    seq = raw.api("$JS.hub.API.STREAM.INFO.KV_CONFIG")["state"]["last_seq"]
    done = jsplan(
        space.folder, "import", "hub/kv/CONFIG", "hub/kv_entry/CONFIG/app.*",
        "--generate-config", "found.jsplan.yaml", "-y",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "hub/kv_entry/CONFIG/app.binary is not written: its value is no text" in done.text
    assert left_to_do(space.plan()) == []
    names = [a.key for a in read_state(space.folder).resources if a.kind == "kv_entry"]
    assert sorted(names) == ["app.a", "app.empty", "app.json", "app.number", "app.text"]
    assert raw.api("$JS.hub.API.STREAM.INFO.KV_CONFIG")["state"]["last_seq"] == seq


def test_entries_of_equal_buckets_are_generated(space: Space, raw: Raw) -> None:
    """Buckets of two domains with the same keys are one entry of the file; others keep theirs."""
    for domain, bucket, value in (
        ("leaf", "CONFIG", b"one"),
        ("hub", "B", b"1"),
        ("hub", "C", b"1"),
    ):
        config = {
            "name": f"KV_{bucket}",
            "subjects": [f"$KV.{bucket}.>"],
            "max_msgs_per_subject": 1,
        }
        raw.api_ok(f"$JS.{domain}.API.STREAM.CREATE.KV_{bucket}", config)
        raw.request(f"$JS.{domain}.API.$KV.{bucket}.app.a", value)
    globs = ("*/kv/*", "*/kv_entry/*/app.a")
    done = jsplan(space.folder, "import", *globs, "--generate-config", "all.jsplan.yaml", "-y")
    assert done.code == 0, done.err
    found = sorted(str(a) for a in read_state(space.folder).resources if a.kind == "kv_entry")
    assert found == [
        "hub/kv_entry/B/app.a",
        "hub/kv_entry/C/app.a",
        "hub/kv_entry/CONFIG/app.a",
        "leaf/kv_entry/CONFIG/app.a",
    ]
    assert left_to_do(space.plan()) == []


def test_declared_entries_are_imported_by_their_address(space: Space, raw: Raw) -> None:
    """A different value is refused without --adopt, and nothing is written."""
    entries = {"app.a": "one", "other": "mine"}
    space.write(kv=[{"bucket": "CONFIG", "domain": "hub", "entries": entries}])
    assert jsplan(space.folder, "import", "hub/kv/CONFIG", "--adopt", "-y").code == 0
    done = jsplan(space.folder, "import", "hub/kv_entry/CONFIG/app.*", "-y")
    assert done.code == 0, done.err
    assert [str(a) for a in read_state(space.folder).resources] == [
        "hub/kv/CONFIG",
        "hub/kv_entry/CONFIG/app.a",
    ]
    done = jsplan(space.folder, "import", "hub/kv_entry/CONFIG/other", "-y")
    assert done.code == 3
    assert "JS302 of hub/kv_entry/CONFIG/other" in done.text


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("hub/kv_entry/CONFIG/app.*", "Name the bucket too: hub/kv/CONFIG"),
        ("hub/object/ASSETS/*", "only entries of KV buckets"),
    ],
)
def test_what_no_generated_file_can_declare(
    space: Space, raw: Raw, address: str, text: str
) -> None:
    """The command says what to do, and writes no file."""
    assert raw.info
    done = jsplan(space.folder, "import", address, "--generate-config", "new.jsplan.yaml", "-y")
    assert done.code == 64
    assert text in done.text
    assert not (space.folder / "new.jsplan.yaml").exists()
