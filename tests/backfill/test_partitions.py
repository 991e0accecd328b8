from __future__ import annotations

import shutil
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from jsplan.backfill.seq_ranges import SeqRange, count_sequences
from jsplan.backfill.tasks import partition_writer, staging_sources
from jsplan.backfill.tasks.copy import CopyTask
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.partitioning import PartitionPlan, ReadChunk, assign_partitions
from jsplan.errors import ApiError, RefusedError, UsageError
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions
from tests.backfill.backfill_pair import (
    Pair,
    Row,
    StoredMessage,
    duplicated_origins,
    read_all,
    with_nanoseconds,
    without_spark,
)
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from jsplan.sandbox import Sandbox

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Hub and leaf without a stream, and an entry that copies `S` of the leaf into `T` of the hub by subject."""
    return Pair.create(tmp_path, clean_hub_leaf, order="subject")


def create_spread_stream(count: int, subjects: int = 7, name: str = "s") -> list[Row]:
    """So many messages that hold their number, on so many subjects."""
    return [
        (b"%s.%d" % (name.encode(), n * n % subjects), b"", b"%d" % n) for n in range(1, count + 1)
    ]


def require_copied(
    pair: Pair, origin: str = "S", others: int = 0, seqs: Sequence[int] | None = None
) -> list[StoredMessage]:
    """The target has every message of the origin once, as it was, those of each subject in their order; nothing is left."""
    there = [one for one in pair.stored("leaf", origin) if seqs is None or one.seq in seqs]
    target = pair.stored("hub", "T")
    copies = [one for one in target if (one.origin or "").startswith(f"leaf/{origin}/")]
    assert not duplicated_origins(copies)
    by_origin = {one.origin: one.without_added_headers for one in copies}
    assert by_origin == {
        f"leaf/{origin}/{one.seq}/{with_nanoseconds(one.time)}": one.without_added_headers
        for one in there
    }
    for subject in {one.subject for one in copies}:
        found = [int((one.origin or "").split("/")[2]) for one in copies if one.subject == subject]
        assert found == sorted(found), subject
    assert len(target) - len(copies) == others
    pair.require_nothing_left()
    return copies


def write_origins(pair: Pair, names: Sequence[str], **entry: Any) -> None:
    """An entry with these streams of the leaf as its origins."""
    pair.space.write(
        backfills=[
            {
                "name": "x",
                "from": [{"domain": "leaf", "stream": name} for name in names],
                "to": {"domain": "hub", "stream": "T"},
            }
            | entry
        ]
    )


# --- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("order", ["subject", "none"])
def test_an_order_of_its_own(pair: Pair, order: str) -> None:
    """Two writers, each with a staging stream: everything there once, each subject in its order; and nothing to do a second time."""
    pair.write_entry(order=order)
    pair.stream("leaf", "S", create_spread_stream(300))
    pair.stream("hub", "T", [(b"t.a", b"", b"own")])

    found, again = pair.run(), pair.run()

    assert (found.copied, found.verified, found.gaps) == (300, True, [])
    assert "in 2 partitions" in found.path
    assert (
        again.copied,
        pair.state_record["origins"][0]["status"],
        bool(pair.state_record["done_at"]),
    ) == (0, "done", True)
    if order == "subject":
        require_copied(pair, others=1)
    else:
        assert sorted(int(one.data) for one in pair.stored("hub", "T")[1:]) == list(range(1, 301))


def test_partitions_are_promoted_together(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target gets all lanes in one update, and loses them in one: with each its server looks through all that it has."""
    pair.stream("leaf", "S", create_spread_stream(300))
    pair.stream("hub", "T", [(b"t.a", b"", b"own")])
    sources: list[int] = []
    real = staging_sources._update_sources  # noqa: SLF001 - it is what asks for an update

    async def noted(
        api: Any, stream: str, config: dict[str, Any], wanted: list[dict[str, Any]]
    ) -> None:
        sources.append(len(wanted))
        await real(api, stream, config, wanted)

    monkeypatch.setattr(staging_sources, "_update_sources", noted)

    assert pair.run().copied == 300
    assert sources == [2, 0]
    require_copied(pair, others=1)


def test_a_repair_is_the_rest(pair: Pair) -> None:
    """What was deleted at the target, and what was gone at the origin: only the first is copied again, the second is a gap."""
    pair.stream("leaf", "S", create_spread_stream(60))
    pair.stream("hub", "T")
    pair.delete("leaf", "S", 4, 5)
    first = pair.run()
    pair.delete("hub", "T", 7, 20)

    again = pair.run()

    assert (first.copied, first.gaps, again.copied, again.gaps) == (58, [[4, 5]], 2, [[4, 5]])
    assert sorted(int(one.data) for one in pair.stored("hub", "T")) == [
        n for n in range(1, 61) if n not in (4, 5)
    ]


@pytest.mark.matrix
def test_part_of_the_range_came_by_a_source(pair: Pair) -> None:
    """What the target's own source of the origin has brought, or will, is not copied."""
    pair.stream("leaf", "S", create_spread_stream(40))
    pair.stream(
        "hub",
        "T",
        sources=[{"name": "S", "external": {"api": "$JS.leaf.API"}, "opt_start_seq": 21}],
    )
    pair.sandbox["hub"].wait_until(
        lambda: pair.state("hub", "T")["messages"] >= 20, "the source brought its messages"
    )

    assert pair.run().copied == 20
    assert sorted(int(one.data) for one in pair.stored("hub", "T")) == list(range(1, 41))


def test_too_large_in_a_partition(pair: Pair) -> None:
    """A message that the target does not take stops the copy before the target has anything, or is left out and named."""
    pair.stream("leaf", "S", [*create_spread_stream(10), (b"s.1", b"", b"y" * (1 << 20))])
    pair.stream("hub", "T")

    with pytest.raises(RefusedError, match="message 11 of stream S may have"):
        pair.run()
    assert pair.stored("hub", "T") == []
    pair.require_nothing_left()
    pair.write_entry(order="subject", oversize="skip")
    found = pair.run()

    assert (found.copied, found.skipped, found.gaps) == (10, [11], [])


@pytest.mark.matrix
def test_dying_before_any_write(pair: Pair) -> None:
    """However many writes (every second one is tried) a run in two partitions came to before it died: the next leaves every message there
    once, those of each subject in their order, and nothing of ours.
    """
    pair.stream("leaf", "S", create_spread_stream(60))
    after, died = 0, True
    while died:
        pair.stream("hub", "T", [(b"t.a", b"", b"own")])
        died = False
        with kill_after(after) as mortal:
            try:
                pair.run()
            except SimulatedKill:
                died = True
        assert mortal.done == after or not died
        pair.run()

        require_copied(pair, others=1)
        pair.ask("hub", "STREAM.DELETE.T")
        shutil.rmtree(pair.space.folder / "state")
        after += 2
    assert (
        after > 12
    )  # the record, two stages, each sealed, attached, removed, detached, the record


def test_dying_partitions_keep_the_order(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each writer dies after some of its messages, again and again, each time somewhere else: what went before comes in first, so each
    subject stays in its order.
    """
    pair.stream("leaf", "S", create_spread_stream(400, subjects=11))
    pair.stream("hub", "T")
    take = partition_writer.PartitionWriter.write
    with monkeypatch.context() as patch:

        def dying_take(self: Any, leg: int, rows: Any) -> int:
            part = max(1, rows.num_rows // (3 + self._number))
            take(self, leg, rows.slice(0, part))
            self._publisher.finish()
            raise SimulatedKill

        patch.setattr(partition_writer.PartitionWriter, "write", dying_take)
        for _ in range(4):
            with pytest.raises(SimulatedKill):
                pair.run()
    before = pair.state("hub", "T")["messages"]

    found = pair.run()

    assert 0 < before < 400
    assert found.verified
    require_copied(pair)


def test_a_writer_beside_another(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that another attempt has begun is not written to: the run takes over what is there, and goes on."""
    pair.stream("leaf", "S", create_spread_stream(50))
    pair.stream("hub", "T")
    monkeypatch.setattr(partition_writer, "PartitionWriter", _ContendedWriter)

    found = pair.run()

    assert (found.verified, found.attempts) == (True, 2)
    require_copied(pair)


_PartitionWriter = partition_writer.PartitionWriter


class _ContendedWriter(_PartitionWriter):
    """A lane that somebody else has begun, in the first attempt."""

    is_begun = 0

    def write(self, origin_number: int, rows: Any) -> int:
        if _ContendedWriter.is_begun == 0:
            _ContendedWriter.is_begun += 1
            other = _PartitionWriter(self._plan, self._number)
            other.write(origin_number, rows.slice(0, 3))
            other.finish()
            other.close()
        return super().write(origin_number, rows)


# --- many origins ----------------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("order", ["stream", "subject"])
def test_twenty_origins(pair: Pair, order: str) -> None:
    """Twenty streams into one target, in two partitions: everything is there once and in order; a second run finds nothing to do."""
    names = [f"S{number:02d}" for number in range(20)]
    for number, name in enumerate(names):
        pair.stream("leaf", name, create_spread_stream(10 + number, name=name.lower()))
    pair.stream("hub", "T", [(b"t.a", b"", b"own")])
    write_origins(pair, names, order=order)

    found = pair.result()

    assert [leg.copied for leg in found.origins] == [10 + number for number in range(20)]
    assert all(leg.verified for leg in found.origins)
    stored = pair.stored("hub", "T")
    for number, name in enumerate(names):
        mine = [one for one in stored if (one.origin or "").startswith(f"leaf/{name}/")]
        seqs = [int((one.origin or "").split("/")[2]) for one in mine]
        assert sorted(seqs) == list(range(1, 11 + number))
        if order == "stream":
            assert seqs == sorted(seqs)
    assert pair.result().copied == 0
    pair.require_nothing_left()


@pytest.mark.soak
def test_two_hundred_origins(pair: Pair) -> None:
    """Two hundred streams go in two partitions, with a staging stream for each lane and not for each stream."""
    names = [f"S{number:03d}" for number in range(200)]
    for name in names:
        pair.stream("leaf", name, create_spread_stream(25, name=name.lower()))
    pair.stream("hub", "T")
    write_origins(pair, names)

    found = pair.result()

    assert found.copied == 200 * 25
    assert all(leg.verified and "in 2 partitions" in leg.path for leg in found.origins)
    seqs: dict[str, list[int]] = {}
    for _, _, headers, _ in read_all(pair.sandbox["hub"], "$JS.hub.API", "T"):
        _, stream, seq, _ = (
            headers.split(b"Jsplan-Origin: ")[1].split(b"\r\n")[0].decode().split("/")
        )
        seqs.setdefault(stream, []).append(int(seq))
    assert seqs == {name: list(range(1, 26)) for name in names}
    pair.require_nothing_left()


def test_dying_with_many_origins(pair: Pair) -> None:
    """A run over three origins that dies here and there, and one that goes on: each message of each is there once, in order."""
    names = ["S", "S2", "S3"]
    for name in names:
        pair.stream("leaf", name, create_spread_stream(30, name=name.lower()))
    write_origins(pair, names)
    for after in (3, 5, 7):
        pair.stream("hub", "T")
        with kill_after(after), pytest.raises(SimulatedKill):
            pair.result()

        result = pair.result()

        for name in names:
            require_copied(pair, name, others=60)
        assert pair.state_record["done_at"], result
        pair.ask("hub", "STREAM.DELETE.T")
        shutil.rmtree(pair.space.folder / "state")


def test_an_offline_origin(pair: Pair) -> None:
    """It is left for later and named; the others are copied; the next run brings it, and only that."""
    pair.stream("leaf", "S", create_spread_stream(20))
    pair.stream("hub", "H", create_spread_stream(20, name="h"))
    pair.stream("hub", "T")
    sides = [{"domain": "leaf", "stream": "S"}, {"domain": "hub", "stream": "H"}]
    pair.space.write(
        backfills=[{"name": "x", "from": sides, "to": {"domain": "hub", "stream": "T"}}]
    )
    pair.sandbox["leaf"].kill()
    planned = pair.space.plan()

    first, after = pair.result(), pair.space.plan()
    pair.sandbox["leaf"].start()
    pair.sandbox["hub"].wait_until(
        lambda: pair.ask("leaf", "INFO")["streams"] == 1, "the leaf is back"
    )
    begun = pair.state_record
    second = pair.result()

    assert [one["address"] for one in first.deferred] == ["leaf/stream/S"]
    assert [[end["stream"] for end in entry["from"]] for entry in planned.backfills] == [["H"]]
    assert (after.backfills, [one.address for one in after.deferred]) == ([], ["leaf/stream/S"])
    assert (first.copied, first.exit_code, begun["done_at"]) == (20, 0, "")
    assert (second.copied, second.deferred, bool(pair.state_record["done_at"])) == (20, [], True)
    require_copied(pair, others=20)


def test_no_origin_is_reachable(pair: Pair) -> None:
    """Where every origin is away that is an error, and nothing was pinned."""
    write_origins(pair, ["S", "S2"])
    pair.stream("hub", "T")
    pair.sandbox["leaf"].kill()

    with pytest.raises(ApiError):
        pair.result()
    pair.sandbox["leaf"].start()


# --- what is refused -------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"subject_transform": {"src": "s.*", "dest": "x.{{random(3)}}"}},
        "subject_transform: .* is not a supported function",
    ),
    ({"transform": "nothing.py"}, "transform 'nothing.py' is not FILE.py:FUNCTION"),
    ({"transform": "nothing.py:run"}, "nothing.py cannot be read"),
    ({"order": "subject", "strategy": "native"}, "servers copy messages unchanged"),
]


@pytest.mark.parametrize(("entry", "message"), REFUSED, ids=str)
def test_what_cannot_be(pair: Pair, entry: dict[str, Any], message: str) -> None:
    """It is said before any server is asked."""
    pair.write_entry(**entry)

    with pytest.raises(UsageError, match=message), without_spark():
        backfill.run(pair.space.load, BackfillOptions(name="x"), RecordingObserver())


def test_a_subject_transform_without_any_order(pair: Pair) -> None:
    """Subjects change on the way, and only where they match; what a message would be called that has no subject is refused."""
    pair.write_entry(subject_transform={"src": "s.*.>", "dest": "new.{{wildcard(1)}}.>"})
    pair.stream("leaf", "S", [(b"s.a.b", b"", b"1"), (b"s.c", b"", b"2"), (b"s.d.e.f", b"", b"3")])
    pair.stream("hub", "T")

    found = pair.run()

    assert found.verified
    assert [one.subject for one in pair.stored("hub", "T")] == ["new.a.b", "s.c", "new.d.e.f"]
    assert pair.run().copied == 0


# --- how they are dealt ----------------------------------------------------------------------------------------------


def test_partitions_have_about_the_same() -> None:
    """Origins of any size are dealt so that no lane has much more than another, the same way each time."""
    sizes = [1000, 10, 10, 500, 490, 20]
    found = assign_partitions(sizes, 2)

    load = np.bincount(found, weights=sizes)
    assert sorted(load.tolist()) == [1010, 1020]
    assert found == assign_partitions(sizes, 2)


def test_every_sequence_is_in_one_piece() -> None:
    """However many parts are asked for, together they are the ranges, and none overlaps another."""
    way, spans = (
        Endpoint("c", "$JS.API"),
        (SeqRange(5, 90_000), SeqRange(100_000, 100_001), SeqRange(200_000, 500_000)),
    )
    legs = tuple(CopyTask(way, "d", f"S{n}", spans, (), way, "", "") for n in range(3))
    job = PartitionPlan((), legs)
    for most in (1, 2, 7, 40):
        found: list[ReadChunk] = job.split_into_chunks(most)
        for leg in range(3):
            parts = [span for piece in found if piece.origin_number == leg for span in piece.spans]
            assert count_sequences(parts) == count_sequences(spans)
            assert parts == sorted(parts)
            assert all(one.last < other.first for one, other in pairwise(parts))
