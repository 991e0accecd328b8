from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from jsplan.backfill.message_schema import TABLE_SCHEMA
from jsplan.backfill.spark.source_streams import SourceStream, split_range
from jsplan.identity import KnownObject
from jsplan.units import parse_instant
from tests.backfill.test_reading import EDGES, store
from tests.support.raw import Raw

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from jsplan.sandbox import Server

#: Spark and its first Python worker are slow to start.
pytestmark = pytest.mark.timeout(300)


def load_frame(spark: SparkSession, server: Server, **options: Any) -> DataFrame:
    """Load the stream `S` as a frame."""
    reader = spark.read.format("jetstream").option("url", server.url).option("stream", "S")
    return reader.options(**options).load()


def seqs(frame: DataFrame) -> list[int]:
    """Return the sequences of a frame, sorted."""
    return sorted(row.seq for row in frame.select("seq").collect())


def create_numbered_stream(server: Server, count: int = 40) -> None:
    """Create a stream of so many messages on four subjects."""
    store(
        server, [(b"s.%d.x" % (number % 4), b"", b"%d" % number) for number in range(1, count + 1)]
    )


@pytest.mark.parametrize(
    ("first", "last", "count"),
    [(1, 10, 3), (5, 5, 4), (6, 5, 2), (1, 1000, 7), (10**7, 10**7 + 2, 2)],
)
def test_split_ranges_cover_every_sequence_once(first: int, last: int, count: int) -> None:
    """Each sequence is in exactly one part, and there are no more parts than asked for."""
    stream = SourceStream("/S", "", "S", "$JS.API")
    found = split_range(stream, first, last, count, KnownObject("", ""))

    assert [seq for piece in found for seq in range(piece.first, piece.last + 1)] == list(
        range(first, last + 1)
    )
    assert len(found) <= count


def test_a_stream_is_a_table(spark: SparkSession, server: Server) -> None:
    """Every message is a row with all of its bytes."""
    store(server, EDGES)
    with Raw(server.url) as raw:
        time = parse_instant(raw.api_ok("$JS.API.STREAM.MSG.GET.S", {"seq": 1})["message"]["time"])

    found = load_frame(spark, server, domain="").toArrow().sort_by("seq")

    assert [name for name in found.schema.names if name != "timestamp"] == TABLE_SCHEMA.names
    assert [
        (subject, data)
        for subject, data in zip(
            found["subject"].to_pylist(), found["data"].to_pylist(), strict=True
        )
    ] == [(subject.decode(), data) for subject, _, data in EDGES]
    assert found["time"][0].as_py() == time
    stamps = found["timestamp"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    assert stamps.to_pylist() == [stored // 1000 for stored in found["time"].to_pylist()]
    headers = found["headers"].combine_chunks().flatten()
    assert headers.field("value").view(pa.binary()).to_pylist() == [
        b"1",
        b"2",
        b"3",
        b"=?x?:  \xff ",
        b"DEL",
    ]
    assert found["origin"][1].as_py().startswith("/S/2/20")


OPTIONS: list[tuple[dict[str, str], list[int]]] = [
    ({"startSeq": "38"}, [38, 39, 40]),
    ({"endSeq": "3"}, [1, 2, 3]),
    ({"endSeq": "0"}, []),
    ({"startSeq": "10", "endSeq": "12", "partitions": "8"}, [10, 11, 12]),
    ({"filterSubjects": "s.1.>, s.3.x", "endSeq": "8"}, [1, 3, 5, 7]),
    ({"startTime": "2999-01-01T00:00:00Z"}, []),
    ({"endTime": "2001-01-01T00:00:00Z"}, []),
    (
        {
            "startTime": "2001-01-01T00:00:00+02:00",
            "endTime": "2999-01-01T00:00:00.5Z",
            "startSeq": "39",
        },
        [39, 40],
    ),
]


@pytest.mark.parametrize(("options", "expected"), OPTIONS, ids=str)
def test_options_limit_what_is_read(
    spark: SparkSession, server: Server, options: dict[str, str], expected: list[int]
) -> None:
    """Options limit a frame to sequences, times and subjects."""
    create_numbered_stream(server)

    assert seqs(load_frame(spark, server, **options)) == expected


def test_a_time_in_the_middle(spark: SparkSession, server: Server) -> None:
    """A start time includes the message of exactly that time, and an end time excludes it."""
    create_numbered_stream(server)
    with Raw(server.url) as raw:
        time = raw.api_ok("$JS.API.STREAM.MSG.GET.S", {"seq": 20})["message"]["time"]

    assert seqs(load_frame(spark, server, startTime=time))[0] <= 20
    assert seqs(load_frame(spark, server, endTime=time))[-1] == 19


FILTERS = [
    ("seq > 3 and seq <= 6", [4, 5, 6]), ("seq = 7", [7]), ("seq >= 39", [39, 40]), ("seq < 2", [1]), ("seq > 5 and seq < 5", []),
    ("subject = 's.1.x' and seq < 10", [1, 5, 9]), ("subject in ('s.1.x', 's.2.x') and seq < 7", [1, 2, 5, 6]),
    ("subject like 's.3%' and seq < 12", [3, 7, 11]), ("time > 0 and seq < 3", [1, 2]), ("time < 0", []),
    ("time > 0 and time < 9000000000000000000 and subject = 's.0.x' and seq in (4, 5, 8)", [4, 8]),
]  # fmt: skip


@pytest.mark.since_spark_4_1
@pytest.mark.parametrize(("condition", "expected"), FILTERS)
def test_filters_that_are_pushed_down(
    spark: SparkSession, server: Server, condition: str, expected: list[int]
) -> None:
    """Filters give the same rows with and without pushdown."""
    create_numbered_stream(server)

    assert seqs(load_frame(spark, server, pushdown="true").filter(condition)) == expected
    assert seqs(load_frame(spark, server).filter(condition)) == expected


@pytest.mark.since_spark_4_1
def test_a_frame_that_is_used_twice(spark: SparkSession, server: Server) -> None:
    """Without pushdown a frame has all of its rows again after it was filtered.

    With pushdown Spark keeps the filter of the first use.
    """
    create_numbered_stream(server, 10)
    frame, pushing = load_frame(spark, server), load_frame(spark, server, pushdown="true")

    for each in (frame, pushing):
        assert seqs(each.filter("seq > 8")) == [9, 10]
    assert seqs(frame) == list(range(1, 11))
    assert seqs(pushing) == [9, 10], (
        "Spark no longer keeps filters with a frame: pushdown may become the default"
    )


def test_headers_only(spark: SparkSession, server: Server) -> None:
    """Payloads are not read with `headersOnly`, and headers are those of the message."""
    block = b"NATS/1.0\r\nNats-Msg-Size: 7\r\n\r\n"
    store(server, [(b"s.a", b"", b"1"), (b"s.a", block, b"22")])

    rows = load_frame(spark, server, headersOnly="true").collect()

    assert [(bytes(row.data), [(h.name, h.value) for h in row.headers]) for row in rows] == [
        (b"", []),
        (b"", [("Nats-Msg-Size", "7")]),
    ]


def test_writing_a_frame(spark: SparkSession, server: Server) -> None:
    """A frame is stored once with subjects, headers and payloads, although it is written twice."""
    store(server, EDGES)
    with Raw(server.url) as raw:
        raw.create("T", subjects=["in.>"])
        frame = load_frame(spark, server)
        for _ in range(2):
            options = {"url": server.url, "stream": "T", "subjectPrefix": "in.", "dedupe": "origin"}
            frame.write.format("jetstream").options(**options).mode("append").save()
        state = raw.api_ok("$JS.API.STREAM.INFO.T", {"subjects_filter": ">"})["state"]

    assert state["messages"] == len(EDGES)
    assert set(state["subjects"]) == {f"in.{subject.decode()}" for subject, _, _ in EDGES}


MESSAGE = "subject string, data binary, headers array<struct<name: string, value: string>>"
#: A subject that ends its command, and begins one that purges a stream.
COMMAND = "in.a 0 0\r\n\r\nPUB $JS.API.STREAM.PURGE.T 0\r\n\r\nHPUB in.b"
REFUSED: list[tuple[Any, dict[str, str], str]] = [
    ((COMMAND, b"", None), {}, "row 2 of a batch has an invalid subject"),
    ((None, b"", None), {}, "row 2 of a batch has no subject"),
    (("in.a", b"", [("A", "b\r\nNats-Rollup: all")]), {}, "row 2 of a batch has an invalid header"),
    (("in.a", b"", None), {"stream": "S"}, "stream T takes the subjects of these messages, not"),
    (("in.a", b"", None), {"dedupe": "origin"}, "dedupe by origin needs the column origin"),
]


def test_written_rows_stay_what_they_are(spark: SparkSession, server: Server) -> None:
    """A row adds one message: it has no other effect, and is refused if it is no message."""
    store(server, [(b"t.a", b"", b"1"), (b"t.b", b"", b"2")], "T", allow_rollup_hdrs=True)
    with Raw(server.url) as raw:
        raw.api_ok(
            "$JS.API.STREAM.UPDATE.T",
            {"name": "T", "subjects": ["t.>", "in.>"], "allow_rollup_hdrs": True},
        )
        control = [
            [("Nats-Rollup", "all")],
            [("nats-msg-id", "1"), ("A", "")],
            [("Nats-Msg-Id", "1")],
        ]

        def write(rows: list[Any], **options: str) -> None:
            frame = spark.createDataFrame(rows, MESSAGE).coalesce(1)
            options = {"url": server.url, "stream": "T"} | options
            frame.write.format("jetstream").options(**options).mode("append").save()

        for row, options, message in REFUSED:
            with pytest.raises(PySparkException, match=message):
                write([("in.good", b"", None), row], **options)
        write([("in.a", b"", headers) for headers in control])
        messages = [
            raw.api_ok("$JS.API.STREAM.MSG.GET.T", {"seq": seq})["message"] for seq in range(1, 6)
        ]
        assert raw.state("T")["messages"] == 5

    assert [base64.b64decode(one.get("hdrs", "")) for one in messages[2:]] == [
        b"NATS/1.0\r\nJsplan-Kept-Nats-Rollup: all\r\nNats-Expected-Stream: T\r\n\r\n",
        b"NATS/1.0\r\nJsplan-Kept-nats-msg-id: 1\r\nA: \r\nNats-Expected-Stream: T\r\n\r\n",
        b"NATS/1.0\r\nJsplan-Kept-Nats-Msg-Id: 1\r\nNats-Expected-Stream: T\r\n\r\n",
    ]


def test_parquet_round_trip(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """Messages with their subjects, headers and origins are unchanged after Parquet."""
    store(server, EDGES)
    load_frame(spark, server).write.parquet(f"{tmp_path}/archive")

    found = spark.read.parquet(f"{tmp_path}/archive")

    assert found.toArrow().sort_by("seq")["data"].to_pylist() == [data for _, _, data in EDGES]
    assert found.schema == load_frame(spark, server).schema


WRONG = [
    ({"strem": "x"}, "has no option strem"),
    ({"startSeq": "one"}, "option startSeq is 'one', not a number"),
    ({"startTime": "yesterday"}, 'option startTime: "yesterday" is not a time'),
    ({"headersOnly": "maybe"}, "option headersOnly is 'maybe', not true or false"),
    ({"password": "hunter2"}, "option password would be visible in the plans of Spark"),
    ({"url": "nats://u:hunter2@127.0.0.1:4222"}, "option url has credentials"),
    (
        {"user": "u", "password": "${env.NOT_SET_ANYWHERE}"},
        "the environment variable NOT_SET_ANYWHERE is not set in this process",
    ),
    ({"stream": "NONE"}, r"refused STREAM.INFO.NONE: stream not found (10059)"),
    ({"workspace": "w"}, "option streams is missing: workspace and streams belong together"),
    ({"workspace": "w", "streams": "*"}, "option url has no meaning with workspace"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=lambda value: str(value)[:30])
def test_invalid_options_are_refused(
    spark: SparkSession, server: Server, options: dict[str, str], message: str
) -> None:
    """An invalid option is named, without its secret."""
    create_numbered_stream(server, 1)

    with pytest.raises(PySparkException) as raised:
        load_frame(spark, server, **options).collect()

    assert message in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_invalid_frames_are_refused(spark: SparkSession, server: Server) -> None:
    """A frame without subject or data, and overwriting, are refused before any message is sent."""
    frame = spark.range(1)
    with pytest.raises(PySparkException, match="the frame has no column subject"):
        frame.write.format("jetstream").option("url", server.url).option("stream", "S").mode(
            "append"
        ).save()
    full = spark.createDataFrame([("s.a", b"x")], "subject string, data binary")
    with pytest.raises(PySparkException, match="a stream cannot be overwritten"):
        full.write.format("jetstream").option("url", server.url).option("stream", "S").mode(
            "overwrite"
        ).save()


def test_secrets_come_from_the_environment(spark: SparkSession, hub_leaf: Any) -> None:
    """A password that is named by its variable connects, and is not in the plan."""
    hub = hub_leaf["hub"]
    frame = (
        spark.read.format("jetstream")
        .option("url", hub.url)
        .option("stream", "NONE")
        .option("user", hub.user)
    )

    with pytest.raises(PySparkException, match="stream not found"):
        frame.option("password", "${env.HUB_PASSWORD}").load().collect()
