from __future__ import annotations

import shutil
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from jsplan.backfill.seq_ranges import count_sequences
from jsplan.backfill.tasks import partition_writer, staging_streams
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.origin_task import OriginTask
from jsplan.backfill.tasks.partitioning import PartitionPlan, ReadChunk, assign_partitions
from jsplan.errors import ApiError, RefusedError, UsageError
from jsplan.planning.backfill.model import SeqRange
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
    """Hub and leaf without a stream; an entry copies `S` of the leaf into `T` by subject."""
    return Pair.create(tmp_path, clean_hub_leaf, order="subject")


def spread_rows(count: int, subjects: int = 7, name: str = "s") -> list[Row]:
    """Return so many messages that hold their number, on so many subjects."""
    return [
        (b"%s.%d" % (name.encode(), n * n % subjects), b"", b"%d" % n) for n in range(1, count + 1)
    ]


def require_copied(
    pair: Pair, origin: str = "S", others: int = 0, seqs: Sequence[int] | None = None
) -> list[StoredMessage]:
    """Require each message once and unchanged, in order of each subject; return the copies."""
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
    """Write an entry with these streams of the leaf as its origins."""
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
def test_order_of_an_entry(pair: Pair, order: str) -> None:
    """Two writers copy each message once, with the order that the entry wants."""
    pair.write_entry(order=order)
    pair.stream("leaf", "S", spread_rows(300))
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
    """All partitions are attached to the target in one update, and detached in one.

    With each update the server reads through all messages of the target.
    """
    pair.stream("leaf", "S", spread_rows(300))
    pair.stream("hub", "T", [(b"t.a", b"", b"own")])
    sources: list[int] = []
    real = staging_streams._update_sources  # noqa: SLF001 - the function that requests an update

    async def record_update(
        api: Any, stream: str, config: dict[str, Any], wanted: list[dict[str, Any]]
    ) -> None:
        sources.append(len(wanted))
        await real(api, stream, config, wanted)

    monkeypatch.setattr(staging_streams, "_update_sources", record_update)

    assert pair.run().copied == 300
    assert sources == [2, 0]
    require_copied(pair, others=1)


def test_a_repair_copies_what_is_missing(pair: Pair) -> None:
    """A repair copies what was deleted at the target; what is gone at the origin is a gap."""
    pair.stream("leaf", "S", spread_rows(60))
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
    """Messages that a source of the target brings are not copied."""
    pair.stream("leaf", "S", spread_rows(40))
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
    """A message that the target refuses stops the copy before any write, or is skipped."""
    pair.stream("leaf", "S", [*spread_rows(10), (b"s.1", b"", b"y" * (1 << 20))])
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
    """A run that dies before any write is completed by the next, in order of each subject.

    Every second write is tried.
    """
    pair.stream("leaf", "S", spread_rows(60))
    after, died = 0, True
    while died:
        pair.stream("hub", "T", [(b"t.a", b"", b"own")])
        died = False
        with kill_after(after) as kill:
            try:
                pair.run()
            except SimulatedKill:
                died = True
        assert kill.done == after or not died
        pair.run()

        require_copied(pair, others=1)
        pair.ask("hub", "STREAM.DELETE.T")
        shutil.rmtree(pair.space.folder / "state")
        after += 2
    # The record, two staging streams, each sealed, attached, removed, detached, the record.
    assert after > 12


def test_dying_partitions_keep_the_order(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each subject stays in order although the writers die repeatedly at different places."""
    pair.stream("leaf", "S", spread_rows(400, subjects=11))
    pair.stream("hub", "T")
    write = partition_writer.PartitionWriter.write
    with monkeypatch.context() as patch:

        def write_and_die(self: Any, origin_number: int, rows: Any) -> int:
            part = max(1, rows.num_rows // (3 + self._number))
            write(self, origin_number, rows.slice(0, part))
            self._publisher.finish()
            raise SimulatedKill

        patch.setattr(partition_writer.PartitionWriter, "write", write_and_die)
        for _ in range(4):
            with pytest.raises(SimulatedKill):
                pair.run()
    before = pair.state("hub", "T")["messages"]

    found = pair.run()

    assert 0 < before < 400
    assert found.verified
    require_copied(pair)


def test_a_writer_beside_another(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A staging stream that another attempt has begun is not written to, but resumed."""
    pair.stream("leaf", "S", spread_rows(50))
    pair.stream("hub", "T")
    monkeypatch.setattr(partition_writer, "PartitionWriter", _ContendedWriter)

    found = pair.run()

    assert (found.verified, found.attempts) == (True, 2)
    require_copied(pair)


_PartitionWriter = partition_writer.PartitionWriter


class _ContendedWriter(_PartitionWriter):
    """A partition that another process has begun, in the first attempt."""

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
    """Twenty streams are copied in two partitions, once and in order, and a rerun is empty."""
    names = [f"S{number:02d}" for number in range(20)]
    for number, name in enumerate(names):
        pair.stream("leaf", name, spread_rows(10 + number, name=name.lower()))
    pair.stream("hub", "T", [(b"t.a", b"", b"own")])
    write_origins(pair, names, order=order)

    found = pair.result()

    assert [origin.copied for origin in found.origins] == [10 + number for number in range(20)]
    assert all(origin.verified for origin in found.origins)
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
    """Two hundred streams use one staging stream for each partition."""
    names = [f"S{number:03d}" for number in range(200)]
    for name in names:
        pair.stream("leaf", name, spread_rows(25, name=name.lower()))
    pair.stream("hub", "T")
    write_origins(pair, names)

    found = pair.result()

    assert found.copied == 200 * 25
    assert all(origin.verified and "in 2 partitions" in origin.path for origin in found.origins)
    seqs: dict[str, list[int]] = {}
    for _, _, headers, _ in read_all(pair.sandbox["hub"], "$JS.hub.API", "T"):
        _, stream, seq, _ = (
            headers.split(b"Jsplan-Origin: ")[1].split(b"\r\n")[0].decode().split("/")
        )
        seqs.setdefault(stream, []).append(int(seq))
    assert seqs == {name: list(range(1, 26)) for name in names}
    pair.require_nothing_left()


def test_dying_with_many_origins(pair: Pair) -> None:
    """A run over three origins that dies is completed by the next, once and in order."""
    names = ["S", "S2", "S3"]
    for name in names:
        pair.stream("leaf", name, spread_rows(30, name=name.lower()))
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
    """An offline origin is deferred and copied by the next run; the others are copied at once."""
    pair.stream("leaf", "S", spread_rows(20))
    pair.stream("hub", "H", spread_rows(20, name="h"))
    pair.stream("hub", "T")
    sides = [{"domain": "leaf", "stream": "S"}, {"domain": "hub", "stream": "H"}]
    pair.space.write(
        backfills=[{"name": "x", "from": sides, "to": {"domain": "hub", "stream": "T"}}]
    )
    pair.sandbox["leaf"].kill()
    planned = pair.space.plan()

    first, after = pair.result(), pair.space.plan()
    pair.start_leaf()
    begun = pair.state_record
    second = pair.result()

    assert [one.address for one in first.deferred] == ["leaf/stream/S"]
    assert [[end["stream"] for end in entry["from"]] for entry in planned.backfills] == [["H"]]
    assert (after.backfills, [one.address for one in after.deferred]) == ([], ["leaf/stream/S"])
    assert (first.copied, first.exit_code, begun["done_at"]) == (20, 0, "")
    assert (second.copied, second.deferred, bool(pair.state_record["done_at"])) == (20, [], True)
    require_copied(pair, others=20)


def test_no_origin_is_reachable(pair: Pair) -> None:
    """A run whose origins are all offline is an error, and nothing is pinned."""
    write_origins(pair, ["S", "S2"])
    pair.stream("hub", "T")
    pair.sandbox["leaf"].kill()

    with pytest.raises(ApiError):
        pair.result()
    pair.start_leaf()


# --- refused entries -------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"subject_transform": {"src": "s.*", "dest": "x.{{random(3)}}"}},
        "subject_transform: .* is not a supported function",
    ),
    ({"transform": "nothing.py"}, "transform 'nothing.py' is not FILE.py:FUNCTION"),
    ({"transform": "nothing.py:run"}, "nothing.py cannot be read"),
    ({"order": "subject", "strategy": "snapshot"}, "servers copy messages unchanged"),
]


@pytest.mark.parametrize(("entry", "message"), REFUSED, ids=str)
def test_invalid_entries_are_refused(pair: Pair, entry: dict[str, Any], message: str) -> None:
    """An invalid entry is refused before any request."""
    pair.write_entry(**entry)

    with pytest.raises(UsageError, match=message), without_spark():
        backfill.run(pair.space.load, BackfillOptions(name="x"), RecordingObserver())
    with pytest.raises(UsageError, match=message):
        backfill.plan(pair.space.load, BackfillOptions(name="x"))


def test_a_subject_transform(pair: Pair) -> None:
    """Subjects change where they match the transform, and are unchanged elsewhere."""
    pair.write_entry(subject_transform={"src": "s.*.>", "dest": "new.{{wildcard(1)}}.>"})
    pair.stream("leaf", "S", [(b"s.a.b", b"", b"1"), (b"s.c", b"", b"2"), (b"s.d.e.f", b"", b"3")])
    pair.stream("hub", "T")

    found = pair.run()

    assert found.verified
    assert [one.subject for one in pair.stored("hub", "T")] == ["new.a.b", "s.c", "new.d.e.f"]
    assert pair.run().copied == 0


# --- distribution ----------------------------------------------------------------------------------------------------


def test_partitions_are_balanced() -> None:
    """Origins of any size are distributed evenly, the same way each time."""
    sizes = [1000, 10, 10, 500, 490, 20]
    found = assign_partitions(sizes, 2)

    load = np.bincount(found, weights=sizes)
    assert sorted(load.tolist()) == [1010, 1020]
    assert found == assign_partitions(sizes, 2)


def test_every_sequence_is_in_one_chunk() -> None:
    """Any number of chunks covers the ranges without overlap."""
    endpoint, spans = (
        Endpoint("c", "$JS.API"),
        (SeqRange(5, 90_000), SeqRange(100_000, 100_001), SeqRange(200_000, 500_000)),
    )
    tasks = tuple(OriginTask(endpoint, "d", f"S{n}", spans, ()) for n in range(3))
    job = PartitionPlan((), tasks)
    for most in (1, 2, 7, 40):
        found: list[ReadChunk] = job.split_into_chunks(most)
        for number in range(3):
            parts = [
                span for chunk in found if chunk.origin_number == number for span in chunk.spans
            ]
            assert count_sequences(parts) == count_sequences(spans)
            assert parts == sorted(parts)
            assert all(one.last < other.first for one, other in pairwise(parts))
