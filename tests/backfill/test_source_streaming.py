"""Streaming queries of the Spark format `jetstream`: offsets, losses, and several streams."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from jsplan.backfill.spark.datasource import JetStreamReader
from jsplan.backfill.spark.executors import SourceError
from jsplan.backfill.spark.options import Options
from jsplan.backfill.spark.stream_source import (
    HAS_LIMITS,
    Offset,
    Position,
    StreamReader,
    make_stream_reader,
)
from tests.backfill.test_reading import store
from tests.backfill.test_source import create_numbered_stream, seqs
from tests.support.older_store import keep_store, put_store_back
from tests.support.raw import Raw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from jsplan.sandbox import Sandbox, Server
    from tests.conftest import MakeServer

#: Spark and its first Python worker are slow to start.
pytestmark = pytest.mark.timeout(300)


def test_a_stream_that_grows(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """A streaming query reads what exists, keeps its position, and continues with new messages."""
    create_numbered_stream(server, 25)

    def run() -> list[int]:
        options = {"url": server.url, "stream": "S", "maxMessagesPerBatch": "10"}
        read = spark.readStream.format("jetstream").options(**options).load()
        query = (
            read.select("seq")
            .writeStream.format("parquet")
            .option("checkpointLocation", f"{tmp_path}/c")
            .trigger(availableNow=True)
        )
        query.start(f"{tmp_path}/out").awaitTermination()
        return seqs(spark.read.parquet(f"{tmp_path}/out"))

    assert run() == list(range(1, 26))
    with Raw(server.url) as raw:
        for _ in range(5):
            raw.request("s.new", b"x")
    assert run() == list(range(1, 31))


def follow(server: Server, **options: str) -> StreamReader:
    """Return the driver's side of a streaming query of `S`."""
    given = {"url": server.url, "stream": "S", "maxMessagesPerBatch": "10"} | options
    return make_stream_reader(Options.parse(given))


def next_batch(reader: StreamReader, start: Offset) -> tuple[Offset, list[int]]:
    """Return the end of the next batch, and its sequences."""
    end: Offset = reader.latestOffset(start, reader.getDefaultReadLimit())
    read = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return end, [seq for batch in read for seq in batch["seq"].to_pylist()]


def position(offset: Offset) -> Position:
    """Return the position in the one stream of an offset."""
    (found,) = offset.values()
    return found


@pytest.mark.since_spark_4_2
def test_the_end_of_a_query(server: Server) -> None:
    """A streaming query reads nothing after `endSeq` and `endTime`, also later."""
    create_numbered_stream(server, 8)
    with Raw(server.url) as raw:
        time = raw.api_ok("$JS.API.STREAM.MSG.GET.S", {"seq": 5})["message"]["time"]

    for options in ({"endSeq": "4"}, {"endTime": time}, {"endSeq": "4", "endTime": time}):
        reader = follow(server, startSeq="2", **options)
        end, found = next_batch(reader, reader.initialOffset())
        assert found == [2, 3, 4]
        assert next_batch(reader, end) == (end, [])


@pytest.mark.since_spark_4_2
def test_an_empty_stream_is_followed(server: Server) -> None:
    """A query of a stream that never had a message waits for the first one."""
    store(server, [])
    reader = follow(server)
    start = reader.initialOffset()

    assert next_batch(reader, start) == (start, [])
    with Raw(server.url) as raw:
        raw.request("s.a")
    end, found = next_batch(reader, start)
    assert (found, position(end)["seq"]) == ([1], 2)
    later = follow(server, startSeq="5")
    start = later.initialOffset()
    assert (next_batch(later, start), position(start)["seq"]) == ((start, []), 5)


def recreate(raw: Raw, count: int) -> None:
    """Create `S` again, with so many messages."""
    raw.api_ok("$JS.API.STREAM.DELETE.S")
    raw.create("S", subjects=["s.>"])
    for _ in range(count):
        raw.request("s.new")


LOSSES: list[tuple[Callable[[Raw], Any], str, list[int]]] = [
    (lambda raw: recreate(raw, 3), "S was recreated. Its messages from sequence 11 on", [1, 2, 3]),
    (lambda raw: recreate(raw, 12), "S was recreated. Its messages from sequence 11 on", list(range(1, 11))),
    (lambda raw: raw.api_ok("$JS.API.STREAM.PURGE.S", {"seq": 13}), "S begins at sequence 13. Its messages 11 to 12", [13, 14, 15]),
    (lambda raw: raw.api_ok("$JS.API.STREAM.PURGE.S"), "S begins at sequence 16. Its messages 11 to 15", []),
]  # fmt: skip


@pytest.mark.since_spark_4_2
@pytest.mark.parametrize(("change", "message", "rest"), LOSSES, ids=["3", "12", "part", "all"])
def test_messages_that_a_query_could_not_read(
    server: Server, change: Callable[[Raw], Any], message: str, rest: list[int]
) -> None:
    """Deleted messages end a query, or with `failOnDataLoss` = false it reads what is there."""
    create_numbered_stream(server, 15)
    reader = follow(server)
    start, _ = next_batch(reader, reader.initialOffset())
    with Raw(server.url) as raw:
        change(raw)

    with pytest.raises(SourceError, match=f"stream {message} were not read"):
        next_batch(reader, start)
    end, found = next_batch(follow(server, failOnDataLoss="false"), start)
    assert found == rest
    assert position(next_batch(reader, end)[0])["created"] == position(end)["created"]


@pytest.mark.since_spark_4_2
@pytest.mark.parametrize("new", [0, 4, 5, 9])
def test_a_stream_that_went_back(new: int, make_server: MakeServer) -> None:
    """A stream that lost messages ends a query, also when new ones have their sequences."""
    server = make_server()
    create_numbered_stream(server, 15)
    keep_store(server)
    with Raw(server.url) as raw:
        for _ in range(5):
            raw.request("s.lost")
    reader = follow(server)
    start, _ = next_batch(reader, reader.initialOffset())
    whole, _ = next_batch(reader, start)
    put_store_back(server)
    with Raw(server.url) as raw:
        for _ in range(new):
            raw.request("s.new")

    assert (position(start)["seq"], position(whole)["seq"]) == (11, 21)
    for offset in (start, whole):
        with pytest.raises(SourceError, match=r"stream S (went back|ends at sequence 1\d)"):
            next_batch(reader, offset)
    end, found = next_batch(follow(server, failOnDataLoss="false"), start)
    assert found == list(range(11, min(15 + new, 20) + 1))
    assert next_batch(reader, end)[1] == list(range(21, 15 + new + 1))


@pytest.mark.since_spark_4_2
def test_messages_that_expire_while_a_batch_is_read(server: Server) -> None:
    """A batch whose first messages are deleted after it was planned ends the query."""
    create_numbered_stream(server, 15)
    reader = follow(server, partitions="1")
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    (part,) = reader.partitions(start, end)
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.MSG.DELETE.S", {"seq": 9})
    assert sum(batch.num_rows for batch in reader.read(part)) == 9
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.PURGE.S", {"seq": 5})

    with pytest.raises(SourceError, match=r"stream S begins at sequence 5\. Its messages 1 to 4"):
        list(reader.read(part))
    assert sum(batch.num_rows for batch in follow(server, failOnDataLoss="false").read(part)) == 5


@pytest.mark.since_spark_4_2
def test_values_that_newer_ones_replace_are_no_loss(server: Server) -> None:
    """A stream that keeps the last message of each subject loses none when its begin moves."""
    store(server, [(b"s.a", b"", b"%d" % n) for n in range(5)], max_msgs_per_subject=1)
    reader = follow(server)
    start = reader.initialOffset()
    with Raw(server.url) as raw:
        raw.request("s.a", b"new")

    assert next_batch(reader, start)[1] == [6]


def test_a_loss_as_the_user_sees_it(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """The error of a query says what was lost and what to do, without frames of Python."""
    create_numbered_stream(server, 15)

    def run() -> Any:
        read = spark.readStream.format("jetstream").option("url", server.url).option("stream", "S")
        query = read.load().writeStream.format("noop").option("checkpointLocation", f"{tmp_path}/c")
        started = query.trigger(availableNow=True).start()
        started.awaitTermination()
        return started.lastProgress

    progress = run()
    if HAS_LIMITS:
        for name in ("endOffset", "latestOffset"):
            assert json.loads(progress["sources"][0][name])["/S"]["seq"] == 16
    with Raw(server.url) as raw:
        recreate(raw, 2)
    with pytest.raises(StreamingQueryException, match="stream S was recreated") as raised:
        run()
    text = str(raised.value)
    assert "Its messages from sequence 16 on were not read. Start with a new checkpoint" in text
    assert "Traceback" not in text


# --- the streams of a workspace ------------------------------------------------------------------


@pytest.fixture
def two_domains(
    tmp_path: Path, clean_hub_leaf: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """Streams A and AB of the hub and A of the leaf; return the options that read them."""
    for domain, streams in {"hub": ("A", "AB", "OTHER"), "leaf": ("A",)}.items():
        server = clean_hub_leaf[domain]
        with Raw(server.url, server.user, server.password) as raw:
            for name in streams:
                config = {"name": name, "subjects": [f"{domain}.{name}.>"]}
                raw.api_ok(f"$JS.{domain}.API.STREAM.CREATE.{name}", config)
                for number in range(3):
                    raw.request(f"{domain}.{name}.x", b"%d" % number)
    hub = clean_hub_leaf["hub"]
    monkeypatch.setenv("HUB_PASSWORD", str(hub.password))
    connection = {"url": hub.url, "user": hub.user, "password": "${env.HUB_PASSWORD}"}
    files = {
        "jsplan": 1,
        "workspace": "w",
        "connections": {"hub": connection},
        "domains": {name: {"connection": "hub", "js_domain": name} for name in ("hub", "leaf")},
    }
    (tmp_path / "jsplan.yaml").write_text(json.dumps(files))
    return {"workspace": str(tmp_path), "streams": "*/stream/A*"}


def test_streams_of_a_workspace_are_one_table(
    spark: SparkSession, two_domains: dict[str, str]
) -> None:
    """All streams that a glob selects are one table, with the domain and name of each row."""
    rows = spark.read.format("jetstream").options(**two_domains).load().collect()

    found = sorted((row.domain, row.stream, row.seq) for row in rows)
    wanted = [("hub", "A"), ("hub", "AB"), ("leaf", "A")]
    assert found == [(*one, seq) for one in wanted for seq in (1, 2, 3)]
    assert {row.origin.rpartition("/")[0] for row in rows} == {
        f"{domain}/{stream}/{seq}" for domain, stream, seq in found
    }


@pytest.mark.since_spark_4_2
def test_a_stream_that_appears_and_an_offline_domain(
    two_domains: dict[str, str], clean_hub_leaf: Sandbox
) -> None:
    """A new stream is read from its begin; a domain that does not answer keeps its position."""
    options = Options.parse(two_domains)
    reader, bounded = make_stream_reader(options), JetStreamReader(options)
    start = reader.initialOffset()
    end, found = next_batch(reader, start)
    assert len(found) == 9
    hub, leaf = clean_hub_leaf["hub"], clean_hub_leaf["leaf"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.create("A2", "hub", subjects=["hub.A2"])
        raw.request("hub.A2", b"1")
        leaf.pause()
        try:
            later, found = next_batch(reader, end)
            with pytest.raises(SourceError, match="domain leaf cannot be read"):
                bounded.partitions()
        finally:
            leaf.resume()
        assert (found, later["leaf/A"], later["hub/A2"]["seq"]) == ([1], end["leaf/A"], 2)
        raw.api_ok("$JS.hub.API.STREAM.DELETE.A2")
    with pytest.raises(SourceError, match="stream A2 was deleted"):
        next_batch(reader, later)


@pytest.mark.since_spark_4_2
def test_a_domain_that_is_offline_once_a_batch_is_planned(
    two_domains: dict[str, str], clean_hub_leaf: Sandbox
) -> None:
    """A batch with messages of a domain that does not answer any more fails: none is left out."""
    reader = make_stream_reader(Options.parse(two_domains))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    leaf = clean_hub_leaf["leaf"]
    leaf.pause()
    try:
        with pytest.raises(SourceError, match=r"\$JS.leaf.API"):
            reader.partitions(start, end)
    finally:
        leaf.resume()
    with Raw(leaf.url, leaf.user, leaf.password) as raw:
        raw.api_ok("$JS.leaf.API.STREAM.DELETE.A")
    with pytest.raises(SourceError, match="stream A was deleted"):
        reader.partitions(start, end)
    rest = make_stream_reader(Options.parse(two_domains | {"failOnDataLoss": "false"}))
    read = {part.source.key for part in rest.partitions(start, end)}
    assert read == {"hub/A", "hub/AB"}


@pytest.mark.since_spark_4_2
def test_domains_of_one_name_in_two_systems(make_server: MakeServer, tmp_path: Path) -> None:
    """Streams keep apart by the domain of the files, where both systems name it alike."""
    servers = {name: make_server(domain="site") for name in ("a", "b")}
    for count, server in enumerate(servers.values(), 1):
        with Raw(server.url) as raw:
            raw.create("S", "site", subjects=["s.>"])
            for _ in range(count):
                raw.request("s.x")
    files = {
        "jsplan": 1,
        "workspace": "w",
        "connections": {name: {"url": server.url} for name, server in servers.items()},
        "domains": {name: {"connection": name, "js_domain": "site"} for name in servers},
    }
    (tmp_path / "jsplan.yaml").write_text(json.dumps(files))
    reader = make_stream_reader(
        Options.parse({"workspace": str(tmp_path), "streams": "*/stream/S"})
    )
    end, found = next_batch(reader, reader.initialOffset())

    assert {key: place["seq"] for key, place in end.items()} == {"a/S": 2, "b/S": 3}
    assert sorted(found) == [1, 1, 2]


def test_no_secret_of_a_workspace_is_in_a_plan(
    spark: SparkSession, two_domains: dict[str, str]
) -> None:
    """A plan has the folder of the workspace and the globs, and no connection."""
    frame = spark.read.format("jetstream").options(**two_domains).load()
    text = str(frame._jdf.queryExecution().toString())  # noqa: SLF001 - as `explain` prints it

    assert os.environ["HUB_PASSWORD"] not in text
