"""Archives with `where`, a function and a subject transform, in both directions, on Spark."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from jsplan.backfill import parquet_export
from jsplan.backfill.parquet.manifest import Archive
from jsplan.backfill.parquet.store import ArchiveError
from jsplan.backfill.spark_runner import SparkRunner
from jsplan.backfill.tasks.partitioning import PartitionPlan
from jsplan.errors import JsplanError, RefusedError, UsageError
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions, VerifyOptions
from tests.backfill.backfill_pair import (
    Pair,
    create_bulk_stream,
    export_parquet,
    numbered_rows,
    verify_counts,
    with_nanoseconds,
    without_spark,
)
from tests.backfill.process_kills import SparkWorkers, run_and_strike
from tests.backfill.test_archives import (
    BACK,
    ORIGIN,
    OUT,
    archive_folder,
    archive_store,
    data_files,
    require_archived,
)
from tests.backfill.test_archives import archived_rows as archived
from tests.backfill.test_job_killed import spark_driver
from tests.backfill.test_transforms import CLEAN, rows
from tests.support.simulated_kill import SimulatedKill
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from jsplan.documents.backfill import OriginResult
    from jsplan.sandbox import Sandbox

pytestmark = [pytest.mark.timeout(300)]

#: The number of chunks of the largest archive here.
PIECES = 4
RENAMED = {"src": "s.*.*", "dest": "all.$2.$1"}


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Hub and leaf without a stream, and the functions of `clean.py`."""
    found = Pair.create(tmp_path, clean_hub_leaf)
    (found.space.folder / "clean.py").write_text(CLEAN, "utf-8")
    return found


def _run_origin(pair: Pair, name: str, **options: Any) -> OriginResult:
    return backfill.run(
        pair.space.load, BackfillOptions(name=name, **options), RecordingObserver()
    ).origins[0]


def run(
    pair: Pair,
    out: dict[str, Any] | None = None,
    back: dict[str, Any] | None = None,
    **options: Any,
) -> OriginResult:
    """Write the entries with these changes, and run one of them on the running Spark."""
    pair.space.write(backfills=[OUT | (out or {}), BACK | (back or {})])
    return _run_origin(pair, "out" if out is not None else "back", **options)


def frame_rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return identity and content of the rows of a frame, sorted."""
    found = frame.select("origin", "subject", "headers", "data").collect()
    return sorted(
        (row.origin, row.subject, [(h.name, h.value) for h in row.headers], bytes(row.data))
        for row in found
    )


# --- into an archive -------------------------------------------------------------------------------------------------

WHERE = "exists(headers, h -> h.name = 'Region' AND h.value IN ('r1', 'r2')) OR seq > 115"


def test_an_archive_with_where(
    pair: Pair, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive with `where` has the rows that the same SQL selects, once each."""
    monkeypatch.setattr("jsplan.backfill.parquet_export.MIN_CHUNK_MESSAGES", 10)
    pair.stream(
        "leaf", "S", [*rows(120), (b"s.odd", b"NATS/1.0\r\nodd:1\r\nNats-Msg-Id: x\r\n\r\n", b"")]
    )
    pair.delete("leaf", "S", 7, 8)
    expected = export_parquet(pair, spark, "whole").where(WHERE)

    first, again = run(pair, {"where": WHERE}), run(pair, {"where": WHERE})

    assert (first.copied, first.verified, again.copied) == (expected.count(), True, 0)
    assert first.gaps == again.gaps == [[7, 8]]
    assert frame_rows(spark.read.parquet(str(archive_folder(pair)))) == frame_rows(expected)
    assert archived(pair)[-1]["raw_headers"] == b"NATS/1.0\r\nodd:1\r\nNats-Msg-Id: x\r\n\r\n"
    require_archived(pair, *sorted(row.seq for row in expected.collect()))
    (content,) = Archive.read(archive_store(pair)).origins
    assert (content.origin.where, content.origin.transform) == (WHERE, None)
    assert (content.chunks[0].first, content.chunks[-1].last) == (1, 121)
    assert verify_counts(pair.space.load, "out") == {"equal": first.copied}


def test_an_archive_with_a_transform(
    pair: Pair, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a function and a subject transform are archived in order and verified."""
    monkeypatch.setattr("jsplan.backfill.parquet_export.MIN_CHUNK_MESSAGES", 10)
    pair.stream("leaf", "S", rows(100))
    scope: dict[str, Any] = {}
    exec(CLEAN, scope)  # noqa: S102 - the source of the transform under test
    mapped = "concat('all.', split(subject, '[.]')[3], '.', split(subject, '[.]')[2]) AS subject"
    expected = (
        scope["run"](export_parquet(pair, spark, "whole"))
        .selectExpr("origin", mapped, "headers", "data")
        .cache()
    )
    entry = {
        "transform": "clean.py:run",
        "subject_transform": {"src": "clean.s.*.*", "dest": "all.$2.$1"},
    }

    found = run(pair, entry)

    assert (found.copied, found.verified, found.gaps) == (80, True, [])
    assert frame_rows(spark.read.parquet(str(archive_folder(pair)))) == frame_rows(expected)
    for path in archive_folder(pair).glob("*.parquet"):
        seqs = pq.ParquetFile(path).read(["seq"])["seq"].to_pylist()
        assert seqs == sorted(seqs)
    assert run(pair, entry).copied == 0
    assert verify_counts(pair.space.load, "out") == {"equal": 80}
    assert Archive.read(archive_store(pair)).origins[0].origin.transform == "clean.py:run"


def test_verify_of_a_filtered_archive(pair: Pair, spark: SparkSession) -> None:
    """A selected message that the archive lacks is missing; one that is not selected is extra."""
    pair.stream("leaf", "S", rows(30))
    run(pair, {"where": "seq <= 10"})
    log = next((archive_folder(pair) / "_jsplan").glob("manifest-*"))
    log.write_text(log.read_text("utf-8").replace("seq <= 10", "seq > 5"), "utf-8")
    pair.space.write(backfills=[OUT | {"where": "seq > 5"}])

    assert verify_counts(pair.space.load, "out") == {"equal": 5, "missing": 20, "extra": 5}
    assert spark.range(1).count() == 1


@pytest.mark.matrix
def test_subject_transform_round_trip(pair: Pair) -> None:
    """Subjects are mapped into an archive and back without Spark, and payloads are unchanged."""
    pair.stream("leaf", "S", rows(20))
    pair.stream("hub", "T")
    entries = [
        OUT | {"subject_transform": RENAMED},
        BACK | {"subject_transform": {"src": "all.*.*", "dest": "s.$2.$1"}},
    ]
    pair.space.write(backfills=entries)

    with without_spark():
        out, back = (
            backfill.run(pair.space.load, BackfillOptions(name=name), RecordingObserver()).origins[
                0
            ]
            for name in ("out", "back")
        )

    assert (out.copied, back.copied, back.verified) == (20, 20, True)
    assert archived(pair)[0]["subject"] == "all.new.1"
    pair.require_copied()


def _raise_kill(*_: Any) -> None:
    raise SimulatedKill


# --- interrupted attempts --------------------------------------------------------------------------------------------


def test_finished_chunks_are_resumed(
    pair: Pair, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finished chunks are resumed unless the text of the function has changed."""
    monkeypatch.setattr("jsplan.backfill.parquet_export.MIN_CHUNK_MESSAGES", 5)
    pair.stream("leaf", "S", rows(20))
    entry = {"where": "seq > 7", "transform": "clean.py:run"}
    read: list[Any] = []

    run_partitions = SparkRunner.run_partitions

    async def record_plan(runner: SparkRunner, plan: PartitionPlan, *rest: Any) -> Any:
        read.append(tuple(chunk.first for chunk in plan.chunks))
        return await run_partitions(runner, plan, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_export.ParquetExport, "_find_gaps", _raise_kill)
        with pytest.raises(SimulatedKill):
            run(pair, entry)
        assert len(data_files(pair)) == 4
        patch.setattr(SparkRunner, "run_partitions", record_plan)
        with pytest.raises(SimulatedKill):
            run(pair, entry)
        assert read == []  # every chunk was finished
        (pair.space.folder / "clean.py").write_text(
            CLEAN.replace("FACTOR = 10", "FACTOR = 100"), "utf-8"
        )
        with pytest.raises(SimulatedKill):
            run(pair, entry)
        assert read == [(1, 6, 11, 16)]

    assert run(pair, entry).copied == sum(1 for n in range(8, 21) if n % 5 != 3)
    assert all(json.loads(row["data"])["n"] % 100 == 0 for row in archived(pair))
    assert spark.range(1).count() == 1


def await_writing(pair: Pair, before: set[Path], done: threading.Event) -> bool:
    """Wait until a new task writes a chunk; return False when `done` is set before."""
    end = time.monotonic() + 240
    while time.monotonic() < end and not done.is_set():
        if set(archive_folder(pair).glob("_jsplan/part-*")) - before:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "more", [{}, {"transform": "clean.py:shouting"}], ids=["where", "function"]
)
def test_killed_drivers_and_workers(pair: Pair, spark: SparkSession, more: dict[str, Any]) -> None:
    """Each selected message is archived once although drivers and workers are killed.

    The driver is killed after one chunk. Its workers are paused until the next run is
    over, and that run loses its own workers.
    """
    count = PIECES * 40_000
    create_bulk_stream(pair.sandbox["leaf"], "S", count)
    shout = "\n\ndef shouting(frame):\n    return frame.withColumn('subject', f.upper('subject'))\n"
    (pair.space.folder / "clean.py").write_text(CLEAN + shout, "utf-8")
    pair.space.write(
        backfills=[OUT | {"name": "x", "where": "seq % 10 <> 0", "rate": "4MB/s"} | more]
    )
    jvm: Any = spark.sparkContext._gateway  # noqa: SLF001 - there is no other way to its process
    again = partial(_run_origin, pair, "x")

    with spark_driver(pair) as process:
        while not data_files(pair):
            assert process.poll() is None, (pair.space.folder / "driver.log").read_text()
            time.sleep(0.01)
        sleeping = SparkWorkers.of_process(process.pid)
        sleeping.stop()
        process.kill()
        process.wait()
    before = set(archive_folder(pair).glob("_jsplan/part-*"))
    # On a slow machine the files may be complete before the kill.
    if len(data_files(pair)) < PIECES:
        found = run_and_strike(
            partial(await_writing, pair, before),
            lambda: SparkWorkers.of_process(jvm.proc.pid).kill(),
            again,
        )
    else:
        found = again()
    sleeping.wake()

    assert found.verified
    require_archived(pair, *(n for n in range(1, count + 1) if n % 10))
    assert {row["subject"] for row in archived(pair)} == {"S.X" if more else "s.x"}


# --- several entries, one folder --------------------------------------------------------------------------------------


def test_conflicting_entries_are_refused(pair: Pair, spark: SparkSession) -> None:
    """An archive is not mixed with another transform or condition."""
    pair.stream("leaf", "S", rows(12))
    run(pair, {})

    with pytest.raises(
        ArchiveError,
        match=r"were written with no filter and no transform\. This entry has transform clean\.py:run\. An",
    ):
        run(pair, {"transform": "clean.py:run"})
    with pytest.raises(
        ArchiveError, match=r"This entry has subject_transform s\.\*\.\* to all\.\$2\.\$1"
    ):
        run(pair, {"subject_transform": RENAMED})
    next(archive_folder(pair).glob("*.parquet")).unlink()
    with pytest.raises(
        ArchiveError, match=r"This entry has where seq > 3\. An archive has each message only once"
    ):
        run(pair, {"where": "seq > 3"})
    assert run(pair, {}).copied == 12
    require_archived(pair, *range(1, 13))
    assert spark.range(1).count() == 1


# --- out of an archive ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["stream", pytest.param("subject", marks=pytest.mark.soak)])
def test_restore_with_where_and_transform(pair: Pair, spark: SparkSession, order: str) -> None:
    """A restore with `where` and transforms copies what the same steps make of the Parquet."""
    pair.stream("leaf", "S", rows(60))
    pair.stream("hub", "T", [(b"t.own", b"", b"before")])
    run(pair, {})
    before = {with_nanoseconds(one.time): one.seq for one in pair.stored("leaf", "S")}
    pair.ask("leaf", "STREAM.DELETE.S")
    scope: dict[str, Any] = {}
    exec(CLEAN, scope)  # noqa: S102 - the source of the transform under test
    where = "seq % 2 = 0 AND CAST(data AS STRING) LIKE '%{%'"
    expected = scope["run"](spark.read.parquet(str(archive_folder(pair))).where(where)).cache()
    entry = {
        "where": where,
        "transform": "clean.py:run",
        "subject_transform": {"src": "clean.>", "dest": "new.>"},
        "order": order,
    }

    first, again = run(pair, back=entry), run(pair, back=entry)

    stored = [one for one in pair.stored("hub", "T") if one.origin]
    assert (first.copied, first.verified, again.copied) == (expected.count(), True, 0)
    assert "from archive" in first.path
    assert {one.origin: (one.subject, one.data) for one in stored} == {
        row.origin: (row.subject.replace("clean.", "new.", 1), bytes(row.data))
        for row in expected.collect()
    }
    assert all(
        before[(one.origin or "").split("/")[3]] == int((one.origin or "").split("/")[2])
        for one in stored
    )
    if order == "stream":
        assert [one.origin for one in stored] == sorted(
            (one.origin for one in stored), key=lambda text: int((text or "").split("/")[2])
        )
    assert verify_counts(pair.space.load, "back") == {"equal": first.copied}
    pair.require_nothing_left()
    pair.delete("hub", "T", stored[3].seq)
    assert verify_counts(pair.space.load, "back") == {"equal": first.copied - 1, "missing": 1}
    assert run(pair, back=entry).copied == 1


def test_restore_in_two_partitions(pair: Pair) -> None:
    """An archive of two origins is restored by two writers, in order of each subject."""
    pair.stream("leaf", "S", [(b"s.%d" % (n % 5), b"", b"%d" % n) for n in range(1, 61)])
    pair.stream("hub", "O", [(b"o.%d" % (n % 3), b"", b"%d" % n) for n in range(1, 21)])
    pair.stream("hub", "T")
    sides = [ORIGIN, {"domain": "hub", "stream": "O"}]
    part = {"name": "x", "from": ORIGIN | {"end_seq": 10}, "to": BACK["to"]}
    pair.space.write(backfills=[OUT | {"from": sides}, BACK | {"order": "subject"}, part])

    with without_spark():
        for name in ("out", "x"):
            backfill.run(pair.space.load, BackfillOptions(name=name), RecordingObserver())
        found = backfill.run(
            pair.space.load, BackfillOptions(name="back"), RecordingObserver()
        ).origins
        again = backfill.run(pair.space.load, BackfillOptions(name="back"), RecordingObserver())

    assert [(origin.origin, origin.copied) for origin in found] == [
        ("leaf/stream/S", 50),
        ("hub/stream/O", 20),
    ]
    assert again.copied == 0
    stored = pair.stored("hub", "T")
    assert len({one.origin for one in stored}) == len(stored) == 80
    for subject in {one.subject for one in stored}:
        numbers = [int(one.data) for one in stored if one.subject == subject]
        assert numbers == sorted(numbers)
    pair.require_nothing_left()


def test_restore_beside_a_source_of_the_target(pair: Pair, spark: SparkSession) -> None:
    """Messages that a source brought count as present, also with other subjects in the archive."""
    pair.stream("leaf", "S", rows(20))
    pair.stream(
        "hub",
        "T",
        sources=[{"name": "S", "external": {"api": "$JS.leaf.API"}, "opt_start_seq": 16}],
    )
    pair.sandbox["hub"].wait_until(
        lambda: pair.state("hub", "T")["messages"] == 5, "the source brought its messages"
    )
    run(pair, {"subject_transform": RENAMED})

    assert run(pair, back={}).copied == 15
    assert verify_counts(pair.space.load, "back") == {"equal": 20}
    assert spark.range(1).count() == 1


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("out", "kind", "words"),
    [
        (
            {"transform": "clean.py:doubled"},
            RefusedError,
            r"clean.py:doubled makes more than one message of leaf/S/\d\.",
        ),
        ({"transform": "clean.py:broken"}, RefusedError, r"ZeroDivisionError: .*, at leaf/S/3/20"),
        ({"where": "subjekt = 1"}, RefusedError, "where: .*subjekt"),
        ({"order": "subject"}, UsageError, "an archive is written in the order of the stream"),
    ],
    ids=["doubled", "broken", "where", "order"],
)
def test_invalid_transforms_are_refused(
    pair: Pair, spark: SparkSession, out: dict[str, Any], kind: type[JsplanError], words: str
) -> None:
    """A fault in SQL or a function is reported, and nothing is committed."""
    pair.stream("leaf", "S", rows(4))

    with pytest.raises(kind, match=words):
        run(pair, out)
    with pytest.raises(ArchiveError):
        Archive.read(archive_store(pair)).require_complete()
    assert spark.range(1).count() == 1


def test_an_archive_of_a_recreated_stream(pair: Pair, spark: SparkSession) -> None:
    """An archive of a stream and its successor is restored only in the order of the archive."""
    pair.stream("leaf", "S", numbered_rows(5))
    pair.stream("hub", "T")
    with without_spark():
        run(pair, {})
        pair.ask("leaf", "STREAM.DELETE.S")
        pair.stream("leaf", "S", numbered_rows(7))
        run(pair, {}, reset_range=True)
        with pytest.raises(RefusedError, match="reads more than one archive of leaf/S"):
            run(pair, back={"order": "subject"})
        pair.space.write(backfills=[BACK])
        found = backfill.run(pair.space.load, BackfillOptions(name="back"), RecordingObserver())
    assert found.copied == len(pair.stored("hub", "T")) == 12
    checked = backfill.verify(pair.space.load, VerifyOptions(name="back"), RecordingObserver())
    assert checked.exit_code == 0, checked.origins
    assert checked.others == 0
    assert [one.counts["equal"] for one in checked.origins] == [5, 7]


def test_each_file_is_checked_by_one_reader(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several readers share an archive by files, so that each file is checked once."""
    monkeypatch.setattr("jsplan.backfill.parquet_export.MIN_CHUNK_MESSAGES", 1000)
    create_bulk_stream(pair.sandbox["leaf"], "S", 4000)
    pair.stream("hub", "T")
    summed: list[int] = []
    with without_spark():
        run(pair, {})
        monkeypatch.setattr(
            "jsplan.backfill.tasks.origin_task.require_unchanged_files",
            lambda files: summed.append(len(files)),
        )
        assert run(pair, back={"order": "none"}).copied == 4000
    assert len(list(archive_folder(pair).glob("*.parquet"))) == sum(summed)
