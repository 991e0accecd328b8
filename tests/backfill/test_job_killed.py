"""Killed runs on real Spark: a run that is repeated leaves no gap and no duplicate."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.backfill.spark import executors
from jsplan.errors import ExitCode, StateLockedError
from jsplan.sandbox import Sandbox
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions
from tests.backfill.backfill_pair import Pair, create_bulk_stream
from tests.backfill.process_kills import (
    SparkWorkers,
    await_progress,
    require_complete,
    run_and_strike,
)
from tests.conftest import PROGRAM as SERVER
from tests.support.process import PROGRAM
from tests.support.relay import Relay, hub_and_leaf_over
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = pytest.mark.timeout(300)
#: The shares of the copy that are staged at each kill.
SHARES = (0.10, 0.35, 0.60, 0.85)


@contextmanager
def spark_driver(pair: Pair) -> Iterator[subprocess.Popen[bytes]]:
    """Start a run in a process with its own Spark, and kill it in the end."""
    place = pair.space.folder
    with (place / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            [PROGRAM, "backfill", "run", "x"],
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@contextmanager
def publishing(pair: Pair) -> Iterator[list[int]]:
    """Publish to the target all the time; the list gets the number of messages in the end."""
    stop, published = threading.Event(), list[int]()

    def publish() -> None:
        number = 0
        with pair.raw("hub") as raw:
            while not stop.wait(0.02):
                number += 1
                raw.request("t.live", b"%d" % number)
        published.append(number)

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(publish)
        try:
            yield published
        finally:
            stop.set()
        done.result()


def test_killed_drivers_and_workers(pair: Pair, spark: SparkSession) -> None:
    """A copy survives a killed driver, a killed worker and a worker that wakes up late.

    A second driver is refused meanwhile, and a client publishes to the target.
    """
    count, chance = 60_000, random.Random(6)
    create_bulk_stream(pair.sandbox["leaf"], "S", count)
    pair.stream("hub", "T")
    pair.write_entry(rate="8MB/s")
    jvm: Any = spark.sparkContext._gateway  # noqa: SLF001 - there is no other way to its process

    with publishing(pair) as published:
        with spark_driver(pair) as process:
            assert await_progress(pair, chance.randrange(count // 10, count // 2)), (
                pair.space.folder / "driver.log"
            ).read_text()
            with pytest.raises(StateLockedError) as locked:
                backfill.run(
                    pair.space.load, BackfillOptions(name="x", lock_timeout=0), RecordingObserver()
                )
            paused = SparkWorkers.of_process(process.pid)
            paused.stop()
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert locked.value.exit_code == ExitCode.LOCKED
        found = run_and_strike(
            partial(await_progress, pair, int(0.75 * count)),
            lambda: SparkWorkers.of_process(jvm.proc.pid).kill(),
            lambda: backfill.run(
                pair.space.load, BackfillOptions(name="x"), RecordingObserver()
            ).origins[0],
        )
        paused.wake()

    assert found.verified
    assert found.copied == count
    require_complete(pair, count, *published)
    pair.require_nothing_left(readers=2)


def test_a_second_attempt_of_a_task_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second attempt of a task, which Spark may start beside the first, writes nothing."""

    class Second:
        def attemptNumber(self) -> int:  # noqa: N802 - Spark's name
            return 1

    done = list[int]()

    def task() -> Iterator[dict[str, Any]]:
        done.append(1)
        yield {}

    for context, expected in ((None, "{}"), (Second(), "ran a task again")):
        monkeypatch.setattr("pyspark.TaskContext.get", lambda context=context: context)
        ((number, result),) = executors._make_mapper([task])([0])  # noqa: SLF001 - what Spark calls
        assert number == 0
        assert expected in str(result)
    assert done == [1]


@pytest.fixture
def relayed_pair(tmp_path: Path) -> Iterator[tuple[Pair, Relay]]:
    """A hub and a leaf whose link can be cut."""
    with Relay() as relay, Sandbox(partial(hub_and_leaf_over, relay), binary=SERVER) as sandbox:
        hub = sandbox["hub"]
        hub.wait_until(
            lambda: hub.request("$JS.leaf.API.INFO") is not None, "the leaf to be online", 60
        )
        yield Pair.create(tmp_path, sandbox), relay


def interrupt_link(pair: Pair, relay: Relay) -> None:
    """Cut the link, and restore it when the hub has lost the leaf."""
    relay.cut()
    hub = pair.sandbox["hub"]
    hub.wait_until(lambda: hub.request("$JS.leaf.API.INFO") is None, "the leaf to be offline", 60)
    relay.mend()


def test_a_link_that_breaks(relayed_pair: tuple[Pair, Relay]) -> None:
    """A copy completes although the leaf is offline in its middle."""
    pair, relay = relayed_pair
    count = 40_000
    create_bulk_stream(pair.sandbox["leaf"], "S", count)
    pair.stream("hub", "T")
    pair.write_entry(rate="8MB/s")

    found = run_and_strike(
        partial(await_progress, pair, int(0.4 * count)),
        lambda: interrupt_link(pair, relay),
        pair.run,
    )

    assert found.verified
    require_complete(pair, count)
    pair.require_nothing_left(readers=2)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("who", ["driver", "worker", "hub", "leaf"])
def test_a_million_messages(pair: Pair, who: str) -> None:
    """A million messages are copied once and in order although a process is killed four times."""
    count, server = 1_000_000, pair.sandbox["leaf" if who == "leaf" else "hub"]
    create_bulk_stream(pair.sandbox["leaf"], "S", count)
    pair.stream("hub", "T")

    with (
        publishing(pair) if who in {"driver", "worker"} else nullcontext([0]) as published,
        ExitStack() as drivers,
    ):
        process = drivers.enter_context(spark_driver(pair))
        for share in SHARES:
            assert await_progress(pair, int(share * count)), (
                "the copy was over before it was struck"
            )
            if who == "driver":
                process.kill()
                process.wait()
                process = drivers.enter_context(spark_driver(pair))
            elif who == "worker":
                SparkWorkers.of_process(process.pid).kill()
            else:
                server.kill()
                server.start()
        assert process.wait(600) == 0, (pair.space.folder / "driver.log").read_text()

    require_complete(pair, count, *published)
    pair.require_nothing_left(readers=8)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_million_messages_and_paused_workers(pair: Pair) -> None:
    """A million messages are copied once although paused workers wake up after the last run."""
    count, paused = 1_000_000, list[SparkWorkers]()
    create_bulk_stream(pair.sandbox["leaf"], "S", count)
    pair.stream("hub", "T")

    with publishing(pair) as published, ExitStack() as drivers:
        for share in SHARES:
            process = drivers.enter_context(spark_driver(pair))
            assert await_progress(pair, int(share * count)), (
                "the copy was over before it was struck"
            )
            paused.append(SparkWorkers.of_process(process.pid))
            paused[-1].stop()
            process.kill()
            process.wait()
        process = drivers.enter_context(spark_driver(pair))
        assert process.wait(600) == 0, (pair.space.folder / "driver.log").read_text()
        for workers in paused:
            workers.wake()

    require_complete(pair, count, *published)
    pair.require_nothing_left(readers=8)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_million_messages_over_a_link_that_breaks(relayed_pair: tuple[Pair, Relay]) -> None:
    """A million messages are copied once although the link is cut four times."""
    pair, relay = relayed_pair
    count = 1_000_000
    create_bulk_stream(pair.sandbox["leaf"], "S", count)
    pair.stream("hub", "T")

    with publishing(pair) as published, spark_driver(pair) as process:
        for share in SHARES:
            assert await_progress(pair, int(share * count)), (
                "the copy was over before it was struck"
            )
            interrupt_link(pair, relay)
        assert process.wait(600) == 0, (pair.space.folder / "driver.log").read_text()

    require_complete(pair, count, *published)
    pair.require_nothing_left(readers=8)
