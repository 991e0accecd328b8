from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.backfill.wire import Wire, read
from jsplan.backfill.wire.reading import Range
from jsplan.errors import JsplanError, RefusedError
from tests.backfill.conftest import target_of
from tests.backfill.copies import Pair, Row, numbered, twice
from tests.backfill.test_reading import EDGES

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

MAX_PAYLOAD = 1 << 20


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Hub and leaf without a stream, and an entry that copies `S` of the leaf into `T` of the hub."""
    return Pair.of(tmp_path, clean_hub_leaf)


def headers(*lines: str) -> bytes:
    """A header block."""
    return "".join(f"{line}\r\n" for line in ("NATS/1.0", *lines, "")).encode()


# --- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_every_byte_arrives(pair: Pair) -> None:
    """Empty and binary payloads, odd headers, legal subjects arrive as they were, in order, behind what the target had."""
    pair.stream("leaf", "S", EDGES)
    pair.stream("hub", "T", [(b"t.own", b"", b"before")])

    found = pair.run()

    assert (found.copied, found.verified, found.gaps) == (len(EDGES), True, [])
    assert pair.require_copied(others=1)[0].seq == 2


@pytest.mark.matrix
def test_a_message_that_just_fits(pair: Pair) -> None:
    """A payload of max_payload minus 256 is copied, and can be read from the other side of the link afterwards."""
    pair.stream("leaf", "S", [(b"s.a", b"", b"x"), (b"s.a", b"", b"y" * (MAX_PAYLOAD - 256)), (b"s.a", b"", b"z")])
    pair.stream("hub", "T")

    pair.run()

    pair.require_copied()
    what = Range("$JS.hub.API", "T", 1, 3)
    found = [row for rows in read(lambda: Wire(target_of(pair.sandbox["leaf"])), what) for row in rows["data"].to_pylist()]
    assert [len(data) for data in found] == [1, MAX_PAYLOAD - 256, 1]


def test_a_message_of_exactly_max_payload_stops_a_copy(pair: Pair) -> None:
    """It is named with its size and what can be done; the target is as it was and nothing is left."""
    pair.stream("leaf", "S", [(b"s.a", b"", b"x"), (b"s.a", b"", b"y" * MAX_PAYLOAD)])
    pair.stream("hub", "T", [(b"t.own", b"", b"before")])
    before = pair.stored("hub", "T")

    with pytest.raises(RefusedError, match=r"message 2 of stream S may have 1,048,\d+ bytes .* takes 1,048,576 at most") as refused:
        pair.run()

    assert "oversize: skip" in str(refused.value.hint)
    assert pair.stored("hub", "T") == before
    pair.require_nothing_left()


def test_messages_that_are_too_large_are_left_out_if_asked(pair: Pair) -> None:
    """`oversize: skip` copies the others, names what it left out, and that is no gap; nor is it tried again."""
    pair.says(oversize="skip")
    pair.stream("leaf", "S", [(b"s.a", b"", b"x"), (b"s.a", b"", b"y" * MAX_PAYLOAD), (b"s.a", b"", b"z")])
    pair.stream("hub", "T")

    found, again = pair.run(), pair.run()

    assert (found.copied, found.skipped, found.skipped_count, found.gaps) == (2, [2], 1, [])
    assert (again.copied, again.attempts, again.gaps) == (0, 1, [])
    pair.require_copied(seqs=[1, 3])


@pytest.mark.parametrize("length", [10, 180])
def test_the_limit_of_the_target_counts_what_servers_add(pair: Pair, length: int) -> None:
    """A message that the target's `max_msg_size` would refuse with the lines that servers add is refused before, also with a long subject:
    the server itself would come to it and go no further, without a word.
    """
    limit, subject = 2000, b"s." + b"x" * length
    pair.stream("hub", "T", max_msg_size=limit)
    pair.stream("leaf", "S", [(subject, b"", b"y" * (limit - 300 - length))])
    pair.run()
    pair.require_copied()

    for size in range(limit - 300 - length, limit, 25):
        pair.ask("leaf", "STREAM.DELETE.S")
        pair.stream("leaf", "S", [(subject, b"", b"y" * size)])
        try:
            pair.run(fresh=True)
        except RefusedError as refused:
            assert "takes 2,000 at most" in str(refused)  # noqa: PT017 - most sizes are not refused
            pair.require_nothing_left()
            return
    raise AssertionError("no size was refused")


CONTROL = headers(
    "Nats-Msg-Id: 1", "nats-rollup: all", "NATS-TTL: 1s", "Nats-Expected-Stream: OTHER", "Nats-Expected-Last-Msg-Id: x", "A: 1", "A: 2"
)


def test_control_headers_do_not_act_again(pair: Pair) -> None:
    """Ids, roll-ups, lives and expectations of the origin are kept under another name, and neither drop nor delete anything."""
    plain = headers("Nats-Msg-Id: 1")
    pair.stream("leaf", "S", [(b"s.a", plain, b"1"), (b"s.b", headers("Nats-Msg-Id: 2", "X: y"), b"2")])
    pair.stream("hub", "T", [(b"t.a", plain, b"taken")], allow_rollup_hdrs=True)

    pair.run()

    found = [one.bare for one in pair.stored("hub", "T")[1:]]
    assert found == [
        (b"s.a", headers("Jsplan-Kept-Nats-Msg-Id: 1"), b"1"),
        (b"s.b", headers("Jsplan-Kept-Nats-Msg-Id: 2", "X: y"), b"2"),
    ]


def test_a_second_hop(pair: Pair) -> None:
    """What was copied once before says where it comes from now, and keeps where it came from then."""
    before = "hub2/OLD/7/2026-01-01T00:00:00.000000001Z"
    pair.stream("leaf", "S", [(b"s.a", headers(f"Jsplan-Origin: {before}"), b"1")])
    pair.stream("hub", "T")

    pair.run()

    (found,) = pair.stored("hub", "T")
    assert found.origin is not None
    assert found.origin.startswith("leaf/S/1/20")
    assert found.bare == (b"s.a", headers(f"Jsplan-Kept-Origin: {before}"), b"1")


# --- ranges ----------------------------------------------------------------------------------------------------------


def test_an_empty_range(pair: Pair) -> None:
    """An origin without messages is done at once; the target is not touched."""
    pair.stream("leaf", "S")
    pair.stream("hub", "T")
    before = pair.ask("hub", "STREAM.INFO.T")["config"]

    found = pair.run()

    assert (found.copied, found.gaps, pair.record["legs"][0]["status"]) == (0, [], "done")
    assert pair.ask("hub", "STREAM.INFO.T")["config"] == before


def test_a_range_beyond_the_end(pair: Pair) -> None:
    """A start after the last message means nothing."""
    pair.says(origin={"start_seq": 50})
    pair.stream("leaf", "S", numbered(3))
    pair.stream("hub", "T")

    assert pair.run().copied == 0


def test_an_origin_that_begins_late(pair: Pair) -> None:
    """A first sequence of ten million; what is before it is no gap."""
    pair.stream("leaf", "S", numbered(5), first_seq=10_000_000)
    pair.stream("hub", "T")

    found = pair.run()

    assert (found.first, found.last, found.copied, found.gaps) == (10_000_000, 10_000_004, 5, [])
    pair.require_copied()


@pytest.mark.matrix
def test_deleted_messages_are_gaps(pair: Pair) -> None:
    """What was deleted in the middle and at the end is listed by range; the rest is copied."""
    pair.stream("leaf", "S", numbered(20))
    pair.stream("hub", "T")
    pair.delete("leaf", "S", 4, 5, 6, 12, 19, 20)

    result = pair.result(fail_on_gap=True)

    assert (result.legs[0].gaps, result.gap_messages, result.exit_code) == ([[4, 6], [12, 12], [19, 20]], 6, 2)
    pair.require_copied()
    again = pair.result(fail_on_gap=True)
    assert (again.copied, again.legs[0].gaps, again.exit_code) == (0, [[4, 6], [12, 12], [19, 20]], 2)


def test_everything_was_deleted(pair: Pair) -> None:
    """A range of which nothing is left is one gap, and does not bring the target anything, not even for a while."""
    pair.says(origin={"start_seq": 1, "end_seq": 10})
    pair.stream("leaf", "S", numbered(12))
    pair.stream("hub", "T")
    pair.ask("leaf", "STREAM.PURGE.S", {"seq": 11})

    found = pair.run()

    assert (found.copied, found.gaps, found.gap_messages) == (0, [[1, 10]], 10)
    pair.require_nothing_left()


def test_sequences_and_times(pair: Pair) -> None:
    """Both ends of a range by sequence, and by the time of a message, belong to it."""
    pair.stream("leaf", "S", numbered(10))
    pair.stream("hub", "T")
    pair.says(origin={"start_seq": 3, "end_seq": 5})
    pair.run()
    pair.require_copied(seqs=[3, 4, 5])

    times = {one.seq: one.time for one in pair.stored("leaf", "S")}
    pair.says(origin={"start_time": times[7], "end_time": times[8]})
    found = pair.run()

    assert (found.first, found.last, found.copied) == (7, 8, 2)
    pair.require_copied(seqs=[3, 4, 5, 7, 8])


@pytest.mark.parametrize("filters", [["s.1.>"], ["s.1.>", "s.3.x"]])
def test_filters(pair: Pair, filters: list[str]) -> None:
    """Only subjects that match are copied; of what was deleted nobody knows the subject, so that is a gap and the others are none."""
    rows = [(b"s.%d.x" % (number % 4), b"", b"%d" % number) for number in range(1, 21)]
    pair.stream("leaf", "S", rows)
    pair.stream("hub", "T")
    pair.delete("leaf", "S", 9)
    pair.says(origin={"filter_subjects": filters})

    found = pair.run()

    wanted = {int(one[2]) for one in filters}
    pair.require_copied(seqs=[number for number in range(1, 21) if number % 4 in wanted and number != 9])
    assert found.gaps == [[9, 9]]


def test_the_range_is_frozen(pair: Pair) -> None:
    """What comes to the origin later is not of the range; the record stays; a changed text freezes anew, `--fresh` too."""
    pair.stream("leaf", "S", numbered(3))
    pair.stream("hub", "T")
    pair.run()
    frozen = pair.record
    pair.publish("leaf", numbered(2, first=4))

    assert pair.run().copied == 0
    assert pair.record["legs"] == frozen["legs"]
    pair.says(rate="1GB/s")
    assert pair.run().copied == 0
    assert pair.run(fresh=True).copied == 2
    pair.publish("leaf", numbered(1, first=6))
    pair.says(origin={"start_seq": 2})
    assert pair.run().copied == 1
    pair.require_copied()


# --- done already, or in part ----------------------------------------------------------------------------------------


def test_a_repair_copies_what_is_missing(pair: Pair) -> None:
    """What was deleted at the target after the copy is appended by an explicit run, and only that."""
    pair.stream("leaf", "S", numbered(10))
    pair.stream("hub", "T")
    pair.run()
    pair.delete("hub", "T", 4, 5, 10)

    found = pair.run()

    assert found.copied == 3
    assert sorted(int(one.data) for one in pair.stored("hub", "T")) == list(range(1, 11))
    assert [int(one.data) for one in pair.stored("hub", "T")][-3:] == [4, 5, 10]
    pair.require_nothing_left()


def test_what_expired_at_the_target_stays_away(pair: Pair) -> None:
    """A done copy whose beginning has expired is not begun again; what is missing behind it is repaired."""
    pair.stream("leaf", "S", numbered(10))
    pair.stream("hub", "T", [(b"t.a", b"", b"own")])
    pair.run()
    pair.ask("hub", "STREAM.PURGE.T", {"seq": 6})  # as expiry does: all before sequence 6, which holds number 5
    pair.delete("hub", "T", 8)

    assert pair.run().copied == 1
    assert [int(one.data) for one in pair.stored("hub", "T")] == [5, 6, 8, 9, 10, 7]
    pair.ask("hub", "STREAM.PURGE.T")
    found = pair.run()
    assert (found.copied, found.gaps) == (0, [])


def test_what_is_gone_on_both_sides_was_there(pair: Pair) -> None:
    """After a copy neither side owes anything: what both deleted since is no gap."""
    pair.stream("leaf", "S", numbered(6))
    pair.stream("hub", "T")
    pair.run()
    pair.ask("leaf", "STREAM.PURGE.S")
    pair.delete("hub", "T", 3)

    result = pair.result(fail_on_gap=True)

    assert (result.copied, result.gap_messages, result.exit_code) == (0, 0, 0)


@pytest.mark.matrix
def test_an_origin_that_was_made_anew(pair: Pair) -> None:
    """Sequences of another stream of that name mean other messages: refused without --fresh, and with it all of them are copied, also
    those whose sequences are in the target already, in part or again.
    """
    pair.stream("leaf", "S", numbered(10))
    pair.stream("hub", "T")
    pair.run()
    pair.ask("leaf", "STREAM.DELETE.S")
    pair.stream("leaf", "S", numbered(10, first=101))

    with pytest.raises(JsplanError, match=r"leaf/stream/S was made anew .* mean other messages now"):
        pair.run()
    assert pair.run(fresh=True).copied == 10
    assert pair.run(fresh=True).copied == 0
    pair.delete("hub", "T", 15, 20)
    assert pair.run().copied == 2
    found = pair.stored("hub", "T")
    assert sorted(int(one.data) for one in found) == [*range(1, 11), *range(101, 111)]
    assert not twice(found)
    pair.require_nothing_left()


def test_a_target_that_was_made_anew(pair: Pair) -> None:
    """It is refused without --fresh; with it everything is copied again."""
    pair.stream("leaf", "S", numbered(4))
    pair.stream("hub", "T")
    pair.run()
    pair.ask("hub", "STREAM.DELETE.T")
    pair.stream("hub", "T")

    with pytest.raises(JsplanError, match=r"hub/stream/T was made anew .*") as refused:
        pair.run()
    assert "--fresh" in str(refused.value.hint)
    assert pair.run(fresh=True).copied == 4
    pair.require_copied()


# --- what a target's own sources bring -------------------------------------------------------------------------------

LEAF = {"external": {"api": "$JS.leaf.API"}}


def sourced(pair: Pair, count: int, **source: Any) -> None:
    """A target that has a source of its own, and as many messages of it as are to come."""
    pair.stream("hub", "T", sources=[{"name": "S", **LEAF, **source}])
    pair.sandbox["hub"].wait_until(lambda: pair.state("hub", "T")["messages"] >= count, "the source brought its messages")


def numbers(pair: Pair) -> list[int]:
    """What the messages of the target hold."""
    return [int(one.data) for one in pair.stored("hub", "T")]


SOURCES: list[tuple[dict[str, Any], list[int]]] = [
    ({"opt_start_seq": 11}, list(range(1, 11))),
    ({}, []),
    ({"opt_start_seq": 11, "filter_subject": "s.1"}, [n for n in range(1, 21) if n < 11 or n % 2 == 0]),
    ({"opt_start_seq": 11, "subject_transforms": [{"src": "s.1", "dest": "s.1"}]}, [n for n in range(1, 21) if n < 11 or n % 2 == 0]),
]


@pytest.mark.matrix
@pytest.mark.parametrize(("source", "copied"), SOURCES, ids=str)
def test_part_of_the_range_came_by_a_source(pair: Pair, source: dict[str, Any], copied: list[int]) -> None:
    """What the target's own source of the origin has brought, or will, is not copied; afterwards everything is there once."""
    pair.stream("leaf", "S", [(b"s.%d" % (n % 2), b"", b"%d" % n) for n in range(1, 21)])
    sourced(pair, 20 - len(copied), **source)

    found = pair.run()

    assert found.copied == len(copied)
    assert sorted(numbers(pair)) == list(range(1, 21))
    assert sorted(int(one.data) for one in pair.stored("hub", "T") if one.origin) == copied
    pair.publish("leaf", [(b"s.1", b"", b"21")])
    pair.sandbox["hub"].wait_until(lambda: 21 in numbers(pair), "the source goes on")
    pair.require_nothing_left()


@pytest.mark.matrix
def test_a_source_that_begins_at_a_time(pair: Pair) -> None:
    """`opt_start_time` claims what came since then."""
    pair.stream("leaf", "S", numbered(10))
    time = next(one.time for one in pair.stored("leaf", "S") if one.seq == 7)
    sourced(pair, 4, opt_start_time=time)

    assert pair.run().copied == 6
    assert sorted(numbers(pair)) == list(range(1, 11))


def test_a_source_that_is_no_more(pair: Pair) -> None:
    """What a source brought before it was taken out is there, and is known by what the server wrote into it."""
    pair.stream("leaf", "S", numbered(10))
    sourced(pair, 4, opt_start_seq=7)
    pair.update("hub", "T", sources=None)

    assert pair.run().copied == 6
    assert sorted(numbers(pair)) == list(range(1, 11))


def test_a_source_in_one_domain(pair: Pair) -> None:
    """Origin and target in one domain: the server names such a source without a hash."""
    pair.says(target={"domain": "leaf", "stream": "T"})
    pair.stream("leaf", "S", numbered(10))
    pair.stream("leaf", "T", sources=[{"name": "S", "opt_start_seq": 7}])
    pair.sandbox["leaf"].wait_until(lambda: pair.state("leaf", "T")["messages"] == 4, "the source brought its messages")

    assert pair.run().copied == 6
    assert sorted(int(one.data) for one in pair.stored("leaf", "T")) == list(range(1, 11))
    pair.require_nothing_left()


def test_what_a_source_brought_of_an_earlier_stream(pair: Pair) -> None:
    """A source's messages of a stream that was made anew since are not taken for those of the new one."""
    pair.stream("leaf", "S", numbered(5))
    sourced(pair, 5)
    pair.update("hub", "T", sources=None)
    pair.ask("leaf", "STREAM.DELETE.S")
    pair.stream("leaf", "S", numbered(5, first=101))

    assert pair.run().copied == 5
    assert sorted(numbers(pair)) == [*range(1, 6), *range(101, 106)]


def test_a_target_with_another_source(pair: Pair) -> None:
    """Sources of other streams stay as they are, and what they bring is no part of it."""
    pair.stream("leaf", "S", numbered(10))
    pair.stream("leaf", "OTHER", [(b"other.a", b"", b"o")])
    pair.stream("hub", "T", sources=[{"name": "OTHER", **LEAF}])
    before = pair.ask("hub", "STREAM.INFO.T")["config"]

    pair.run()

    assert pair.ask("hub", "STREAM.INFO.T")["config"] == before
    pair.require_copied(others=1)


def test_two_entries_into_one_target(pair: Pair) -> None:
    """Each knows its own origin's messages; together nothing is missing and nothing there twice."""
    pair.stream("leaf", "S", numbered(5))
    pair.stream("leaf", "S2", [(b"s2.a", b"", b"%d" % n) for n in range(6, 11)])
    pair.stream("hub", "T")
    other = pair.entry | {"name": "y", "from": {"domain": "leaf", "stream": "S2"}}
    pair.space.write(backfills=[pair.entry, other])

    assert [pair.run(name=name).copied for name in ("x", "y", "x", "y")] == [5, 5, 0, 0]
    assert numbers(pair) == list(range(1, 11))
    pair.require_nothing_left()


def test_two_origins_of_one_entry(pair: Pair) -> None:
    """Legs are carried out one after the other, and each is done for itself."""
    pair.stream("leaf", "S", numbered(5))
    pair.stream("leaf", "S2", [(b"s2.a", b"", b"%d" % n) for n in range(6, 11)])
    pair.stream("hub", "T")
    pair.space.write(backfills=[pair.entry | {"from": [{"domain": "leaf", "stream": name} for name in ("S", "S2")]}])

    found = pair.result()

    assert [leg.copied for leg in found.legs] == [5, 5]
    assert numbers(pair) == list(range(1, 11))


# --- what is refused -------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"retention": "workqueue"}, "hub/stream/T has retention workqueue"),
    ({"retention": "interest"}, "hub/stream/T has retention interest"),
    ({"sealed": True}, "hub/stream/T is sealed"),
    ({"mirror": {"name": "OTHER"}, "subjects": None}, "hub/stream/T is a mirror"),
    ({"subject_transform": {"src": ">", "dest": "n.>"}}, "hub/stream/T changes the subjects of what it stores"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")
def test_targets_that_are_refused(pair: Pair, config: dict[str, Any], message: str) -> None:
    """A stream into which nothing can be copied exactly once is refused before anything is made."""
    pair.stream("leaf", "S", numbered(3))
    pair.stream("hub", "OTHER")
    pair.ask("hub", "STREAM.CREATE.T", {"name": "T", "subjects": ["t.>"]} | {k: v for k, v in config.items() if k != "sealed"})
    if "sealed" in config:
        pair.update("hub", "T", sealed=True)

    with pytest.raises(JsplanError, match=message):
        pair.run()
    pair.require_nothing_left()


LIMITS: list[tuple[dict[str, Any], str]] = [
    ({"max_msgs": 8}, "has 1 messages, and 10 more are to come; it keeps 8 messages and would delete its oldest"),
    ({"max_bytes": 900}, r"has \d+ B, and about .* more are to come; it keeps 900 B and would delete its oldest"),
    ({"max_msgs_per_subject": 1}, "keeps 1 message per subject, and what is copied counts as newer"),
]


@pytest.mark.parametrize(("config", "message"), LIMITS, ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")
def test_a_target_that_would_delete(pair: Pair, config: dict[str, Any], message: str) -> None:
    """A copy that would push messages out of the target is refused with the flag that allows it; with that it goes on."""
    pair.stream("leaf", "S", numbered(10))
    pair.stream("hub", "T", [(b"t.a", b"", b"own")], **config)
    before = pair.stored("hub", "T")

    with pytest.raises(RefusedError, match=message) as refused:
        pair.run()
    assert refused.value.hint == "To allow it: --allow-hazard DELETES_MESSAGES:hub/stream/T"
    assert pair.stored("hub", "T") == before
    pair.require_nothing_left()

    assert pair.run(allow_hazards=("DELETES_MESSAGES:hub/stream/T",)).copied == 10
    assert [one.data for one in pair.stored("hub", "T")][-1] == b"10"
    pair.require_nothing_left()


FULL: list[dict[str, Any]] = [{"max_msgs": 8}, {"max_bytes": 900}, {"max_msgs_per_subject": 1, "discard_new_per_subject": True}]


@pytest.mark.parametrize("config", FULL, ids=str)
def test_a_target_that_takes_no_more(pair: Pair, config: dict[str, Any]) -> None:
    """With `discard: new` nothing would be deleted and the copy would never end: no hazard allows that."""
    pair.stream("leaf", "S", numbered(10))
    pair.stream("hub", "T", discard="new", **config)

    with pytest.raises(RefusedError, match=r"T (has|takes) .*(takes no more|refuses more)"):
        pair.run(allow_hazards=("DELETES_MESSAGES",))
    assert pair.stored("hub", "T") == []
    pair.require_nothing_left()


def test_room_is_counted_by_what_comes(pair: Pair) -> None:
    """With a filter only what matches needs room, and what is deleted needs none."""
    rows: list[Row] = [(b"s.%d" % (n % 10), b"", b"%d" % n) for n in range(1, 101)]
    pair.stream("leaf", "S", rows)
    pair.stream("hub", "T", max_msgs=10)
    pair.delete("leaf", "S", 3)
    pair.says(origin={"filter_subjects": ["s.3"]})

    assert pair.run().copied == 9
    assert numbers(pair) == list(range(13, 100, 10))


def test_a_copy_into_itself(pair: Pair) -> None:
    """A stream is no target of its own."""
    pair.says(target={"domain": "leaf", "stream": "S"})
    pair.stream("leaf", "S", numbered(3))

    with pytest.raises(JsplanError, match="leaf/stream/S cannot be copied into itself"):
        pair.run()


def test_a_target_that_is_not_there(pair: Pair) -> None:
    """It says what is missing and what makes it."""
    pair.stream("leaf", "S", numbered(3))

    with pytest.raises(JsplanError, match="stream T in domain hub does not exist") as raised:
        pair.run()
    assert "jsplan apply" in str(raised.value.hint)


@pytest.mark.parametrize("domain", ["leaf", "hub"])
def test_a_stream_that_stores_every_subject(pair: Pair, domain: str) -> None:
    """A stream that would store each copied message again, in whatever domain, is named, and nothing is copied or left."""
    pair.ask(domain, "STREAM.CREATE.ALL", {"name": "ALL", "subjects": ["jsplan.>", "x.>"]})
    pair.stream("leaf", "S", numbered(3))
    pair.stream("hub", "T")

    with pytest.raises(RefusedError, match=f"in domain {domain} stores every subject"):
        pair.run()
    assert pair.state(domain, "ALL")["messages"] == pair.state("hub", "T")["messages"] == 0
    pair.require_nothing_left()
