from __future__ import annotations

import pytest

from jsplan.backfill.protocol import RawConnection, read
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.errors import JsplanError, RefusedError
from tests.backfill.backfill_pair import (
    Pair,
    connection_target,
    duplicated_origins,
    numbered_rows,
    with_nanoseconds,
)
from tests.backfill.test_reading import EDGES

MAX_PAYLOAD = 1 << 20


def headers(*lines: str) -> bytes:
    """Return a header block."""
    return "".join(f"{line}\r\n" for line in ("NATS/1.0", *lines, "")).encode()


# --- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_every_byte_arrives(pair: Pair) -> None:
    """Unusual payloads, headers and subjects arrive unchanged, in order, behind existing ones."""
    pair.stream("leaf", "S", EDGES)
    pair.stream("hub", "T", [(b"t.own", b"", b"before")])

    found = pair.run()

    assert (found.copied, found.verified, found.gaps) == (len(EDGES), True, [])
    assert pair.require_copied(others=1)[0].seq == 2


@pytest.mark.parametrize("block", [b"NATS/1.0\r\nA: 1", b"NATS/1.0\r\nA: 1\r\n", b"X"])
def test_headers_without_an_end(pair: Pair, block: bytes) -> None:
    """A message whose headers cannot name its origin is refused, and nothing is copied."""
    pair.stream("leaf", "S", [(b"s.a", b"", b"1"), (b"s.a", block, b"2")])
    pair.stream("hub", "T")

    with pytest.raises(RefusedError, match="message 2 of stream S has headers without an end"):
        pair.run()
    assert pair.stored("hub", "T") == []
    pair.require_nothing_left()
    pair.delete("leaf", "S", 2)
    assert pair.run().copied == 1


@pytest.mark.matrix
def test_subjects_that_are_wildcards(pair: Pair) -> None:
    """Servers store wildcards as tokens of a subject. A copy refuses them before it writes."""
    pair.stream("leaf", "S", [(b"s.a", b"", b"1"), (b"s.*", b"", b"2")])
    pair.stream("hub", "T")

    with pytest.raises(RefusedError, match=r"a message cannot be published: .* 's\.\*'"):
        pair.run()
    assert pair.stored("hub", "T") == []
    pair.require_nothing_left()


@pytest.mark.matrix
def test_an_origin_that_never_had_a_message(pair: Pair) -> None:
    """Nothing is copied into a target with messages, and the next run copies what has come."""
    pair.stream("leaf", "S")
    pair.stream("hub", "T", [(b"t.own", b"", b"before")])

    assert pair.run().copied == 0
    pair.publish("leaf", numbered_rows(3))
    assert pair.run(reset_range=True).copied == 3
    pair.require_copied(others=1)


@pytest.mark.matrix
def test_a_message_that_just_fits(pair: Pair) -> None:
    """A payload of max_payload minus 256 is copied, and read over the leafnode connection."""
    pair.stream(
        "leaf",
        "S",
        [(b"s.a", b"", b"x"), (b"s.a", b"", b"y" * (MAX_PAYLOAD - 256)), (b"s.a", b"", b"z")],
    )
    pair.stream("hub", "T")

    pair.run()

    pair.require_copied()
    what = ReadRequest("$JS.hub.API", "T", 1, 3)
    found = [
        row
        for rows in read(lambda: RawConnection(connection_target(pair.sandbox["leaf"])), what)
        for row in rows["data"].to_pylist()
    ]
    assert [len(data) for data in found] == [1, MAX_PAYLOAD - 256, 1]


@pytest.mark.matrix
def test_copied_messages_can_be_read_over_a_link(pair: Pair) -> None:
    """A copied message with its added headers fits into max_payload.

    Since 2.12 a leafnode connection closes when a larger message is read over it.
    """
    pair.write_entry(oversize="skip")
    pair.stream(
        "leaf", "S", [(b"s.a", b"", b"y" * (MAX_PAYLOAD - less)) for less in range(100, 260, 10)]
    )
    pair.stream("hub", "T")

    found = pair.run()

    what = ReadRequest("$JS.hub.API", "T", 1, 16)
    read_there = [
        len(data)
        for rows in read(lambda: RawConnection(connection_target(pair.sandbox["leaf"])), what)
        for data in rows["data"].to_pylist()
    ]
    assert 0 < found.copied < 16
    assert read_there == [MAX_PAYLOAD - less for less in range(100, 260, 10)][-found.copied :]


def test_a_message_of_exactly_max_payload_stops_a_copy(pair: Pair) -> None:
    """A message of max_payload stops the copy with a hint, and the target is unchanged."""
    pair.stream("leaf", "S", [(b"s.a", b"", b"x"), (b"s.a", b"", b"y" * MAX_PAYLOAD)])
    pair.stream("hub", "T", [(b"t.own", b"", b"before")])
    before = pair.stored("hub", "T")

    with pytest.raises(
        RefusedError,
        match=r"message 2 of stream S may have 1,048,\d+ bytes .* accepts at most 1,048,576",
    ) as refused:
        pair.run()

    assert "oversize: skip" in str(refused.value.hint)
    assert pair.stored("hub", "T") == before
    pair.require_nothing_left()


def test_oversize_skip_leaves_out_large_messages(pair: Pair) -> None:
    """`oversize: skip` copies the other messages and lists the skipped ones, which are no gap."""
    pair.write_entry(oversize="skip")
    pair.stream(
        "leaf", "S", [(b"s.a", b"", b"x"), (b"s.a", b"", b"y" * MAX_PAYLOAD), (b"s.a", b"", b"z")]
    )
    pair.stream("hub", "T")

    found, again = pair.run(), pair.run()

    assert (found.copied, found.skipped, found.skipped_count, found.gaps) == (2, [2], 1, [])
    assert (again.copied, again.attempts, again.gaps) == (0, 1, [])
    pair.require_copied(seqs=[1, 3])


@pytest.mark.parametrize("length", [10, 180])
def test_the_limit_of_the_target_counts_what_servers_add(pair: Pair, length: int) -> None:
    """A message that `max_msg_size` refuses with added headers is refused before the copy.

    The server itself would stop at that message without an error. A long subject counts
    too.
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
            pair.run(reset_range=True)
        except RefusedError as refused:
            assert "accepts at most 2,000" in str(refused)  # noqa: PT017 - most sizes are not refused
            pair.require_nothing_left()
            return
    raise AssertionError("no size was refused")


CONTROL = headers(
    "Nats-Msg-Id: 1",
    "nats-rollup: all",
    "NATS-TTL: 1s",
    "Nats-Expected-Stream: OTHER",
    "Nats-Expected-Last-Msg-Id: x",
    "A: 1",
    "A: 2",
)


def test_control_headers_do_not_act_again(pair: Pair) -> None:
    """Control headers of the origin are kept under another name and have no effect."""
    plain = headers("Nats-Msg-Id: 1")
    pair.stream(
        "leaf", "S", [(b"s.a", plain, b"1"), (b"s.b", headers("Nats-Msg-Id: 2", "X: y"), b"2")]
    )
    pair.stream("hub", "T", [(b"t.a", plain, b"taken")], allow_rollup_hdrs=True)

    pair.run()

    found = [one.without_added_headers for one in pair.stored("hub", "T")[1:]]
    assert found == [
        (b"s.a", headers("Jsplan-Kept-Nats-Msg-Id: 1"), b"1"),
        (b"s.b", headers("Jsplan-Kept-Nats-Msg-Id: 2", "X: y"), b"2"),
    ]


def test_a_second_hop(pair: Pair) -> None:
    """A message that is copied again has the new origin, and keeps the earlier one."""
    before = "hub2/OLD/7/2026-01-01T00:00:00.000000001Z"
    pair.stream("leaf", "S", [(b"s.a", headers(f"Jsplan-Origin: {before}"), b"1")])
    pair.stream("hub", "T")

    pair.run()

    (found,) = pair.stored("hub", "T")
    assert found.origin is not None
    assert found.origin.startswith("leaf/S/1/20")
    assert found.without_added_headers == (b"s.a", headers(f"Jsplan-Kept-Origin: {before}"), b"1")


# --- ranges ----------------------------------------------------------------------------------------------------------


def test_an_empty_range(pair: Pair) -> None:
    """An empty origin is done at once, and the target is unchanged."""
    pair.stream("leaf", "S")
    pair.stream("hub", "T")
    before = pair.ask("hub", "STREAM.INFO.T")["config"]

    found = pair.run()

    assert (found.copied, found.gaps, pair.state_record["origins"][0]["status"]) == (0, [], "done")
    assert pair.ask("hub", "STREAM.INFO.T")["config"] == before


def test_a_range_beyond_the_end(pair: Pair) -> None:
    """A range that begins after the last message copies nothing."""
    pair.write_entry(origin={"start_seq": 50})
    pair.stream("leaf", "S", numbered_rows(3))
    pair.stream("hub", "T")

    assert pair.run().copied == 0


def test_an_origin_that_begins_late(pair: Pair) -> None:
    """An origin with a high first sequence is copied, and what is before it is no gap."""
    pair.stream("leaf", "S", numbered_rows(5), first_seq=10_000_000)
    pair.stream("hub", "T")

    found = pair.run()

    assert (found.first, found.last, found.copied, found.gaps) == (10_000_000, 10_000_004, 5, [])
    pair.require_copied()


@pytest.mark.matrix
def test_deleted_messages_are_gaps(pair: Pair) -> None:
    """Deleted messages are listed as gaps, and the others are copied."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    pair.delete("leaf", "S", 4, 5, 6, 12, 19, 20)

    result = pair.result(fail_on_gap=True)

    assert (result.origins[0].gaps, result.gap_messages, result.exit_code) == (
        [[4, 6], [12, 12], [19, 20]],
        6,
        2,
    )
    pair.require_copied()
    again = pair.result(fail_on_gap=True)
    assert (again.copied, again.origins[0].gaps, again.exit_code) == (
        0,
        [[4, 6], [12, 12], [19, 20]],
        2,
    )


def test_everything_was_deleted(pair: Pair) -> None:
    """A range without messages is one gap, and nothing is written to the target."""
    pair.write_entry(origin={"start_seq": 1, "end_seq": 10})
    pair.stream("leaf", "S", numbered_rows(12))
    pair.stream("hub", "T")
    pair.ask("leaf", "STREAM.PURGE.S", {"seq": 11})

    found = pair.run()

    assert (found.copied, found.gaps, found.gap_messages) == (0, [[1, 10]], 10)
    pair.require_nothing_left()


def test_both_ends_of_a_range_belong_to_it(pair: Pair) -> None:
    """Both ends of a range belong to it, given as sequences or as times."""
    pair.stream("leaf", "S", numbered_rows(10))
    pair.stream("hub", "T")
    pair.write_entry(origin={"start_seq": 3, "end_seq": 5})
    pair.run()
    pair.require_copied(seqs=[3, 4, 5])

    times = {one.seq: one.time for one in pair.stored("leaf", "S")}
    pair.write_entry(origin={"start_time": times[7], "end_time": times[8]})
    found = pair.run()

    assert (found.first, found.last, found.copied) == (7, 8, 2)
    pair.require_copied(seqs=[3, 4, 5, 7, 8])


@pytest.mark.parametrize("filters", [["s.1.>"], ["s.1.>", "s.3.x"]])
def test_filters(pair: Pair, filters: list[str]) -> None:
    """Only matching subjects are copied, and deleted messages of unknown subject are gaps."""
    rows = [(b"s.%d.x" % (number % 4), b"", b"%d" % number) for number in range(1, 21)]
    pair.stream("leaf", "S", rows)
    pair.stream("hub", "T")
    pair.delete("leaf", "S", 9)
    pair.write_entry(origin={"filter_subjects": filters})

    found = pair.run()

    wanted = {int(one[2]) for one in filters}
    pair.require_copied(
        seqs=[number for number in range(1, 21) if number % 4 in wanted and number != 9]
    )
    assert found.gaps == [[9, 9]]


def test_the_range_is_pinned(pair: Pair) -> None:
    """Later messages are not in the pinned range; a changed entry or `--reset-range` pins again."""
    pair.stream("leaf", "S", numbered_rows(3))
    pair.stream("hub", "T")
    pair.run()
    pinned = pair.state_record
    pair.publish("leaf", numbered_rows(2, first=4))

    assert pair.run().copied == 0
    assert pair.state_record["origins"] == pinned["origins"]
    pair.write_entry(rate="1GB/s")
    assert pair.run().copied == 0
    assert pair.run(reset_range=True).copied == 2
    pair.publish("leaf", numbered_rows(1, first=6))
    pair.write_entry(origin={"start_seq": 2})
    assert pair.run().copied == 1
    pair.require_copied()


# --- repairs and recreated streams -----------------------------------------------------------------------------------


def test_a_repair_copies_what_is_missing(pair: Pair) -> None:
    """A second run appends the messages that were deleted at the target, and only those."""
    pair.stream("leaf", "S", numbered_rows(10))
    pair.stream("hub", "T")
    pair.run()
    pair.delete("hub", "T", 4, 5, 10)

    found = pair.run()

    assert found.copied == 3
    assert sorted(int(one.data) for one in pair.stored("hub", "T")) == list(range(1, 11))
    assert [int(one.data) for one in pair.stored("hub", "T")][-3:] == [4, 5, 10]
    pair.require_nothing_left()


def test_what_expired_at_the_target_is_not_copied_again(pair: Pair) -> None:
    """A done copy does not repeat expired messages, and repairs those behind them."""
    pair.stream("leaf", "S", numbered_rows(10))
    pair.stream("hub", "T", [(b"t.a", b"", b"own")])
    pair.run()
    # Like expiry: it removes all before sequence 6, which holds number 5.
    pair.ask("hub", "STREAM.PURGE.T", {"seq": 6})
    pair.delete("hub", "T", 8)

    assert pair.run().copied == 1
    assert [int(one.data) for one in pair.stored("hub", "T")] == [5, 6, 8, 9, 10, 7]
    pair.ask("hub", "STREAM.PURGE.T")
    found = pair.run()
    assert (found.copied, found.gaps) == (0, [])


def test_messages_deleted_on_both_sides_are_no_gap(pair: Pair) -> None:
    """Messages that both sides deleted after a copy are no gap."""
    pair.stream("leaf", "S", numbered_rows(6))
    pair.stream("hub", "T")
    pair.run()
    pair.ask("leaf", "STREAM.PURGE.S")
    pair.delete("hub", "T", 3)

    result = pair.result(fail_on_gap=True)

    assert (result.copied, result.gap_messages, result.exit_code) == (0, 0, 0)


@pytest.mark.matrix
def test_a_recreated_origin(pair: Pair) -> None:
    """A recreated origin is refused without `--reset-range`, and copied whole with it.

    Messages whose sequences are in the target already are copied too.
    """
    pair.stream("leaf", "S", numbered_rows(10))
    pair.stream("hub", "T")
    pair.run()
    pair.ask("leaf", "STREAM.DELETE.S")
    pair.stream("leaf", "S", numbered_rows(10, first=101))

    with pytest.raises(JsplanError, match=r"leaf/stream/S was recreated .* no longer match"):
        pair.run()
    assert pair.run(reset_range=True).copied == 10
    assert pair.run(reset_range=True).copied == 0
    pair.delete("hub", "T", 15, 20)
    assert pair.run().copied == 2
    found = pair.stored("hub", "T")
    assert sorted(int(one.data) for one in found) == [*range(1, 11), *range(101, 111)]
    assert not duplicated_origins(found)
    pair.require_nothing_left()


def test_a_recreated_target(pair: Pair) -> None:
    """A recreated target is refused without `--reset-range`, and filled again with it."""
    pair.stream("leaf", "S", numbered_rows(4))
    pair.stream("hub", "T")
    pair.run()
    pair.ask("hub", "STREAM.DELETE.T")
    pair.stream("hub", "T")

    with pytest.raises(JsplanError, match=r"hub/stream/T was recreated .*") as refused:
        pair.run()
    assert "--reset-range" in str(refused.value.hint)
    assert pair.run(reset_range=True).copied == 4
    pair.require_copied()


@pytest.mark.parametrize(
    "origin",
    ["leaf/S/3/yesterday", "leaf/S/99999999999999999999/2026-01-01T00:00:00Z", "leaf/S/3/", "x"],
)
def test_a_header_that_no_copy_wrote(pair: Pair, origin: str) -> None:
    """A message that says with an impossible time or sequence that it is a copy is not one."""
    pair.stream("leaf", "S", numbered_rows(5))
    pair.stream(
        "hub", "T", [(b"t.a", b"NATS/1.0\r\nJsplan-Origin: %s\r\n\r\n" % origin.encode(), b"own")]
    )

    assert pair.run().copied == 5
    assert pair.run().copied == 0
    pair.require_nothing_left()


def test_a_forged_header_of_a_copy(pair: Pair) -> None:
    """A message with the header of a copy and another content is an error.

    Its original is not copied. Once it is deleted, the next run copies the original. One with the same content is a copy.
    """
    pair.stream("leaf", "S", numbered_rows(5))
    origin = pair.stored("leaf", "S")
    blocks = [
        headers(f"Jsplan-Origin: leaf/S/{one.seq}/{with_nanoseconds(one.time)}") for one in origin
    ]
    equal = origin[1].subject.encode(), blocks[1], origin[1].data
    pair.stream("hub", "T", [(b"t.a", blocks[2], b"forged"), equal], subjects=["t.>", "s.>"])

    with pytest.raises(
        JsplanError,
        match="has 1 message with the header of a copy from leaf/stream/S and another content, at sequence 1",
    ):
        pair.run()
    assert [one.data for one in pair.stored("hub", "T")].count(origin[2].data) == 0
    with pytest.raises(JsplanError, match="and another content"):
        pair.run()
    pair.delete("hub", "T", 1)
    assert pair.run().copied == 1
    assert {one.data for one in pair.stored("hub", "T")} == {one.data for one in origin}
    pair.require_nothing_left()
