"""Streaming queries that write: each row is stored once, whatever is repeated."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from jsplan.backfill.spark import sink
from jsplan.backfill.spark.executors import SourceError
from jsplan.backfill.spark.options import Options
from jsplan.backfill.spark.sink import StreamSink
from tests.backfill.backfill_pair import read_all
from tests.backfill.process_kills import SparkWorkers
from tests.backfill.test_reading import store
from tests.backfill.test_source import create_numbered_stream
from tests.support.raw import Raw

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from jsplan.sandbox import Server

pytestmark = pytest.mark.timeout(600)

#: Copies `S` into `T` in batches, by two tasks each, until `S` has no more.
JOB = """
import sys
from jsplan.backfill.spark.session import start_session
from jsplan.backfill.spark import register
from pathlib import Path
url, folder, count = sys.argv[1:]
spark = start_session("sink", master="local[2,4]", cache=Path(folder), settings={})
register(spark)
read = spark.readStream.format("jetstream").options(url=url, stream="S", maxMessagesPerBatch=count)
query = read.load().writeStream.format("jetstream").options(url=url, stream="T", subjectPrefix="t.")
query.option("checkpointLocation", folder + "/c").trigger(availableNow=True).start().awaitTermination()
"""


def payloads(server: Server, stream: str = "T") -> list[bytes]:
    """Return the payloads of a stream in their order."""
    return [row[3] for row in read_all(server, "$JS.API", stream)]


def make_target(server: Server, **fields: Any) -> None:
    """Create the stream `T`."""
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.CREATE.T", {"name": "T", "subjects": ["t.>"]} | fields)


def rows(numbers: list[int]) -> pa.RecordBatch:
    """Return rows of messages with these numbers as payloads."""
    return pa.RecordBatch.from_pydict(
        {"subject": ["t.x"] * len(numbers), "data": [b"%d" % number for number in numbers]}
    )


def test_a_query_that_is_restarted(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """A query writes what it reads once, in several batches, and continues after a restart."""
    create_numbered_stream(server, 11)
    make_target(server)

    def run() -> None:
        read = spark.readStream.format("jetstream").options(
            url=server.url, stream="S", maxMessagesPerBatch="10"
        )
        write = (
            read.load()
            .writeStream.format("jetstream")
            .options(
                url=server.url, stream="T", subjectPrefix="t.", checkpointLocation=str(tmp_path)
            )
        )
        write.trigger(availableNow=True).start().awaitTermination()

    run()
    with Raw(server.url) as raw:
        for number in range(5):
            raw.request("s.new", b"new %d" % number)
    run()

    assert sorted(payloads(server)) == sorted(payloads(server, "S"))


def test_rows_of_a_repeated_task(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is repeated in another order, after the duplicate window, adds what it lacks."""
    make_target(server, duplicate_window=100_000_000)
    options = Options.parse({"url": server.url, "stream": "T"})
    numbers = [n % 400 for n in range(5_000)]  # equal rows are rows of their own

    def run(batch: int, partition: int, *batches: list[int]) -> None:
        task = sink._Task("a" * 16, batch, partition)  # noqa: SLF001 - Spark gives it to tasks
        monkeypatch.setattr(sink, "_current_task", lambda: task)
        StreamSink(options).store(rows(batch) for batch in batches)

    run(0, 0, numbers)
    run(1, 0, numbers)
    run(1, 1, numbers[:3_000])
    with Raw(server.url) as raw:  # other writers do not matter
        for _ in range(10):
            raw.request("t.other", b"other")
    time.sleep(0.2)  # longer than the window: the server knows no id any more
    shuffled = random.Random(1).sample(numbers, len(numbers))
    run(1, 1, shuffled[:100], shuffled[100:])
    run(1, 1, shuffled)
    run(1, 0, numbers)

    found = Counter(payloads(server))

    wanted = Counter(b"%d" % number for number in numbers for _ in range(3))
    assert found - wanted == Counter({b"other": 10})
    assert not wanted - found


def test_streams_that_cannot_store_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target without a duplicate window, or one that consumers empty, is refused."""
    monkeypatch.setattr(sink, "_current_task", lambda: sink._Task("a", 0, 0))  # noqa: SLF001
    make_target(server, retention="workqueue")
    with pytest.raises(SourceError, match="stream T has workqueue retention"):
        StreamSink(Options.parse({"url": server.url, "stream": "T"})).store([rows([1])])
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.DELETE.T")
        raw.create("S", subjects=["s.>"])
        raw.create("T", sources=[{"name": "S"}])
        info = raw.api_ok("$JS.API.STREAM.INFO.T")
    assert not info["config"].get("duplicate_window")

    with pytest.raises(SourceError, match="stream T has no duplicate window"):
        StreamSink(Options.parse({"url": server.url, "stream": "T"})).store([rows([1])])


def test_a_row_that_is_no_message(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """A query ends with the row that is no message, without frames of Python."""
    store(server, [(b"s.a", b"", b"1")])
    make_target(server)
    read = spark.readStream.format("jetstream").options(url=server.url, stream="S").load()
    write = (
        read.selectExpr("concat(subject, ' x') AS subject", "data")
        .writeStream.format("jetstream")
        .options(url=server.url, stream="T", checkpointLocation=str(tmp_path))
    )
    with pytest.raises(StreamingQueryException, match="row 1 of a batch has an invalid subject"):
        write.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_killed_drivers_and_workers(server: Server, tmp_path: Path, seed: int) -> None:
    """Whatever is killed, and whenever, the target has each message of the origin once.

    The ids are older than the duplicate window where the query is started again.
    """
    count, dice = 60_000, random.Random(seed)
    store(server, [(b"s.%d" % (n % 9), b"", b"%d" % n) for n in range(count)])
    make_target(server, duplicate_window=100_000_000)
    kills = {"driver": 0, "worker": 0}
    with Raw(server.url) as raw:

        def stored() -> int:
            return int(raw.state("T")["messages"])

        for goal in (*sorted(dice.sample(range(2_000, count - 2_000), 5)), None):
            job = subprocess.Popen(
                [sys.executable, "-c", JOB, server.url, str(tmp_path), "4000"],
                start_new_session=True,
                env=os.environ | {"PYSPARK_PYTHON": sys.executable},
            )
            try:
                while job.poll() is None and (goal is None or stored() < goal):
                    time.sleep(0.002)
                if job.poll() is None and dice.random() < 0.5:
                    with suppress(StopIteration):  # it may have none at that moment
                        SparkWorkers.of_process(job.pid).kill()
                        kills["worker"] += 1
                    while job.poll() is None and stored() < min(count, (goal or 0) + 3_000):
                        time.sleep(0.002)
                if job.poll() is None:
                    kills["driver"] += 1
            finally:
                if job.poll() is None:
                    os.killpg(job.pid, signal.SIGKILL)
                job.wait()
    assert job.returncode == 0
    assert sum(kills.values()) >= 3, kills
    assert Counter(payloads(server)) == Counter(payloads(server, "S"))
