"""`jsplan compare --master`: what Spark finds equals what one process finds."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import asdict

from jsplan.backfill.spark import compare as on_spark
from jsplan.errors import RefusedError
from jsplan.workflows.compare import CompareOptions, compare
from tests.comparing.test_compare import A, M
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, Space, hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.comparison import Comparison
    from jsplan.sandbox import Sandbox

S: dict[str, Any] = {
    "name": "S",
    "domain": "leaf",
    "subjects": ["s.>"],
    "sources": [
        {
            "name": "A",
            "domain": "hub",
            "subject_transforms": [{"src": "a.1", "dest": "a.1"}, {"src": "a.2", "dest": "a.2"}],
        }
    ],
}

ALL_OF_A = [{"name": "A", "domain": "hub"}]


def compare_with(space: Space, copy: str, master: str | None, **options: Any) -> Comparison:
    """Compare the origin with a copy, in this process or on Spark."""
    found = CompareOptions("hub/stream/A", f"leaf/stream/{copy}", master=master, **options)
    return compare(space.load, found, RecordingObserver())


def what_it_says(found: Comparison) -> dict[str, Any]:
    """Return the document without its times."""
    return {k: v for k, v in asdict(found).items() if k not in {"timestamp", "seconds", "since"}}


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("copy", ["S", "M"])
def test_spark_finds_what_one_process_finds(
    copy: str, seed: int, clean_hub_leaf: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random losses on both sides, doubled and changed messages, in tasks of a few sequences."""
    monkeypatch.setattr(on_spark, "TASK_SEQUENCES", 17)
    chance = random.Random(seed)
    hub, leaf = clean_hub_leaf["hub"], clean_hub_leaf["leaf"]
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=[A, M, S])
    space.apply()
    with Raw(hub.url, hub.user, hub.password) as raw:
        for number in range(100):
            headers = {"N": str(number)} if number % 3 == 0 else None
            raw.request(f"a.{number % 5}", b"%d" % number, headers)
    assert compare_with(space, copy, "local[2]", out=tmp_path / "kept.json").parts == []
    for server, domain, stream in ((hub, "hub", "A"), (leaf, "leaf", copy)):
        with Raw(server.url, server.user, server.password) as raw:
            begin = chance.randint(1, 50)
            last = raw.state(stream, domain)["last_seq"]
            gone = {*range(begin, begin + 5), *chance.sample(range(1, last + 1), 10)}
            for seq in sorted(gone & {*range(1, last + 1)}):
                raw.api_ok(f"$JS.{domain}.API.STREAM.MSG.DELETE.{stream}", {"seq": seq})
    with Raw(leaf.url, leaf.user, leaf.password) as raw:
        for seq in [*chance.sample(range(1, 101), 8), 400, 401]:
            tag = f"hub/A/{seq}/2026-01-01T00:00:00Z"
            raw.request("s.1", b"%d" % (seq - 1), {"Jsplan-Origin": tag})

    for options in ({}, {"first_seq": 20, "last_seq": 70}, {"since": tmp_path / "kept.json"}):
        alone = compare_with(space, copy, None, **options)
        assert alone.exit_code == 2
        assert what_it_says(compare_with(space, copy, "local[2]", **options)) == what_it_says(alone)


@pytest.mark.usefixtures("spark")
def test_more_ranges_than_are_kept(
    clean_hub_leaf: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences beyond the most ranges are counted."""
    monkeypatch.setattr(on_spark, "MAX_RANGES", 3)
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=[A, S | {"sources": ALL_OF_A}])
    space.apply()
    hub, leaf = clean_hub_leaf["hub"], clean_hub_leaf["leaf"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        for number in range(20):
            raw.request("a.1", b"%d" % number)
    assert compare_with(space, "S", None).equal == 20
    with Raw(leaf.url, leaf.user, leaf.password) as raw:
        for seq in range(1, 20, 2):
            raw.api_ok("$JS.leaf.API.STREAM.MSG.DELETE.S", {"seq": seq})

    found = compare_with(space, "S", "local[2]")

    assert [(part.kind, part.count, part.ranges) for part in found.parts] == [
        ("missing", 3, [[1, 1], [3, 3], [5, 5]]),
        ("missing", 7, []),
    ]


def test_a_work_queue_is_not_read_by_spark(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """A consumer more would lack what workers finish, or the server refuses it."""
    queue = A | {"retention": "workqueue"}
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.write(streams=[queue, S | {"sources": []}]).apply()
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.request("a.1", b"1")
    with pytest.raises(RefusedError, match="keeps its messages for consumers"):
        compare_with(space, "S", "local[2]")
