"""Killed runs with several writers on real Spark: each subject stays in order."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from jsplan.backfill.protocol import RawConnection, publish
from jsplan.backfill.protocol.frames import BYTES, concat_rows, format_numbers
from jsplan.backfill.protocol.stream_info import request_api
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions
from tests.backfill.backfill_pair import Pair, connection_target, read_all
from tests.backfill.process_kills import SparkWorkers, run_and_strike
from tests.backfill.test_job_killed import spark_driver
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jsplan.sandbox import Server

pytestmark = pytest.mark.timeout(600)
SUBJECTS = 97


def create_spread_stream(server: Server, count: int) -> None:
    """Create `S` with so many numbered messages on many subjects."""
    wire = RawConnection(connection_target(server))
    try:
        request_api(wire, "$JS.API", "STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
        publish(
            wire, (_rows(first, min(count, first + 4999)) for first in range(1, count + 1, 5000))
        )
    finally:
        wire.close()


def _rows(first: int, last: int) -> tuple[Any, Any, Any]:
    numbers = np.arange(first, last + 1)
    subjects = concat_rows(b"s.", format_numbers(pa.array(numbers * numbers % SUBJECTS)))
    return (
        subjects,
        pa.repeat(pa.scalar(b"", BYTES), len(numbers)),
        concat_rows(format_numbers(pa.array(numbers)), b" ", b"." * 100),
    )


def wait_for_staged(pair: Pair, count: int, done: threading.Event | None = None) -> bool:
    """Wait until two partitions are written and have so many messages together.

    Return False when `done` is set before.
    """
    end = time.monotonic() + 240
    while time.monotonic() < end and not (done is not None and done.is_set()):
        with suppress(OSError, AssertionError), pair.raw("hub") as raw:
            infos = raw.api_ok("$JS.hub.API.STREAM.LIST")["streams"] or []
            staged = [
                i["state"]["messages"]
                for i in infos
                if i["config"]["name"].startswith("JSPLAN_") and not i["config"].get("sealed")
            ]
            if sum(bool(messages) for messages in staged) > 1 and sum(staged) >= count:
                return True
        time.sleep(0.01)
    return False


def require_complete(pair: Pair, count: int) -> None:
    """Require every message once, unchanged, and in order of each subject."""
    numbers: dict[bytes, list[int]] = {}
    for _, subject, headers, data in read_all(pair.sandbox["hub"], "$JS.hub.API", "T"):
        number = int(data.split()[0])
        assert b"\r\nJsplan-Origin: leaf/S/%d/20" % number in headers
        assert subject == b"s.%d" % (number * number % SUBJECTS)
        numbers.setdefault(subject, []).append(number)
    assert sorted(number for each in numbers.values() for number in each) == list(
        range(1, count + 1)
    )
    assert all(each == sorted(each) for each in numbers.values())


@pytest.mark.soak
def test_killed_drivers_and_workers(pair: Pair, spark: SparkSession) -> None:
    """Two writers keep the order of each subject although driver and workers are killed.

    The workers of the killed driver are paused until the next run is over, and that run
    loses its own workers.
    """
    count = 40_000
    create_spread_stream(pair.sandbox["leaf"], count)
    pair.stream("hub", "T")
    # With SQL, messages go through the shuffle.
    pair.write_entry(order="subject", where="length(subject) > 0", rate="6MB/s")
    jvm: Any = spark.sparkContext._gateway  # noqa: SLF001 - there is no other way to its process

    with spark_driver(pair) as process:
        assert wait_for_staged(pair, count // 4), (pair.space.folder / "driver.log").read_text()
        paused = SparkWorkers.of_process(process.pid)
        paused.stop()
        process.kill()
        process.wait()

    def run() -> Any:
        options = BackfillOptions(name="x")
        return backfill.run(pair.space.load, options, RecordingObserver()).origins[0]

    found = run_and_strike(
        partial(wait_for_staged, pair, count // 5),
        lambda: SparkWorkers.of_process(jvm.proc.pid).kill(),
        run,
    )
    paused.wake()

    assert found.verified
    require_complete(pair, count)
    pair.require_nothing_left(readers=4)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("who", ["driver", "worker", "hub"])
def test_a_million_by_subject(pair: Pair, who: str) -> None:
    """A million messages are copied in order of each subject although a process is killed."""
    count, server = 1_000_000, pair.sandbox["hub"]
    create_spread_stream(pair.sandbox["leaf"], count)
    pair.stream("hub", "T")
    pair.write_entry(order="subject")
    kills = 0
    for share in (0.1, 0.3, 0.5, 0.7, 0.0):
        with spark_driver(pair) as process:
            left = count - pair.state("hub", "T")["messages"]
            ended = threading.Event()
            if share and wait_for_staged(pair, int(share * left), ended):
                kills += 1
                if who == "driver":
                    continue
                if who == "worker":
                    SparkWorkers.of_process(process.pid).kill()
                else:
                    server.kill()
                    server.start()
            assert process.wait(900) == 0, (pair.space.folder / "driver.log").read_text()
            if who != "driver":
                break
    assert kills
    require_complete(pair, count)
    pair.require_nothing_left(readers=8)
