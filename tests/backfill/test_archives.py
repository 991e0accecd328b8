"""Archives: streams into Parquet and back, killed runs, and other readers of the folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from jsplan.backfill.parquet.manifest import Archive, ArchiveFile, Chunk
from jsplan.backfill.parquet.store import ArchiveError, LocalFolder, ObjectFolder
from jsplan.backfill.parquet_export import ParquetExport
from jsplan.backfill.tasks import archive_writer
from jsplan.backfill.tasks.partitioning import PartitionPlan
from jsplan.errors import ApiError, JsplanError, NotAvailableError, RefusedError, UsageError
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


def put_file(store: ArchiveStore, name: str, data: bytes) -> None:
    """Write a file, or replace it, as no run of jsplan does."""
    store.delete(name)
    file = store.open_new(name)
    file.write(data)
    file.close()


def data_files(pair: Pair) -> list[str]:
    """Return the names of the files that readers see."""
    return sorted(name for name in archive_store(pair).list() if name.endswith(".parquet"))


def archived_rows(pair: Pair, *columns: str) -> list[dict[str, Any]]:
    """Read all files of the archive with pyarrow, sorted by sequence; by default all columns."""
    found: list[dict[str, Any]] = []
    for name in data_files(pair):
        with archive_store(pair).open(name) as file:
            found += pq.ParquetFile(file).read([*columns] or None).to_pylist()
    return sorted(found, key=lambda row: row["seq"])


def require_archived(pair: Pair, *seqs: int) -> None:
    """Require exactly these messages in the archive, once, and no rest of a run."""
    assert [row["seq"] for row in archived_rows(pair)] == list(seqs)
    log = [name for name in archive_store(pair).list() if name.startswith("_")]
    assert [name.partition("-")[0] for name in log] == ["_jsplan/manifest"], log
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
    """A row has the identity, time, timestamp and headers of one message."""
    pair.stream(
        "leaf",
        "S",
        [
            (b"s.a", b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n", b"x"),
            (b"s.b", b"NATS/1.0\r\nodd:3\r\n\r\n", b""),
        ],
    )
    first = pair.stored("leaf", "S")[0]

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


def test_spark_and_pyarrow_read_an_archive(pair: Pair, spark: SparkSession) -> None:
    """Spark and pyarrow read the same rows from the folder of an archive."""
    pair.stream("leaf", "S", numbered_rows(7))
    run(pair, "out")

    frame = spark.read.parquet(str(archive_folder(pair)))
    columns = ("seq", "headers", "CAST(data AS STRING) AS text", "timestamp")
    found = sorted(frame.selectExpr(*columns).collect(), key=lambda row: row.seq)

    assert [(row.seq, row.text, row.headers) for row in found] == [
        (n, str(n), []) for n in range(1, 8)
    ]
    assert [row.timestamp for row in found] == sorted(row.timestamp for row in found)
    assert ds.dataset(archive_folder(pair)).count_rows() == 7


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


@in_both_places
def test_a_wider_range_adds_messages(pair: Pair) -> None:
    """`--reset-range` adds the messages that the archive lacks, once; other filters are refused."""
    write_entries(pair, {"from": ORIGIN | {"start_seq": 4}})
    pair.stream("leaf", "S", numbered_rows(10))
    assert run(pair, "out").copied == 7
    assert run(pair, "out").copied == 0
    pair.publish("leaf", [(b"s.a", b"", b"11")])
    assert run(pair, "out", reset_range=True).copied == 1
    write_entries(pair)
    assert run(pair, "out").copied == 3
    require_archived(pair, *range(1, 12))

    write_entries(pair, {"from": ORIGIN | {"filter_subjects": ["s.a"]}})
    with pytest.raises(
        ArchiveError, match=r"written with no filter .* This entry has filter_subjects s\.a\."
    ):
        run(pair, "out")
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


# --- killed runs -----------------------------------------------------------------------------------------------------

#: The calls by which a run changes a folder or a bucket.
STEPS: tuple[tuple[Any, str], ...] = (
    *((Path, name) for name in ("mkdir", "open", "unlink")),
    (os, "link"),
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

    Readers find each message at most once, and jsplan refuses an incomplete archive.
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
        if len(seqs) < 20:
            with pytest.raises(ArchiveError):
                Archive.read(archive_store(pair)).require_complete()
        run(pair, "out")
        require_archived(pair, *range(1, 21))
        for name in archive_store(pair).list():
            archive_store(pair).delete(name)
        shutil.rmtree(pair.space.folder / "state")
        after += stride
    assert after > 15


@in_both_places
def test_finished_chunks_are_resumed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished chunks are not read again, nor is the range cut again."""
    pair.stream("leaf", "S", numbered_rows(20))
    monkeypatch.setattr("jsplan.backfill.parquet_export.MIN_CHUNK_MESSAGES", 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParquetExport, "_find_gaps", _raise_kill)
        with pytest.raises(SimulatedKill):
            run(pair, "out")
    archive_store(pair).delete(data_files(pair)[1])
    with pytest.raises(ArchiveError, match="is not complete: s-S-000000000001-"):
        Archive.read(archive_store(pair)).require_complete()
    monkeypatch.setattr("jsplan.backfill.parquet_export.MIN_CHUNK_MESSAGES", 7)
    read: list[Any] = []
    monkeypatch.setattr(
        "jsplan.backfill.tasks.origin_task.read",
        lambda connect, what: _record_reads(read, connect, what),
    )

    assert run(pair, "out").copied == 20
    assert read == [(6, 10)]
    require_archived(pair, *range(1, 21))


@in_both_places
def test_a_late_writer_adds_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of a killed run that writes after the next run changes no file of the archive."""
    pair.stream("leaf", "S", numbered_rows(20))
    real, late = archive_writer.export_chunks, list[PartitionPlan]()

    def die(plan: PartitionPlan) -> Iterator[ArchiveFile]:
        late.append(plan)
        raise SimulatedKill

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jsplan.backfill.parquet_export.export_chunks", die)
        with pytest.raises(SimulatedKill):
            run(pair, "out")
    pair.delete("leaf", "S", 3)
    with monkeypatch.context() as patch:
        looked: list[int] = []
        describe = archive_writer._describe_existing  # noqa: SLF001 - it looked before the file was there

        def look(place: ArchiveStore, chunk: Chunk) -> Any:
            looked.append(1)
            if len(looked) > 1:
                return describe(place, chunk)
            assert run(pair, "out").copied == 19
            return None

        patch.setattr(archive_writer, "_describe_existing", look)
        (before,) = [*real(late[0])]

    assert before.rows == 19
    require_archived(pair, 1, 2, *range(4, 21))
    assert run(pair, "out").gaps == [[3, 3]]


def test_a_recreated_origin_keeps_what_was_written(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of an interrupted run stay in the archive when its origin was recreated since."""
    pair.stream("leaf", "S", numbered_rows(10))
    monkeypatch.setattr("jsplan.backfill.parquet_export.MIN_CHUNK_MESSAGES", 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParquetExport, "_find_gaps", _raise_kill)
        with pytest.raises(SimulatedKill):
            run(pair, "out")
    archive_store(pair).delete(data_files(pair)[0])
    pair.ask("leaf", "STREAM.DELETE.S")
    pair.stream("leaf", "S", numbered_rows(3))
    with pytest.raises(JsplanError, match="was recreated"):
        run(pair, "out")

    assert run(pair, "out", reset_range=True).copied == 3
    require_archived(pair, 1, 2, 3, *range(6, 11))


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
    save, other = Archive.save, pair.space.folder / "other"
    other.mkdir()
    base = pair.space.base | {"workspace": "second"}
    document = base | {"backfills": [OUT | {"to": {"parquet": str(archive_store(pair))}}]}
    (other / "jsplan.yaml").write_text(json.dumps(document), "utf-8")

    def save_after_other(self: Archive) -> Archive:
        monkeypatch.setattr(Archive, "save", save)
        with without_spark():
            backfill.run(
                type(pair.space.load)(other), BackfillOptions(name="out"), RecordingObserver()
            )
        return save(self)

    monkeypatch.setattr(Archive, "save", save_after_other)

    assert run(pair, "out").copied == 0
    require_archived(pair, *range(1, 21))
    stale = replace(Archive.read(archive_store(pair)), number=0)
    with pytest.raises(ApiError, match="another process wrote to the archive"):
        stale.save()
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
    archive_store(pair).delete(data_files(pair)[1])

    with pytest.raises(ArchiveError, match=r"is not complete: s-S-\S+ is missing"):
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
    (name,) = data_files(pair)
    data = bytearray(archive_store(pair).read(name, 1 << 20))
    data[len(data) // 2] ^= 1
    put_file(archive_store(pair), name, bytes(data))

    with pytest.raises(
        RefusedError,
        match=r"s-S-000000000001-[\w-]+.parquet was changed after it was written: its sha256 differs",
    ):
        run(pair, "back")
    assert pair.stored("hub", "T") == []
    pair.require_nothing_left()
    put_file(archive_store(pair), name, b"short")
    with pytest.raises(ArchiveError, match=r"has 5 bytes, and [\d,]+ were written"):
        run(pair, "out")


def test_a_file_system_without_links(pair: Pair) -> None:
    """A folder without hard links is refused with a hint before a message is read."""
    pair.stream("leaf", "S", numbered_rows(5))

    def unsupported(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", unsupported)
        with pytest.raises(
            ArchiveError, match=r"manifest-000001.json: Operation not supported"
        ) as refused:
            run(pair, "out")
    assert "a file system with hard links" in (refused.value.hint or "")
    assert not Archive.read(archive_store(pair)).origins
    assert run(pair, "out").copied == 5
    require_archived(pair, *range(1, 6))


@in_both_places
def test_unknown_files_are_refused(pair: Pair) -> None:
    """A folder with a file that is not in the manifest is refused."""
    pair.stream("leaf", "S", numbered_rows(2))
    pair.stream("hub", "T")
    store = archive_store(pair)
    archive_folder(pair).mkdir()
    put_file(store, "mine.txt", b"mine")
    with pytest.raises(ArchiveError, match="is not empty, and is not an archive of jsplan"):
        run(pair, "out")
    store.delete("mine.txt")
    run(pair, "out")
    (known,) = data_files(pair)
    put_file(store, "again.parquet", store.read(known, 1 << 20))

    with pytest.raises(ArchiveError, match=r"again\.parquet is not in the manifest of the archive"):
        run(pair, "back")


def test_a_folder_that_workers_do_not_reach(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that does not reach the folder ends the run, and the archive is incomplete."""
    pair.stream("leaf", "S", numbered_rows(3))
    elsewhere = pair.space.folder / "elsewhere"
    real = archive_writer.export_chunks

    def export_elsewhere(plan: PartitionPlan) -> Iterator[ArchiveFile]:
        return real(replace(plan, store=LocalFolder(elsewhere)))

    monkeypatch.setattr("jsplan.backfill.parquet_export.export_chunks", export_elsewhere)
    with pytest.raises(RefusedError, match=f"cannot write to {elsewhere}: No such file"):
        run(pair, "out")
    (elsewhere / "_jsplan").mkdir(parents=True)
    with pytest.raises(
        JsplanError,
        match=r"a worker has written s-S-\S+ of leaf/stream/S, but it is not in ",
    ):
        run(pair, "out")
    with pytest.raises(ArchiveError, match="is not written yet"):
        Archive.read(archive_store(pair)).require_complete()


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
    archive_store(pair).delete(data_files(pair)[0])
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
    write_entries(pair, {"rate": "10MB/s"})
    command, log = [str(PROGRAM), "backfill", "run", "out"], pair.space.folder / "driver.log"

    def finish_run(strike: Callable[[int], bool], expected: int) -> None:
        """Run until the strike at the process returns True, and to the end."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=pair.space.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            while not strike(process.pid):
                assert process.poll() is None, log.read_text()
                time.sleep(0.01)
            assert process.wait(600) == expected, log.read_text()
        finally:
            process.kill()
            process.wait()

    def kill_driver(pid: int) -> bool:
        if not data_files(pair):
            return False
        os.kill(pid, signal.SIGKILL)
        return True

    def kill_workers(pid: int) -> bool:
        # those of the killed driver may still write
        with suppress(StopIteration):
            workers = SparkWorkers.of_process(pid)
            workers.kill()
            return bool(workers.forked)
        return False

    finish_run(kill_driver, -9)
    finish_run(kill_workers, 0)
    finish_run(lambda _: True, 0)

    assert "an earlier run has written" in log.read_text()
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
