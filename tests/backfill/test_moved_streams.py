"""Nothing is copied twice where a stream of a backfill is moved, or replaced and kept."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import Address
from tests.backfill.backfill_pair import (
    Pair,
    interrupt_run,
    numbered_rows,
    verify_counts,
    without_spark,
)
from tests.support.simulated_kill import SimulatedKill, kill_before_phase
from tests.support.state import read_state
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.matrix, pytest.mark.since_2_12]

Body = dict[str, Any]
REPLACED: Body = {"storage": "memory", "max_age": "90d", "lifecycle": {"on_replace": "preserve"}}
#: Publishers wait for a moment, and readers follow.
ALLOWED = ("REMOVES_SUBJECTS", "BREAKS_REPLICATION")
#: What a plan changes of origin and target.
CHANGES: dict[str, tuple[Body, Body]] = {
    "origin moved": ({"domain": "hub"}, {}),
    "target moved": ({}, {"domain": "leaf"}),
    "both moved": ({"domain": "hub"}, {"domain": "leaf"}),
    "origin renamed": ({"name": "S2"}, {}),
    "target renamed": ({}, {"name": "T2"}),
    "origin replaced": (REPLACED, {}),
    "target replaced": ({}, REPLACED),
}
#: Those that `make test` plays; the soak plays all.
SOME = {
    ("origin moved", "done", ""),
    ("origin replaced", "interrupted", ""),
    ("target moved", "done", "source"),
    ("target renamed", "interrupted", "source"),
}


def list_cases() -> Iterator[Any]:
    """Yield each change, after a copy that is done or not, without and with a source.

    A stream with a source is not moved in the same plan as the origin of that.
    """
    for case in product(CHANGES, ("done", "interrupted"), ("", "source")):
        if (case[0], case[2]) != ("both moved", "source"):
            yield pytest.param(*case, marks=() if case in SOME else pytest.mark.soak)


class Moving:
    """Streams that the files declare, `S` with 20 messages, and the entry `x` for both."""

    def __init__(self, pair: Pair, **target: Any) -> None:
        self.pair = pair
        self.origin: Body = {"name": "S", "domain": "leaf", "subjects": ["s.>"]}
        self.target: Body = {"name": "T", "domain": "hub", "subjects": ["t.>"]} | target
        pair.space.write(streams=[self.origin]).apply()
        pair.publish("leaf", numbered_rows(20))
        pair.space.write(streams=[self.origin, self.target]).apply()
        self.write()

    def write(self, *relocate: dict[str, str]) -> None:
        """Write the files."""
        sides = [{"domain": s["domain"], "stream": s["name"]} for s in (self.origin, self.target)]
        self.pair.space.write(
            streams=[self.origin, self.target],
            backfills=[{"name": "x", "from": sides[0], "to": sides[1]}],
            relocate=list(relocate),
        )

    def change(self, origin: Body, target: Body) -> None:
        """Write the files with other fields of the streams."""
        moves = []
        for stream, fields in ((self.origin, origin), (self.target, target)):
            before = f"{stream['domain']}/stream/{stream['name']}"
            stream.update(fields)
            after = f"{stream['domain']}/stream/{stream['name']}"
            moves += [{"from": before, "to": after}] if after != before else []
        for source in self.target.get("sources", ()):
            source |= {"name": self.origin["name"], "domain": self.origin["domain"]}
        self.write(*moves)

    def apply(self, **options: Any) -> None:
        """Apply, with the copies of the plan."""
        with without_spark():
            _, result = self.pair.space.apply(allow_hazards=ALLOWED, **options)
        assert result.exit_code == 0, result

    def numbers(self) -> list[int]:
        """Return the numbers of the messages of the target."""
        stored = self.pair.stored(self.target["domain"], self.target["name"])
        return sorted(int(message.data) for message in stored)


@pytest.mark.parametrize(("what", "copied", "source"), list(list_cases()))
def test_a_copy_after_a_change(
    what: str,
    copied: str,
    source: str,
    pair: Pair,
    server_version: tuple[int, ...],
) -> None:
    """A run knows what the target has, by copies and by a source, whatever the streams were.

    The range of a stream that was replaced stays the pinned one.
    """
    if source and server_version < (2, 15):
        return  # before, no server says how far the sources of a stream are
    sources = {"sources": [{"name": "S", "domain": "leaf", "opt_start_seq": 11}]} if source else {}
    moving = Moving(pair, **sources)
    wait_until(lambda: len(moving.numbers()) == (10 if source else 0), "the source to copy")
    if copied == "done":
        pair.run()
    else:
        interrupt_run(pair, 8)
    pair.publish("leaf", numbered_rows(5, first=21))
    moving.change(*CHANGES[what])

    moving.apply()

    wait_until(lambda: len(moving.numbers()) >= (25 if source else 20), "all of it")
    assert pair.run().copied == 0
    pair.run(reset_range=True)
    assert moving.numbers() == list(range(1, 26))


@pytest.mark.soak
@pytest.mark.parametrize("what", ["both moved", "origin replaced"])
def test_verify_after_a_change(what: str, pair: Pair, spark: SparkSession) -> None:
    """A comparison knows copies under each name, and those before a move are in order."""
    moving = Moving(pair)
    pair.run()
    pair.publish("leaf", numbered_rows(5, first=21))
    moving.change(*CHANGES[what])
    moving.apply()
    pair.run(reset_range=True)

    assert verify_counts(pair.space.load) == {"equal": 25}


@pytest.mark.parametrize("what", ["origin moved", "origin replaced"])
def test_an_archive_after_a_change(what: str, pair: Pair) -> None:
    """An archive of two streams continues under the name that it has for the stream."""
    moving = Moving(pair)

    def write(copies: list[Body]) -> None:
        pair.space.write(streams=[moving.origin, moving.target], backfills=copies)

    def archive() -> Body:
        sides = [
            {"domain": s["domain"], "stream": s["name"]} for s in (moving.origin, moving.target)
        ]
        return {"name": "x", "from": sides, "to": {"parquet": "archive"}}

    write([archive()])
    assert [one.copied for one in pair.result().origins] == [20, 0]
    pair.publish("leaf", numbered_rows(5, first=21))
    moving.change(*CHANGES[what])
    moving.apply(backfill=False)
    write([archive()])

    assert [one.copied for one in pair.result(reset_range=True).origins] == [5, 0]
    assert [one.copied for one in pair.result().origins] == [0, 0]
    back = {"name": "x", "from": {"parquet": "archive"}, "to": {"domain": "hub", "stream": "T"}}
    write([back])
    assert sum(one.copied for one in pair.result().origins) == 25
    write([archive() | {"from": archive()["from"][0], "to": back["to"]}])
    assert pair.run().copied == 0


def test_a_move_that_died(pair: Pair) -> None:
    """State has the former address of a stream once it is moved, also where the apply died."""
    moving = Moving(pair)
    assert pair.run().copied == 20
    moving.change(*CHANGES["origin moved"])
    with kill_before_phase("activated"), pytest.raises(SimulatedKill):
        moving.apply()

    moving.apply()
    moving.change({"description": "changed later"}, {})
    moving.apply()

    entry = read_state(pair.space.folder).resources[Address.parse("hub/stream/S")]
    assert [one["address"] for one in entry.former] == ["leaf/stream/S"]
    assert pair.run(reset_range=True).copied == 0


def test_another_stream_at_the_former_address(pair: Pair) -> None:
    """A new stream at the old address is another one, and a source brings what that has."""
    moving = Moving(pair)
    pair.run()
    moving.change(*CHANGES["origin moved"])
    moving.apply()
    other = {"name": "S", "domain": "leaf", "subjects": ["other.>"]}
    moving.target["sources"] = [{"name": "S", "domain": "leaf"}]
    streams = [moving.origin, moving.target, other]
    pair.space.write(streams=streams).apply()
    pair.publish("leaf", [(b"other.x", b"", b"%d" % number) for number in range(101, 131)])
    wait_until(lambda: len(moving.numbers()) == 50, "the source to copy")
    pair.publish("leaf", numbered_rows(5, first=21))

    command: Body = {"name": None, "origin": "hub/stream/S", "target": "hub/stream/T"}
    assert pair.run(**command).copied == 5
    assert moving.numbers() == [*range(1, 26), *range(101, 131)]


def test_a_stream_that_took_the_name_of_another(pair: Pair) -> None:
    """A source may have brought messages of the stream that had the name before it."""
    moving = Moving(pair)
    other = {"name": "S", "domain": "hub", "subjects": ["other.>"]}
    moving.target["sources"] = [{"name": "S", "domain": "hub"}]
    pair.space.write(streams=[moving.origin, moving.target, other]).apply()
    pair.publish("hub", [(b"other.x", b"", b"%d" % number) for number in range(101, 131)])
    wait_until(lambda: len(moving.numbers()) == 30, "the source to copy")
    del moving.target["sources"]
    pair.space.write(streams=[moving.origin, moving.target])
    deleting = ("DELETES_STREAM", "BREAKS_REPLICATION", "DELETES_MESSAGES")
    pair.space.apply(allow_hazards=deleting)
    moving.change(*CHANGES["origin moved"])
    moving.apply(backfill=False)

    assert pair.run().copied == 20
    assert moving.numbers() == [*range(1, 21), *range(101, 131)]
