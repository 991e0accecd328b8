from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.backfill import staging
from jsplan.backfill.tasks import staging_streams
from jsplan.backfill.tasks.staging_streams import StagingStream
from jsplan.backfill.tasks.target_scan import Arrived, scan_promotions
from jsplan.errors import JsplanError, RefusedError
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions
from tests.backfill.backfill_pair import Pair, Row, numbered_rows
from tests.backfill.thread_runner import run_then, use_runner
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jsplan.backfill.tasks.endpoints import Endpoint
    from jsplan.jetstream import DomainApi


# --- sources of the target -------------------------------------------------------------------------------------------

LEAF = {"external": {"api": "$JS.leaf.API"}}


def create_sourced_target(pair: Pair, count: int, **source: Any) -> None:
    """Create a target with a source, and wait for so many messages."""
    pair.stream("hub", "T", sources=[{"name": "S", **LEAF, **source}])
    pair.sandbox["hub"].wait_until(
        lambda: pair.state("hub", "T")["messages"] >= count, "the source brought its messages"
    )


def target_numbers(pair: Pair) -> list[int]:
    """Return the numbers in the messages of the target."""
    return [int(one.data) for one in pair.stored("hub", "T")]


SOURCES: list[tuple[dict[str, Any], list[int]]] = [
    ({"opt_start_seq": 11}, list(range(1, 11))),
    ({}, []),
    (
        {"opt_start_seq": 11, "filter_subject": "s.1"},
        [n for n in range(1, 21) if n < 11 or n % 2 == 0],
    ),
    (
        {"opt_start_seq": 11, "subject_transforms": [{"src": "s.1", "dest": "s.1"}]},
        [n for n in range(1, 21) if n < 11 or n % 2 == 0],
    ),
]


@pytest.mark.matrix
@pytest.mark.parametrize(("source", "copied"), SOURCES, ids=str)
def test_part_of_the_range_came_by_a_source(
    pair: Pair, source: dict[str, Any], copied: list[int]
) -> None:
    """Messages that a source of the target brings are not copied, and each is there once."""
    pair.stream("leaf", "S", [(b"s.%d" % (n % 2), b"", b"%d" % n) for n in range(1, 21)])
    create_sourced_target(pair, 20 - len(copied), **source)

    found = pair.run()

    assert found.copied == len(copied)
    assert sorted(target_numbers(pair)) == list(range(1, 21))
    assert sorted(int(one.data) for one in pair.stored("hub", "T") if one.origin) == copied
    pair.publish("leaf", [(b"s.1", b"", b"21")])
    pair.sandbox["hub"].wait_until(
        lambda: 21 in target_numbers(pair), "the source brings the new message"
    )
    pair.require_nothing_left()


@pytest.mark.matrix
def test_a_source_that_begins_at_a_time(pair: Pair) -> None:
    """Messages since `opt_start_time` of a source are not copied."""
    pair.stream("leaf", "S", numbered_rows(10))
    time = next(one.time for one in pair.stored("leaf", "S") if one.seq == 7)
    create_sourced_target(pair, 4, opt_start_time=time)

    assert pair.run().copied == 6
    assert sorted(target_numbers(pair)) == list(range(1, 11))


@pytest.mark.matrix
@pytest.mark.parametrize("start", [{}, {"opt_start_time": "2000-01-01T00:00:00Z"}], ids=str)
def test_a_source_that_began_late(pair: Pair, start: dict[str, Any]) -> None:
    """Messages that a source left out, as the first ones of its target were gone, are copied."""
    pair.stream("leaf", "S", numbered_rows(10))
    pair.stream("hub", "T", [(b"t.a", b"", b"0")] * 2)
    pair.ask("hub", "STREAM.PURGE.T", {"keep": 1})
    pair.update("hub", "T", sources=[{"name": "S", **LEAF, **start}])
    with pytest.raises(RefusedError, match="a source of leaf/stream/S without opt_start_seq"):
        pair.run()

    def is_followed() -> bool:
        pair.publish("leaf", [(b"s.x", b"", b"11")])
        return bool(pair.state("hub", "T")["messages"] > 1)

    pair.sandbox["hub"].wait_until(is_followed, "deliver new messages")
    assert pair.run(reset_range=True).copied == 10
    numbers = target_numbers(pair)
    assert [n for n in numbers if n < 11].count(0) == 1
    assert sorted(n for n in numbers if n < 11) == list(range(11))
    pair.require_nothing_left()


def test_messages_of_a_removed_source_are_recognized(pair: Pair) -> None:
    """Messages of a removed source are recognized by the header of the server."""
    pair.stream("leaf", "S", numbered_rows(10))
    create_sourced_target(pair, 4, opt_start_seq=7)
    pair.update("hub", "T", sources=None)

    assert pair.run().copied == 6
    assert sorted(target_numbers(pair)) == list(range(1, 11))


def test_a_source_in_one_domain(pair: Pair) -> None:
    """A source within one domain is recognized, although the server names it without a hash."""
    pair.write_entry(target={"domain": "leaf", "stream": "T"})
    pair.stream("leaf", "S", numbered_rows(10))
    pair.stream("leaf", "T", sources=[{"name": "S", "opt_start_seq": 7}])
    pair.sandbox["leaf"].wait_until(
        lambda: pair.state("leaf", "T")["messages"] == 4, "the source brought its messages"
    )

    assert pair.run().copied == 6
    assert sorted(int(one.data) for one in pair.stored("leaf", "T")) == list(range(1, 11))
    pair.require_nothing_left()


def test_messages_of_a_recreated_origin_are_not_mistaken(pair: Pair) -> None:
    """Sourced messages of a stream that was recreated are not taken for those of the new one."""
    pair.stream("leaf", "S", numbered_rows(5))
    create_sourced_target(pair, 5)
    pair.update("hub", "T", sources=None)
    pair.ask("leaf", "STREAM.DELETE.S")
    pair.stream("leaf", "S", numbered_rows(5, first=101))

    assert pair.run().copied == 5
    assert sorted(target_numbers(pair)) == [*range(1, 6), *range(101, 106)]


def test_a_target_with_another_source(pair: Pair) -> None:
    """Sources of other streams are unchanged, and their messages do not count."""
    pair.stream("leaf", "S", numbered_rows(10))
    pair.stream("leaf", "OTHER", [(b"other.a", b"", b"o")])
    pair.stream("hub", "T", sources=[{"name": "OTHER", **LEAF}])
    pair.sandbox["hub"].wait_until(
        lambda: pair.ask("hub", "STREAM.INFO.T")["state"]["messages"] == 1, "copy from OTHER"
    )
    before = pair.ask("hub", "STREAM.INFO.T")["config"]

    pair.run()

    assert pair.ask("hub", "STREAM.INFO.T")["config"] == before
    pair.require_copied(others=1)


def test_two_entries_into_one_target(pair: Pair) -> None:
    """Two entries into one target copy their messages once each."""
    pair.stream("leaf", "S", numbered_rows(5))
    pair.stream("leaf", "S2", [(b"s2.a", b"", b"%d" % n) for n in range(6, 11)])
    pair.stream("hub", "T")
    other = pair.entry | {"name": "y", "from": {"domain": "leaf", "stream": "S2"}}
    pair.space.write(backfills=[pair.entry, other])

    assert [pair.run(name=name).copied for name in ("x", "y", "x", "y")] == [5, 5, 0, 0]
    assert target_numbers(pair) == list(range(1, 11))
    pair.require_nothing_left()


def test_two_origins_of_one_entry(pair: Pair) -> None:
    """Two origins of one entry are copied, each in its order."""
    pair.stream("leaf", "S", numbered_rows(5))
    pair.stream("leaf", "S2", [(b"s2.a", b"", b"%d" % n) for n in range(6, 11)])
    pair.stream("hub", "T")
    pair.space.write(
        backfills=[
            pair.entry | {"from": [{"domain": "leaf", "stream": name} for name in ("S", "S2")]}
        ]
    )

    found = pair.result()

    assert [origin.copied for origin in found.origins] == [5, 5]
    there = target_numbers(pair)
    assert [number for number in there if number <= 5] == list(range(1, 6))
    assert [number for number in there if number > 5] == list(range(6, 11))


# --- refused targets -------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"retention": "workqueue"}, "hub/stream/T has retention workqueue"),
    ({"retention": "interest"}, "hub/stream/T has retention interest"),
    ({"sealed": True}, "hub/stream/T is sealed"),
    ({"mirror": {"name": "OTHER"}, "subjects": None}, "hub/stream/T is a mirror"),
    (
        {"subject_transform": {"src": ">", "dest": "n.>"}},
        "hub/stream/T changes the subjects of what it stores",
    ),
]


@pytest.mark.parametrize(
    ("config", "message"),
    REFUSED,
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_unsuitable_targets_are_refused(pair: Pair, config: dict[str, Any], message: str) -> None:
    """A target that cannot receive each message exactly once is refused before any write."""
    pair.stream("leaf", "S", numbered_rows(3))
    pair.stream("hub", "OTHER")
    pair.ask(
        "hub",
        "STREAM.CREATE.T",
        {"name": "T", "subjects": ["t.>"]} | {k: v for k, v in config.items() if k != "sealed"},
    )
    if "sealed" in config:
        pair.update("hub", "T", sealed=True)

    with pytest.raises(JsplanError, match=message):
        pair.run()
    pair.require_nothing_left()


LIMITS: list[tuple[dict[str, Any], str]] = [
    (
        {"max_msgs": 8},
        "has 1 messages, and 10 will be copied. It keeps 8 messages and would delete its oldest",
    ),
    (
        {"max_bytes": 900},
        r"has \d+ B, and about .* will be copied. It keeps 900 B and would delete its oldest",
    ),
    (
        {"max_msgs_per_subject": 1},
        "keeps 1 message per subject. Copied messages would replace",
    ),
]


@pytest.mark.parametrize(
    ("config", "message"),
    LIMITS,
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_target_that_would_delete_is_refused(
    pair: Pair, config: dict[str, Any], message: str
) -> None:
    """A copy that would delete messages of the target is refused until the hazard is allowed."""
    pair.stream("leaf", "S", numbered_rows(10))
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


def write_subjects(pair: Pair, count: int, **config: Any) -> None:
    """Fill the origin with messages on 8 subjects, for a copy in two partitions by subject."""
    pair.stream("leaf", "S", [(b"s.%d" % (n % 8), b"", b"%d" % n) for n in range(1, count + 1)])
    pair.stream("hub", "T", [(b"t.a", b"", b"0")] * 3, **config)
    pair.write_entry(order="subject")


@pytest.mark.matrix
@pytest.mark.parametrize("limit", [{"max_msgs_per_subject": 2}, {"max_msgs": 10}], ids=str)
def test_a_target_that_deletes_gets_every_staging_stream(pair: Pair, limit: dict[str, Any]) -> None:
    """A target receives each staging stream, also after it has deleted what another one had."""
    write_subjects(pair, 80, **limit)

    found = pair.run(allow_hazards=("DELETES_MESSAGES",))

    numbers = target_numbers(pair)
    assert found.copied == 80
    if "max_msgs" in limit:
        assert len(numbers) == 10
    else:
        assert sorted(n for n in numbers if n) == list(range(65, 81))
    pair.require_nothing_left()
    assert pair.run().copied == 0


@pytest.mark.parametrize("is_delivered", [True, False])
def test_what_is_gone_before_it_is_compared(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, is_delivered: bool
) -> None:
    """Messages count as deleted by the target only if its source was delivered."""
    write_subjects(pair, 16, max_msgs_per_subject=2)
    attach = staging_streams.attach_staging_streams

    async def attach_nothing(api: DomainApi, stream: str, staged: Sequence[StagingStream]) -> None:
        await attach(api, stream, [] if not is_delivered else staged)

    def delete_then_scan(
        target: Endpoint, stream: str, first: int, staged: Sequence[tuple[str, int]]
    ) -> Iterator[Arrived]:
        if is_delivered:
            pair.sandbox["hub"].wait_until(
                lambda: pair.state("hub", "T")["last_seq"] >= 19, "receive all"
            )
        pair.ask("hub", "STREAM.PURGE.T")
        return scan_promotions(target, stream, first, staged, patience=0.2)

    monkeypatch.setattr(staging_streams, "attach_staging_streams", attach_nothing)
    monkeypatch.setattr(staging, "scan_promotions", delete_then_scan)
    if is_delivered:
        found = pair.run(allow_hazards=("DELETES_MESSAGES",))
        assert (found.copied, found.verified) == (16, False)
    else:
        with pytest.raises(JsplanError, match="took only 0 of 8 messages of staging stream"):
            pair.run(allow_hazards=("DELETES_MESSAGES",))
        monkeypatch.undo()
        assert pair.run(allow_hazards=("DELETES_MESSAGES",)).copied == 16
        assert sorted(target_numbers(pair)) == list(range(1, 17))
    pair.require_nothing_left()


@pytest.mark.matrix
def test_a_target_whose_first_messages_are_gone(pair: Pair) -> None:
    """Messages that were staged before the last message of the target are promoted too.

    Without a first sequence, a source of such a target begins at the time of that message.
    """
    write_subjects(pair, 16)
    pair.ask("hub", "STREAM.PURGE.T", {"keep": 1})

    with use_runner(run_then(lambda: pair.publish("hub", [(b"t.a", b"", b"17")]))):
        backfill.run(pair.space.load, BackfillOptions(name="x"), RecordingObserver())

    assert sorted(target_numbers(pair)) == list(range(18))
    pair.require_nothing_left()


FULL: list[dict[str, Any]] = [
    {"max_msgs": 8},
    {"max_bytes": 900},
    {"max_msgs_per_subject": 1, "discard_new_per_subject": True},
]


@pytest.mark.parametrize("config", FULL, ids=str)
def test_a_full_target_is_refused(pair: Pair, config: dict[str, Any]) -> None:
    """A full target with `discard: new` is refused, and no hazard allows it."""
    pair.stream("leaf", "S", numbered_rows(10))
    pair.stream("hub", "T", discard="new", **config)

    with pytest.raises(RefusedError, match=r"T (has .*It accepts at most|accepts .*refuses more)"):
        pair.run(allow_hazards=("DELETES_MESSAGES",))
    assert pair.stored("hub", "T") == []
    pair.require_nothing_left()


def test_capacity_counts_only_pending_messages(pair: Pair) -> None:
    """Only matching messages that exist count against the capacity of the target."""
    rows: list[Row] = [(b"s.%d" % (n % 10), b"", b"%d" % n) for n in range(1, 101)]
    pair.stream("leaf", "S", rows)
    pair.stream("hub", "T", max_msgs=10)
    pair.delete("leaf", "S", 3)
    pair.write_entry(origin={"filter_subjects": ["s.3"]})

    assert pair.run().copied == 9
    assert target_numbers(pair) == list(range(13, 100, 10))


def test_a_copy_into_itself_is_refused(pair: Pair) -> None:
    """A stream cannot be its own target."""
    pair.write_entry(target={"domain": "leaf", "stream": "S"})
    pair.stream("leaf", "S", numbered_rows(3))

    with pytest.raises(JsplanError, match="leaf/stream/S cannot be copied into itself"):
        pair.run()


def test_a_missing_target_is_refused(pair: Pair) -> None:
    """A missing target is named, with the command that creates it."""
    pair.stream("leaf", "S", numbered_rows(3))

    with pytest.raises(JsplanError, match="stream T in domain hub does not exist") as raised:
        pair.run()
    assert "jsplan apply" in str(raised.value.hint)


@pytest.mark.parametrize("domain", ["leaf", "hub"])
def test_a_stream_that_stores_every_subject(pair: Pair, domain: str) -> None:
    """A stream that would store each copied message again is named, and nothing is copied."""
    pair.ask(domain, "STREAM.CREATE.ALL", {"name": "ALL", "subjects": ["jsplan.>", "x.>"]})
    pair.stream("leaf", "S", numbered_rows(3))
    pair.stream("hub", "T")

    with pytest.raises(RefusedError, match=f"in domain {domain} stores every subject"):
        pair.run()
    assert pair.state(domain, "ALL")["messages"] == pair.state("hub", "T")["messages"] == 0
    pair.require_nothing_left()
