"""`backfill plan` of entries with `where`, a function or an archive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.cli.main import main
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions
from tests.backfill.backfill_pair import Pair, numbered_rows, without_spark
from tests.backfill.test_preview import preview_document
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Hub and leaf without a stream; an entry copies `S` of the leaf into `T` of the hub."""
    found = Pair.create(tmp_path, clean_hub_leaf)
    (tmp_path / "clean.py").touch()
    return found


@pytest.mark.parametrize(
    ("entry", "before"),
    [
        ({"where": "seq > 5"}, ("where",)),
        ({"transform": "clean.py:run", "where": "seq > 5"}, ("where", "transform")),
        ({"order": "subject", "subject_transform": {"src": "s.>", "dest": "n.>"}}, ()),
    ],
    ids=["where", "both", "subjects"],
)
def test_counts_before_a_filter_are_upper_bounds(
    pair: Pair, capsys: pytest.CaptureFixture[str], entry: dict[str, Any], before: tuple[str, ...]
) -> None:
    """A count before `where` or a function is an upper bound, and others are exact."""
    pair.write_entry(**entry)
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")

    found = preview_document(pair)
    code = main(["-C", str(pair.space.folder), "backfill", "plan", "x"])
    output = capsys.readouterr().out

    assert (found.messages, found.filtered_by, code) == (20, [*before], 0)
    assert ("at most 20 messages pending" in output) == bool(before)
    assert f"Backfill: {'at most ' if before else ''}20 messages to copy." in output
    note = f"counted before {' and '.join(f'`{name}`' for name in before)}: what that leaves out Spark finds when it copies"
    assert (note in output) == bool(before)


def test_preview_of_an_archive(pair: Pair) -> None:
    """Pending messages of an archive are found by comparison, without a request to the origin."""
    out = {"name": "out", "from": {"domain": "leaf", "stream": "S"}, "to": {"parquet": "archive"}}
    back = {
        "name": "back",
        "from": {"parquet": "archive"},
        "to": {"domain": "hub", "stream": "T"},
        "order": "none",
    }
    part = {"name": "x", "from": {"domain": "leaf", "stream": "S", "end_seq": 8}, "to": back["to"]}
    pair.space.write(backfills=[out, back, part])
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    with without_spark():
        for name in ("out", "x"):
            backfill.run(pair.space.load, BackfillOptions(name=name), RecordingObserver())
    pair.ask("leaf", "STREAM.DELETE.S")

    found = preview_document(pair, name="back")

    origin = found.origins[0]
    assert (
        origin.messages,
        origin.in_target,
        origin.measured,
        found.filtered_by,
        found.strategy,
    ) == (
        12,
        8,
        "compared",
        [],
        "spark",
    )
