"""Strategy native: the server copies by a temporary source, and the result is compared."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import RefusedError
from tests.backfill.backfill_pair import Pair, numbered_rows
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.backfill import OriginResult
    from jsplan.sandbox import Sandbox

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Hub and leaf without a stream; an entry copies `S` of the leaf into `T` by a source."""
    return Pair.create(tmp_path, clean_hub_leaf, strategy="native", mode="exact")


def require_sourced(pair: Pair, seqs: list[int], others: int = 0) -> None:
    """Require these messages once, in order and unchanged, `others` besides, and nothing left."""
    origin = [one for one in pair.stored("leaf", "S") if one.seq in seqs]
    target = pair.stored("hub", "T")
    copies = [one for one in target if b"Nats-Stream-Source" in one.headers]
    assert [one.without_added_headers for one in copies] == [
        one.without_added_headers for one in origin
    ]
    assert len(target) - len(copies) == others
    config = pair.ask("hub", "STREAM.INFO.T")["config"]
    assert not config.get("sources")
    assert not [key for key in config.get("metadata") or {} if key.startswith("jsplan.")]
    pair.require_nothing_left()


@pytest.mark.matrix
def test_the_server_copies(pair: Pair) -> None:
    """Messages from the start on arrive unchanged, the source is removed, and a rerun is empty."""
    pair.stream(
        "leaf", "S", [(b"s.a", b"NATS/1.0\r\nKind: order\r\n\r\n", b"%d" % n) for n in range(1, 31)]
    )
    pair.stream("hub", "T", [(b"t.a", b"", b"own")])
    pair.delete("leaf", "S", 7, 30)
    pair.write_entry(origin={"start_seq": 5}, strategy="native", mode="exact")

    found = pair.run()

    assert (found.copied, found.verified, found.gaps, found.gap_messages) == (
        24,
        True,
        [[7, 7], [30, 30]],
        2,
    )
    assert (found.path, found.bytes > 0) == ("a source of the server", True)
    require_sourced(pair, list(range(5, 31)), others=1)
    again: OriginResult = pair.run()
    assert (again.copied, again.gaps) == (0, [[7, 7], [30, 30]])
    require_sourced(pair, list(range(5, 31)), others=1)


def test_a_filter_of_a_source(pair: Pair) -> None:
    """A filter is given to the source, and what it leaves out is no gap."""
    pair.stream("leaf", "S", [(b"s.a" if n % 3 else b"s.b", b"", b"%d" % n) for n in range(1, 31)])
    pair.stream("hub", "T")
    pair.write_entry(origin={"filter_subjects": ["s.b"]}, strategy="native", mode="exact")

    found = pair.run()

    assert (found.copied, found.gaps) == (10, [])
    require_sourced(pair, list(range(3, 31, 3)))


@pytest.mark.matrix
def test_dying_before_any_write(pair: Pair) -> None:
    """A run that dies before any write is completed by the next, once and in order."""
    pair.stream("leaf", "S", numbered_rows(20))
    for after in range(5):  # begun, the record, the source, detached, the record
        pair.stream("hub", "T", [(b"t.a", b"", b"own")])
        with kill_after(after) as kill, pytest.raises(SimulatedKill):
            pair.run()
        assert kill.done == after
        pair.publish("hub", [(b"t.a", b"", b"other")])

        pair.run()

        assert pair.state_record["done_at"]
        assert pair.state_record["origins"][0]["strategy"] == "native"
        require_sourced(pair, list(range(1, 21)), others=2)
        pair.ask("hub", "STREAM.DELETE.T")
        shutil.rmtree(pair.space.folder / "state")


def test_an_interrupted_copy_keeps_its_strategy(pair: Pair) -> None:
    """A copy that was begun by a source is finished by it, although the strategy has changed.

    Its source is no drift.
    """
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    with kill_after(3), pytest.raises(SimulatedKill):
        pair.run()
    pair.sandbox["hub"].wait_until(
        lambda: pair.state("hub", "T")["messages"] == 20, "the source brings everything"
    )
    assert (
        pair.ask("hub", "STREAM.INFO.T")["config"]["metadata"]["jsplan.backfill.source"]
        == "S@$JS.leaf.API"
    )
    pair.write_entry(mode="exact", strategy="spark")

    found = pair.run()

    assert (found.copied, found.path) == (20, "a source of the server")
    require_sourced(pair, list(range(1, 21)))


def test_a_source_of_a_changed_entry_is_removed(pair: Pair) -> None:
    """A source of a changed entry is removed, and its messages are not copied again."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    with kill_after(3), pytest.raises(SimulatedKill):
        pair.run()
    pair.sandbox["hub"].wait_until(
        lambda: pair.state("hub", "T")["messages"] == 20, "the source brings everything"
    )
    pair.write_entry(origin={"end_seq": 10})

    assert pair.run().copied == 0
    require_sourced(pair, list(range(1, 21)))


def test_messages_that_a_source_drops_are_copied_by_spark(pair: Pair) -> None:
    """A message that the server drops as a duplicate is found missing and copied by Spark."""
    pair.stream(
        "leaf",
        "S",
        [(b"s.a", b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % n, b"%d" % n) for n in range(1, 11)],
    )
    pair.stream("hub", "T", [(b"t.a", b"NATS/1.0\r\nNats-Msg-Id: 4\r\n\r\n", b"own")])
    observer = RecordingObserver()

    found = pair.run(observer=observer)

    assert (found.copied, found.verified) == (10, True)
    assert [int(one.data) for one in pair.stored("hub", "T") if one.subject == "s.a"] == [
        1,
        2,
        3,
        5,
        6,
        7,
        8,
        9,
        10,
        4,
    ]
    assert any("did not take 1 message" in warning for warning in observer.texts)
    pair.require_nothing_left()


def test_a_dropped_last_message_is_not_waited_for(pair: Pair) -> None:
    """A source without lag is not waited for long when its last message was dropped."""
    pair.stream(
        "leaf",
        "S",
        [(b"s.a", b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % n, b"%d" % n) for n in range(1, 4)],
    )
    pair.stream("hub", "T", [(b"t.a", b"NATS/1.0\r\nNats-Msg-Id: 3\r\n\r\n", b"own")])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jsplan.backfill.native_copy.CAUGHT_UP_TIMEOUT", 0.5)
        assert pair.run().copied == 3

    assert [int(one.data) for one in pair.stored("hub", "T") if one.subject == "s.a"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("entry", "target", "words"),
    [
        ({"mode": "tagged"}, {}, "keeps no Jsplan-Origin"),
        ({"origin": {"end_seq": 5}}, {}, "the range has an end"),
        ({"rate": "1MB/s"}, {}, "only Spark knows `rate`"),
        ({"origin": {"filter_subjects": ["s.a", "s.b"]}}, {}, "a source has one filter"),
        (
            {},
            {"sources": [{"name": "S", "external": {"api": "$JS.leaf.API"}, "opt_start_seq": 9}]},
            "brings some of that stream already",
        ),
        ({}, {"allow_rollup_hdrs": True}, "delete by rollup"),
        ({"strategy": "snapshot"}, {}, "the target exists already"),
    ],
)
def test_what_a_source_cannot_do_is_refused(
    pair: Pair, entry: dict[str, Any], target: dict[str, Any], words: str
) -> None:
    """An entry that a source cannot copy is refused with the reason, before any write."""
    pair.stream("leaf", "S", numbered_rows(5))
    pair.stream("hub", "T", **target)
    pair.write_entry(**({"mode": "exact", "strategy": "native"} | entry))

    with pytest.raises(RefusedError, match=words):
        pair.run()

    assert pair.state("hub", "T")["messages"] == 0
    assert (
        json.loads((pair.space.folder / "state" / "test.json").read_text("utf-8"))["backfills"]
        == {}
    )


def test_auto_uses_a_source_for_an_existing_target(pair: Pair) -> None:
    """With mode `exact` and an existing target, `auto` uses a source of the server."""
    pair.stream("leaf", "S", numbered_rows(5))
    pair.stream("hub", "T")
    pair.write_entry(mode="exact")

    assert pair.run().path == "a source of the server"
    assert pair.state_record["origins"][0]["strategy"] == "native"


def test_auto_uses_spark_for_a_range_with_an_end(pair: Pair) -> None:
    """A range with an end is copied by Spark, also with mode `exact`."""
    pair.stream("leaf", "S", numbered_rows(5))
    pair.stream("hub", "T")
    pair.write_entry(mode="exact", origin={"end_seq": 3})

    assert pair.run().path == "spark, via a staging stream"
    pair.require_copied(seqs=range(1, 4))
