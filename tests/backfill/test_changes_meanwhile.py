"""Changes that other clients make while a copy runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.errors import JsplanError
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions
from tests.backfill.backfill_pair import Pair, numbered_rows
from tests.backfill.thread_runner import run_then, use_runner
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jsplan.documents.backfill import OriginResult
    from jsplan.sandbox import Sandbox


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Hub and leaf; an entry copies 20 messages in `S` of the leaf into `T` of the hub."""
    pair = Pair.create(tmp_path, clean_hub_leaf)
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T", [(b"t.own", b"", b"0")])
    return pair


def run_with(pair: Pair, action: Callable[[], None]) -> OriginResult:
    """Run the entry without Spark, with an action when everything is written."""
    with use_runner(run_then(action)):
        return backfill.run(
            pair.space.load, BackfillOptions(name="x"), RecordingObserver()
        ).origins[0]


def recreate(pair: Pair, domain: str, name: str) -> None:
    """Delete a stream and create another one of its name, with other messages."""
    pair.ask(domain, f"STREAM.DELETE.{name}")
    pair.stream(domain, name, numbered_rows(3, first=101, subject=name.lower().encode() + b".x"))


@pytest.mark.matrix
@pytest.mark.parametrize(("domain", "name"), [("leaf", "S"), ("hub", "T")])
def test_a_stream_that_is_recreated(pair: Pair, domain: str, name: str) -> None:
    """Nothing is promoted if one side is another stream by then, and the next run starts again."""
    message = rf"{domain}/stream/{name} was recreated .* Its sequences no longer match"
    with pytest.raises(JsplanError, match=message):
        run_with(pair, lambda: recreate(pair, domain, name))

    assert len(pair.stored("hub", "T")) == (1 if name == "S" else 3)
    pair.require_nothing_left()
    assert pair.run(reset_range=True).copied == (3 if name == "S" else 20)
    pair.require_copied(others=1 if name == "S" else 3)


def test_an_archived_stream_that_is_recreated(pair: Pair) -> None:
    """Nothing is committed to an archive if the origin is another stream by then."""
    entry = {"name": "x", "from": {"domain": "leaf", "stream": "S"}, "to": {"parquet": "archive"}}
    pair.space.write(backfills=[entry])
    with pytest.raises(JsplanError, match=r"leaf/stream/S was recreated .* no longer match"):
        run_with(pair, lambda: recreate(pair, "leaf", "S"))

    found = pair.run(reset_range=True)

    assert (found.copied, found.gap_messages) == (3, 0)
