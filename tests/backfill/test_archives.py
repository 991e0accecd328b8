"""Archives: streams into Parquet and back, killed runs, and other readers of the folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from jsplan.backfill.parquet import reader
from jsplan.backfill.parquet.log import Archive
from jsplan.backfill.parquet.object_store import ObjectFolder
from jsplan.backfill.parquet.store import ArchiveError, LocalFolder
from jsplan.backfill.protocol import MESSAGE_SCHEMA
from jsplan.backfill.tasks import archive_writer
from jsplan.backfill.tasks.archive_writer import ExportChunk
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.errors import ApiError, JsplanError, NotAvailableError, RefusedError, UsageError
from jsplan.planning.backfill.model import SeqRange
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions, VerifyOptions
from tests.backfill.backfill_pair import (
    Pair,
    create_bulk_stream,
    numbered_rows,
    read_all,
    with_nanoseconds,
    without_spark,
)
from tests.backfill.process_kills import SparkWorkers
from tests.backfill.test_reading import EDGES
from tests.support.process import PROGRAM
from tests.support.s3_server import BUCKET
from tests.support.simulated_kill import SimulatedKill
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from jsplan.backfill.parquet.store import ArchiveStore
    from jsplan.documents.backfill import OriginResult, Verification
    from jsplan.sandbox import Sandbox

ORIGIN: dict[str, Any] = {"domain": "leaf", "stream": "S"}
OUT: dict[str, Any] = {"name": "out", "from": ORIGIN, "to": {"parquet": "archive"}}
BACK: dict[str, Any] = {
    "name": "back",
    "from": {"parquet": "archive"},
    "to": {"domain": "hub", "stream": "T"},
}


#: Runs a test with the archive in a folder, and with the archive in a bucket.
in_both_places = pytest.mark.parametrize("pair", ["folder", "bucket"], indirect=True)
in_a_bucket = pytest.mark.parametrize("pair", ["bucket"], indirect=True)


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Hub and leaf without a stream; `out` archives `S` of the leaf, `back` reads it into `T`.

    The archive is in a folder, or where the parameter says in a bucket of its own path.
    """
    found = Pair.create(tmp_path, clean_hub_leaf)
    if getattr(request, "param", "folder") == "bucket":
        request.getfixturevalue("object_store")
        found.archive = f"s3://{BUCKET}/{uuid.uuid4().hex}/archive"
    write_entries(found)
    return found


def write_entries(
    pair: Pair, out: dict[str, Any] | None = None, back: dict[str, Any] | None = None
) -> None:
    """Write both entries with these changes."""
    place = {"parquet": pair.archive}
    pair.space.write(
        backfills=[OUT | {"to": place} | (out or {}), BACK | {"from": place} | (back or {})]
    )


def run(pair: Pair, name: str, **options: Any) -> OriginResult:
    """Run an entry of one origin, without Spark."""
    with without_spark():
        return backfill.run(
            pair.space.load, BackfillOptions(name=name, **options), RecordingObserver()
        ).origins[0]


def archive_folder(pair: Pair) -> Path:
    """Return the folder of the archive."""
    return pair.space.folder / "archive"


def archive_store(pair: Pair) -> ArchiveStore:
    """Return the place of the archive."""
    _, is_url, path = pair.archive.partition(f"s3://{BUCKET}/")
    return ObjectFolder(f"s3://{BUCKET}", path) if is_url else LocalFolder(archive_folder(pair))


def day_files(pair: Pair) -> list[str]:
    """Return the names of the files that readers see."""
    return sorted(name for name in archive_store(pair).list() if name.startswith("day="))


def archived_rows(pair: Pair, *columns: str) -> list[dict[str, Any]]:
    """Read all files of the archive with pyarrow, sorted by sequence; by default all columns."""
    found: list[dict[str, Any]] = []
    for name in day_files(pair):
        with archive_store(pair).open(name) as file:
            rows = pq.ParquetFile(file).read([*columns] or None).to_pylist()
        found += [row | {"day": name[4:14]} for row in rows]
    return sorted(found, key=lambda row: row["seq"])


def left_attempts(pair: Pair) -> set[str]:
    """Return the folders of attempts that have files."""
    names = archive_store(pair).list()
    return {name.split("/")[1] for name in names if name.startswith("_jsplan/attempt-")}


def finished_chunks(pair: Pair) -> set[str]:
    """Return the receipts of chunks that attempts have finished.

    While a bucket moves one, two attempts have it.
    """
    names = archive_store(pair).list()
    return {name.rpartition("/")[2] for name in names if "/piece-" in name}


def require_archived(pair: Pair, *seqs: int) -> None:
    """Require exactly these messages in the archive, once, and no rest of an attempt."""
    assert [row["seq"] for row in archived_rows(pair)] == list(seqs)
    assert "_SUCCESS" in archive_store(pair).list()
    assert not left_attempts(pair)
    Archive.read(archive_store(pair)).require_complete()


# --- round trip -----------------------------------------------------------------------------------------------------


@in_both_places
@pytest.mark.matrix
def test_archive_round_trip(pair: Pair) -> None:
    """Each byte of subjects, headers and payloads comes back, with the header of its origin."""
    pair.stream("leaf", "S", EDGES)
    pair.stream("hub", "T", [(b"t.own", b"", b"before")])

    out = run(pair, "out")
    back = run(pair, "back")

    assert (out.copied, out.verified, out.gaps) == (len(EDGES), True, [])
    assert (back.copied, back.verified, back.gaps) == (len(EDGES), True, [])
    pair.require_copied(others=1)


def test_columns_of_an_archive(pair: Pair) -> None:
    """A row has the identity, time, timestamp, headers and day of one message."""
    pair.stream(
        "leaf",
        "S",
        [
            (b"s.a", b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n", b"x"),
            (b"s.b", b"NATS/1.0\r\nodd:3\r\n\r\n", b""),
        ],
    )
    (first, second) = pair.stored("leaf", "S")

    run(pair, "out")

    one, two = archived_rows(pair)
    assert (one["domain"], one["stream"], one["seq"], one["subject"], one["data"]) == (
        "leaf",
        "S",
        1,
        "s.a",
        b"x",
    )
    assert one["headers"] == [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    assert (one["raw_headers"], two["raw_headers"]) == (None, b"NATS/1.0\r\nodd:3\r\n\r\n")
    assert one["origin"] == f"leaf/S/1/{with_nanoseconds(first.time)}"
    assert str(one["time"] % 10**9).zfill(9) == with_nanoseconds(first.time)[20:29]
    assert one["timestamp"].isoformat()[:23] == with_nanoseconds(first.time)[:23]
    assert str(two["day"]) == second.time[:10]
    assert [path.name for path in archive_folder(pair).glob("day=*")] == sorted(
        {f"day={first.time[:10]}", f"day={second.time[:10]}"}
    )


def test_spark_and_pyarrow_read_an_archive(pair: Pair, spark: SparkSession) -> None:
    """Spark and pyarrow read the same rows from the folder of an archive."""
    pair.stream("leaf", "S", numbered_rows(7))
    run(pair, "out")

    frame = spark.read.parquet(str(archive_folder(pair)))
    found = (
        frame.selectExpr("seq", "headers", "CAST(data AS STRING) AS text", "timestamp", "day")
        .orderBy("seq")
        .collect()
    )

    assert [(row.seq, row.text, row.headers) for row in found] == [
        (n, str(n), []) for n in range(1, 8)
    ]
    assert [row.timestamp for row in found] == sorted(row.timestamp for row in found)
    assert frame.schema["day"].dataType.typeName() == "date"
    assert pq.read_table(archive_folder(pair)).num_rows == frame.count() == 7


@in_both_places
def test_a_target_with_part_of_the_archive(pair: Pair) -> None:
    """Messages that were copied from the origin itself are not copied again from the archive."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    pair.space.write(
        backfills=[
            OUT | {"to": {"parquet": pair.archive}},
            BACK | {"from": {"parquet": pair.archive}},
            {"name": "x", "from": ORIGIN | {"end_seq": 12}, "to": BACK["to"]},
        ]
    )
    run(pair, "out")
    run(pair, "x")

    assert run(pair, "back").copied == 8
    assert run(pair, "back").copied == 0
    pair.require_copied()


def test_an_archive_of_a_deleted_origin(pair: Pair) -> None:
    """An archive is restored without its origin, in a workspace that never knew the origin."""
    pair.stream("leaf", "S", numbered_rows(20))
    before = pair.stored("leaf", "S")
    run(pair, "out")
    pair.ask("leaf", "STREAM.DELETE.S")
    pair.stream("hub", "T")
    pair.space.base["domains"] = {"hub": {"connection": "hub"}}
    pair.space.write(backfills=[BACK])

    found = run(pair, "back")

    assert (found.copied, found.verified, found.origin) == (20, True, "leaf/stream/S")
    assert [one.origin for one in pair.stored("hub", "T")] == [
        f"leaf/S/{one.seq}/{with_nanoseconds(one.time)}" for one in before
    ]


@in_both_places
@pytest.mark.parametrize("filters", [[], ["s.a"]])
def test_gaps_are_reported(pair: Pair, filters: list[str]) -> None:
    """Messages that were gone before the archive was written are gaps of archive and copy."""
    write_entries(pair, {"from": ORIGIN | ({"filter_subjects": filters} if filters else {})})
    pair.stream("leaf", "S", [(b"s.a" if n % 2 else b"s.b", b"", b"%d" % n) for n in range(1, 11)])
    pair.stream("hub", "T")
    pair.delete("leaf", "S", 3, 4, 7)

    out, back = run(pair, "out"), run(pair, "back")

    assert (out.gaps, out.gap_messages) == (back.gaps, back.gap_messages) == ([[3, 4], [7, 7]], 3)
    assert run(pair, "out").gaps == out.gaps
    pair.require_copied(seqs=[1, 5, 9] if filters else [1, 2, 5, 6, 8, 9, 10])


def test_messages_of_another_entry_are_no_gap(pair: Pair) -> None:
    """Messages that another entry has archived are not missing, also if they are deleted since."""
    write_entries(pair, {"from": ORIGIN | {"filter_subjects": ["s.a"]}})
    pair.stream("leaf", "S", [(b"s.a" if n % 2 else b"s.b", b"", b"%d" % n) for n in range(1, 11)])
    assert run(pair, "out").gap_messages == 0
    pair.delete("leaf", "S", 3, 4)

    for filters in ({"filter_subjects": ["s.>"]}, {}):
        write_entries(pair, {"from": ORIGIN | filters})
        assert run(pair, "out").gaps == [[4, 4]]
    require_archived(pair, 1, 2, 3, *range(5, 11))


@in_both_places
def test_a_wider_range_adds_messages(pair: Pair) -> None:
    """`--reset-range` and other filters add the messages that the archive lacks, once."""
    write_entries(pair, {"from": ORIGIN | {"filter_subjects": ["s.a"]}})
    pair.stream("leaf", "S", [(b"s.a" if n % 2 else b"s.b", b"", b"%d" % n) for n in range(1, 11)])
    assert run(pair, "out").copied == 5
    assert run(pair, "out").copied == 0
    pair.publish("leaf", [(b"s.a", b"", b"11")])
    assert run(pair, "out", reset_range=True).copied == 1
    write_entries(pair)
    assert run(pair, "out").copied == 5
    require_archived(pair, *range(1, 12))

    pair.stream("hub", "T")
    run(pair, "back")
    pair.require_copied()


@in_both_places
def test_apply_archives_once(pair: Pair) -> None:
    """A plan lists an archive and its restore, apply runs both, and the next plan is empty."""
    pair.stream("leaf", "S", numbered_rows(5))
    pair.stream("hub", "T")
    ends = [
        (
            [{key: end[key] for key in end if key != "range"} for end in one["from"]],
            one["to"],
            one["messages"],
        )
        for one in pair.space.plan().backfills
    ]
    assert ends == [
        ([ORIGIN], {"parquet": pair.archive}, 5),
        ([{"parquet": pair.archive}], {"domain": "hub", "stream": "T"}, None),
    ]

    with without_spark():
        _, result = pair.space.apply()

    assert [(one["name"], one["status"], one["copied"]) for one in result.backfills] == [
        ("out", "done", 5),
        ("back", "done", 5),
    ]
    assert pair.space.plan().backfills == []
    pair.require_copied()


def test_an_archive_of_two_origins(pair: Pair) -> None:
    """An archive of two origins is refused until it is complete, and is restored per origin."""
    pair.stream("leaf", "S", numbered_rows(5))
    pair.stream("hub", "O", numbered_rows(4, subject=b"o.x"))
    pair.stream("hub", "T")
    write_entries(pair, {"from": [ORIGIN, {"domain": "hub", "stream": "O"}]})
    pair.ask("hub", "STREAM.DELETE.O")
    with pytest.raises(ApiError):
        run(pair, "out")
    pair.stream("hub", "O", numbered_rows(4, subject=b"o.x"))

    with without_spark():
        result = backfill.run(pair.space.load, BackfillOptions(name="out"), RecordingObserver())
        back = backfill.run(pair.space.load, BackfillOptions(name="back"), RecordingObserver())

    assert [(origin.origin, origin.copied) for origin in result.origins] == [
        ("leaf/stream/S", 5),
        ("hub/stream/O", 4),
    ]
    assert [(origin.origin, origin.copied) for origin in back.origins] == [
        ("leaf/stream/S", 5),
        ("hub/stream/O", 4),
    ]
    assert len(pair.stored("hub", "T")) == 9


DAY = 86_400 * 10**9


def test_messages_are_in_the_folder_of_their_day(tmp_path: Path) -> None:
    """Each message is in the folder of its UTC day, in the order of the stream.

    The order holds also where a clock went back at midnight.
    """
    midnight = 20_000 * DAY
    times = [
        midnight - 2,
        midnight - 1,
        midnight,
        midnight - 1,
        midnight + 5,
        midnight + DAY - 1,
        midnight + DAY,
    ]
    texts = ([text] * len(times) for text in (b"s.x", b"", b""))
    messages = pa.RecordBatch.from_pydict(
        dict(zip(MESSAGE_SCHEMA.names, [range(1, len(times) + 1), times, *texts], strict=True)),
        schema=MESSAGE_SCHEMA,
    )
    piece = ExportChunk(
        Endpoint("c", "$JS.API"),
        "leaf",
        "S",
        SeqRange(1, len(times)),
        (),
        LocalFolder(tmp_path),
        "a",
    )

    files = archive_writer._DayFiles(piece)  # noqa: SLF001 - no client can choose the time of a message
    for start in range(0, len(times), 2):
        files.add(messages.slice(start, 2))
    files.close()

    assert [
        (file.name.partition("/")[0], file.rows, file.first_seq, file.last_seq)
        for file in files.done
    ] == [("day=2024-10-03", 3, 1, 4), ("day=2024-10-04", 3, 3, 6), ("day=2024-10-05", 1, 7, 7)]
    found = pa.Table.from_batches(
        reader.read_batches([(LocalFolder(tmp_path), file) for file in files.done])
    )
    assert (found["seq"].to_pylist(), found["time"].to_pylist()) == (list(range(1, 8)), times)


# --- killed runs -----------------------------------------------------------------------------------------------------

#: The calls by which a run changes a folder or a bucket.
STEPS: tuple[tuple[Any, str], ...] = (
    *((Path, name) for name in ("mkdir", "rename", "replace", "unlink", "touch")),
    (os, "link"),
    (shutil, "rmtree"),
    *((obstore, name) for name in ("put", "copy", "delete", "open_writer")),
)


def _kill_after_writes(patch: pytest.MonkeyPatch, after: int) -> list[int]:
    """Raise `SimulatedKill` after so many writes to the archive; return the count."""
    done = [0]

    def limit_calls(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            if any("archive" in str(arg) for arg in args):
                if done[0] >= after:
                    raise SimulatedKill
                done[0] += 1
            return real(*args, **options)

        return step

    for owner, name in STEPS:
        patch.setattr(owner, name, limit_calls(getattr(owner, name)))
    return done


@pytest.mark.parametrize(("pair", "first"), [("folder", 0), ("bucket", 1)], indirect=["pair"])
def test_dying_before_some_writes(pair: Pair, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that dies before a write leaves no duplicate, and the next run completes it.

    Readers find all messages, or some of them without `_SUCCESS`.
    """
    require_completed_after_deaths(pair, monkeypatch, first, 3)


@pytest.mark.soak
@in_both_places
def test_dying_before_any_write(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same before each write."""
    require_completed_after_deaths(pair, monkeypatch, 0, 1)


def require_completed_after_deaths(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, first: int, stride: int
) -> None:
    """Let runs die before the first write that is named and each `stride`-th after it."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    monkeypatch.setattr("jsplan.backfill.parquet_export.MIN_CHUNK_MESSAGES", 5)
    after, survived = first, False
    while not survived:
        with pytest.MonkeyPatch.context() as patch:
            _kill_after_writes(patch, after)
            try:
                run(pair, "out")
                survived = True
            except SimulatedKill:
                pass
        seqs = [row["seq"] for row in archived_rows(pair)]
        assert len(seqs) == len(set(seqs))
        if "_SUCCESS" in archive_store(pair).list():
            assert len(seqs) == 20
        elif len(seqs) < 20:
            with pytest.raises(ArchiveError):
                Archive.read(archive_store(pair)).require_complete()
        run(pair, "out")
        require_archived(pair, *range(1, 21))
        archive_store(pair).drop()
        shutil.rmtree(pair.space.folder / "state")
        after += stride
    assert after > 15


@in_both_places
def test_finished_chunks_are_resumed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that an interrupted attempt has finished are not read again."""
    pair.stream("leaf", "S", numbered_rows(20))
    monkeypatch.setattr("jsplan.backfill.parquet_export.MIN_CHUNK_MESSAGES", 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Archive, "commit", _raise_kill)
        with pytest.raises(SimulatedKill):
            run(pair, "out")
    (attempt,) = left_attempts(pair)
    place = archive_store(pair).below("_jsplan").below(attempt)
    place.delete("piece-6-10.json")
    (out, _) = backfill.status(pair.space.load).entries
    assert [(left.stream, left.messages) for left in out.orphans] == [(str(place), 15)]
    read: list[Any] = []
    monkeypatch.setattr(
        "jsplan.backfill.tasks.archive_writer.read",
        lambda connect, what: _record_reads(read, connect, what),
    )

    assert run(pair, "out").copied == 20
    assert read == [(6, 10)]
    require_archived(pair, *range(1, 21))


def _raise_kill(*_: Any) -> None:
    raise SimulatedKill


def _record_reads(read: list[Any], open_connection: Any, what: Any) -> Iterator[Any]:
    from jsplan.backfill.protocol import read as real  # noqa: PLC0415 - the name is taken here

    read.append((what.first, what.last))
    return real(open_connection, what)


@in_both_places
def test_two_workspaces_write_one_archive(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two workspaces that write the same stream to one folder adds nothing."""
    pair.stream("leaf", "S", numbered_rows(20))
    commit, other = Archive.commit, pair.space.folder / "other"
    other.mkdir()
    base = pair.space.base | {"workspace": "second"}
    document = base | {"backfills": [OUT | {"to": {"parquet": str(archive_store(pair))}}]}
    (other / "jsplan.yaml").write_text(json.dumps(document), "utf-8")

    def commit_after_other(self: Archive, what: Any) -> Archive:
        monkeypatch.setattr(Archive, "commit", commit)
        with without_spark():
            backfill.run(
                type(pair.space.load)(other), BackfillOptions(name="out"), RecordingObserver()
            )
        return commit(self, what)

    monkeypatch.setattr(Archive, "commit", commit_after_other)

    assert run(pair, "out").copied == 0
    require_archived(pair, *range(1, 21))


# --- changed folders -------------------------------------------------------------------------------------------------


@in_both_places
def test_a_missing_file_is_written_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive without one of its files is refused, and the next run writes the file again."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    pair.delete("leaf", "S", 7, 12)
    monkeypatch.setattr("jsplan.backfill.parquet_export.MIN_CHUNK_MESSAGES", 5)
    run(pair, "out")
    gap = run(pair, "out").gaps
    archive_store(pair).delete(day_files(pair)[1])

    with pytest.raises(ArchiveError, match=r"is not complete: day=\S+ is missing"):
        run(pair, "back")

    again = run(pair, "out")
    assert (again.copied, again.gaps, again.gap_messages) == (4, gap, 2)
    require_archived(pair, *(n for n in range(1, 21) if n not in {7, 12}))
    run(pair, "back")
    pair.require_copied()


@in_both_places
def test_a_changed_file_is_refused(pair: Pair) -> None:
    """A file with other content is named, and none of it reaches a stream."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    run(pair, "out")
    (name,) = day_files(pair)
    data = bytearray(archive_store(pair).read(name, 1 << 20))
    data[len(data) // 2] ^= 1
    archive_store(pair).write(name, bytes(data))

    with pytest.raises(
        RefusedError,
        match=r"S-000000000001-[\w-]+.parquet was changed after it was written: its sha256 differs",
    ):
        run(pair, "back")
    assert pair.stored("hub", "T") == []
    pair.require_nothing_left()
    archive_store(pair).write(name, b"short")
    with pytest.raises(ArchiveError, match=r"has 5 bytes, and [\d,]+ were written"):
        run(pair, "out")


def test_a_file_system_without_links(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without hard links is refused with a hint, and a later run resumes the attempt."""
    pair.stream("leaf", "S", numbered_rows(5))

    def unsupported(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", unsupported)
        with pytest.raises(
            ArchiveError, match=r"commit-000001.json: Operation not supported"
        ) as refused:
            run(pair, "out")
    assert "a file system with hard links" in (refused.value.hint or "")
    assert not Archive.read(archive_store(pair)).commits
    monkeypatch.setattr("jsplan.backfill.tasks.archive_writer.read", _raise_kill)
    assert run(pair, "out").copied == 5
    require_archived(pair, *range(1, 6))


@in_both_places
def test_unknown_files_are_refused(pair: Pair) -> None:
    """A folder with a file that is not in the log of the archive is refused."""
    pair.stream("leaf", "S", numbered_rows(2))
    pair.stream("hub", "T")
    store = archive_store(pair)
    archive_folder(pair).mkdir()
    store.write("mine.txt", b"mine")
    with pytest.raises(ArchiveError, match="is not empty, and is not an archive of jsplan"):
        run(pair, "out")
    store.delete("mine.txt")
    run(pair, "out")
    (known,) = day_files(pair)
    store.write(f"{known.partition('/')[0]}/again.parquet", store.read(known, 1 << 20))

    with pytest.raises(ArchiveError, match=r"again\.parquet is not in the log of the archive"):
        run(pair, "back")


def test_a_folder_that_workers_do_not_reach(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that does not reach the folder ends the run, and nothing is committed."""
    pair.stream("leaf", "S", numbered_rows(3))
    elsewhere = pair.space.folder / "elsewhere"
    real = archive_writer.export_chunks

    def export_elsewhere(pieces: tuple[ExportChunk, ...]) -> Iterator[dict[str, Any]]:
        return real(tuple(replace(piece, place=LocalFolder(elsewhere)) for piece in pieces))

    monkeypatch.setattr("jsplan.backfill.parquet_export.export_chunks", export_elsewhere)
    with pytest.raises(RefusedError, match=f"cannot write to {elsewhere}: No such file"):
        run(pair, "out")
    elsewhere.mkdir()
    with pytest.raises(
        JsplanError,
        match=r"a worker has written sequence 1 of leaf/stream/S, but it is not in ",
    ):
        run(pair, "out")
    assert not Archive.read(archive_store(pair)).commits


@pytest.mark.parametrize(
    ("out", "back", "kind", "words"),
    [
        ({"from": {"parquet": "a"}}, {}, UsageError, "from an archive to an archive"),
        ({"mode": "exact"}, {}, NotAvailableError, "an archive is written and read by Spark"),
        (
            {},
            {"from": [{"parquet": "a"}, {"domain": "leaf", "stream": "S"}]},
            UsageError,
            "mixes archives and streams",
        ),
        ({}, {"from": {"parquet": "nowhere"}}, ArchiveError, "nowhere is not an archive"),
    ],
)
def test_invalid_archive_entries_are_refused(
    pair: Pair, out: dict[str, Any], back: dict[str, Any], kind: type[JsplanError], words: str
) -> None:
    """An entry with an invalid place or combination is refused before anything is written."""
    write_entries(pair, out, back)
    pair.stream("hub", "T")
    with pytest.raises(kind, match=words):
        run(pair, "out" if out else "back")


# --- verify ----------------------------------------------------------------------------------------------------------


def verify(pair: Pair, name: str) -> Verification:
    """Run `verify` on the running Spark."""
    return backfill.verify(pair.space.load, VerifyOptions(name=name), RecordingObserver())


@in_both_places
def test_verify_names_missing_and_changed_messages(pair: Pair, spark: SparkSession) -> None:
    """Missing and changed messages are named in both directions; expired ones are not."""
    pair.stream("leaf", "S", EDGES + numbered_rows(20))
    pair.stream("hub", "T", [(b"t.own", b"", b"before")])
    run(pair, "out")
    run(pair, "back")
    total = len(EDGES) + 20

    back = verify(pair, "back")
    assert (back.origins[0].counts["equal"], back.differences, back.others) == (total, 0, 1)

    pair.delete("leaf", "S", 1, 2)
    pair.delete("hub", "T", 5)
    out = verify(pair, "out").origins[0].counts
    assert (out["equal"], out["expired"], sum(out.values())) == (total - 2, 2, total)
    archive_store(pair).delete(day_files(pair)[0])
    out = verify(pair, "out").origins[0].counts
    assert (out["missing"], sum(out.values())) == (total - 2, total - 2)
    assert run(pair, "out").gaps == [[1, 2]]
    back = verify(pair, "back")
    assert (
        back.exit_code,
        back.origins[0].counts["missing"],
        [one.origin_seq for one in back.origins[0].listed],
    ) == (2, 1, [4])


@in_both_places
@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_killed_drivers_and_workers(pair: Pair) -> None:
    """Each message is archived once although a driver and the workers of the next are killed."""
    count = 400_000
    create_bulk_stream(pair.sandbox["leaf"], "S", count)
    write_entries(pair, {"rate": "20MB/s"})
    command, log = [str(PROGRAM), "backfill", "run", "out"], pair.space.folder / "driver.log"

    for strike in (
        lambda process: process.kill(),
        lambda process: SparkWorkers.of_process(process.pid).kill(),
        None,
    ):
        before = len(finished_chunks(pair))
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=pair.space.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            while strike is not None and len(finished_chunks(pair)) <= before:
                assert process.poll() is None, log.read_text()
            if strike is not None:
                strike(process)
            assert process.wait(600) == (-9 if before == 0 and strike is not None else 0), (
                log.read_text()
            )
        finally:
            process.kill()
            process.wait()

    assert "messages of an earlier attempt" in log.read_text()
    require_archived(pair, *range(1, count + 1))


@in_both_places
@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_round_trip_of_half_a_million_messages(pair: Pair, spark: SparkSession) -> None:
    """500,000 messages come back from Parquet on Spark, unchanged."""
    require_round_trip(pair, 500_000)


@in_both_places
def test_round_trip_of_some_thousand_messages(pair: Pair, spark: SparkSession) -> None:
    """6,000 messages come back from Parquet on Spark, unchanged."""
    require_round_trip(pair, 6_000)


def require_round_trip(pair: Pair, count: int) -> None:
    """Archive so many messages, restore them, and compare every byte of both streams."""
    create_bulk_stream(pair.sandbox["leaf"], "S", count)
    pair.publish("leaf", EDGES)
    pair.stream("hub", "T")
    out, back = (
        backfill.run(pair.space.load, BackfillOptions(name=name), RecordingObserver()).origins[0]
        for name in ("out", "back")
    )

    assert (out.copied, out.verified, back.copied, back.verified) == (
        count + len(EDGES),
        True,
        count + len(EDGES),
        True,
    )
    times = {row["seq"]: row["origin"] for row in archived_rows(pair, "seq", "origin")}
    origin, target = (
        read_all(pair.sandbox["hub"], "$JS.leaf.API", "S"),
        read_all(pair.sandbox["hub"], "$JS.hub.API", "T"),
    )
    assert len(origin) == len(target) == count + len(EDGES)
    for (seq, *expected), (_, *found) in zip(origin, target, strict=True):
        block = b"".join(
            line + b"\r\n"
            for line in found[1].split(b"\r\n")[:-2]
            if not line.startswith((b"Jsplan-Origin:", b"Nats-Stream-Source:"))
        )
        line = next(line for line in found[1].split(b"\r\n") if line.startswith(b"Jsplan-Origin: "))
        assert line.decode() == f"Jsplan-Origin: {times[seq]}"
        assert [
            found[0],
            b"" if block == b"NATS/1.0\r\n" and not expected[1] else block + b"\r\n",
            found[2],
        ] == expected
