"""strategy native: the server itself copies for a while, what it brought is compared, and however a run ends nothing is left behind."""

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
    """Hub and leaf without a stream, and an entry that copies `S` of the leaf into `T` of the hub by a source."""
    return Pair.create(tmp_path, clean_hub_leaf, strategy="native", mode="exact")


def require_sourced(pair: Pair, seqs: list[int], others: int = 0) -> None:
    """The target has these messages of the origin once, in order, as they were, and `others` besides; nothing is left behind."""
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
    """Everything from the start on arrives as it was, is compared, and the source is gone; run again there is nothing to do."""
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


def test_only_one_filter(pair: Pair) -> None:
    """A filter is the source's own; what it leaves out is no gap."""
    pair.stream("leaf", "S", [(b"s.a" if n % 3 else b"s.b", b"", b"%d" % n) for n in range(1, 31)])
    pair.stream("hub", "T")
    pair.write_entry(origin={"filter_subjects": ["s.b"]}, strategy="native", mode="exact")

    found = pair.run()

    assert (found.copied, found.gaps) == (10, [])
    require_sourced(pair, list(range(3, 31, 3)))


@pytest.mark.matrix
def test_dying_before_any_write(pair: Pair) -> None:
    """However many writes a run came to before it died: the next one leaves every message there once, in order, and nothing of ours."""
    pair.stream("leaf", "S", numbered_rows(20))
    for after in range(5):  # begun, the record, the source, detached, the record
        pair.stream("hub", "T", [(b"t.a", b"", b"own")])
        with kill_after(after) as mortal, pytest.raises(SimulatedKill):
            pair.run()
        assert mortal.done == after
        pair.publish("hub", [(b"t.a", b"", b"other")])

        pair.run()

        assert pair.state_record["done_at"]
        assert pair.state_record["origins"][0]["strategy"] == "native"
        require_sourced(pair, list(range(1, 21)), others=2)
        pair.ask("hub", "STREAM.DELETE.T")
        shutil.rmtree(pair.space.folder / "state")


def test_what_died_is_carried_on_with_the_same_tool(pair: Pair) -> None:
    """The entry's strategy may change meanwhile: a copy that was begun by a source is ended by it. Its source is no drift."""
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


def test_a_source_of_another_text_goes(pair: Pair) -> None:
    """A run died with its source attached, and the entry says something else by now: it goes, what it brought is not brought again."""
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


def test_what_the_target_refuses_of_a_source_is_copied_by_spark(pair: Pair) -> None:
    """A message whose id is in the target's window is dropped by the server in silence: that shows, and Spark brings it."""
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


def test_the_last_message_is_refused(pair: Pair) -> None:
    """Nobody waits long for a message that a source that is not behind never brings."""
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
    """An entry that asks for a tool that cannot do it is told why, and nothing is written."""
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


def test_auto_takes_a_source_where_a_snapshot_is_too_late(pair: Pair) -> None:
    """Sequence and time are wanted, and the target exists: the next best tool is the server's own source."""
    pair.stream("leaf", "S", numbered_rows(5))
    pair.stream("hub", "T")
    pair.write_entry(mode="exact")

    assert pair.run().path == "a source of the server"
    assert pair.state_record["origins"][0]["strategy"] == "native"


def test_auto_takes_spark_where_the_range_has_an_end(pair: Pair) -> None:
    """What only Spark can do it does, also where the server's words were asked for."""
    pair.stream("leaf", "S", numbered_rows(5))
    pair.stream("hub", "T")
    pair.write_entry(mode="exact", origin={"end_seq": 3})

    assert pair.run().path == "spark, via a staging stream"
    pair.require_copied(seqs=range(1, 4))
