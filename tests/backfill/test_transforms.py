"""`where`, functions and orders on real Spark, compared with the same steps over Parquet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import RefusedError
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions
from tests.backfill.backfill_pair import (
    Pair,
    Row,
    duplicated_origins,
    export_parquet,
    verify_counts,
    with_nanoseconds,
)
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jsplan.documents.backfill import OriginResult

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("spark")]


def rows(count: int) -> list[Row]:
    """Return orders of five customers, with a region header and a JSON payload."""
    return [
        (
            b"s.%d.%s" % (n % 5, b"new" if n % 3 else b"paid"),
            b"NATS/1.0\r\nRegion: r%d\r\n\r\n" % (n % 4),
            b'{"n": %d}' % n,
        )
        for n in range(1, count + 1)
    ]


def run(pair: Pair, **entry: Any) -> OriginResult:
    """Write the entry and run it on the running Spark."""
    pair.write_entry(**entry)
    return backfill.run(pair.space.load, BackfillOptions(name="x"), RecordingObserver()).origins[0]


def require_same(pair: Pair, expected: DataFrame, *, ordered: bool = True) -> None:
    """Require exactly the rows of a frame in the target, in order of each subject if `ordered`."""
    stored = pair.stored("hub", "T")
    wanted = {
        row.origin: (row.subject, [(h.name, h.value) for h in row.headers], bytes(row.data))
        for row in expected.select("origin", "subject", "headers", "data").collect()
    }
    found = {}
    for one in stored:
        lines = (
            one.without_added_headers[1].decode().split("\r\n")[1:-2]
            if one.without_added_headers[1]
            else []
        )
        found[one.origin] = (one.subject, [tuple(line.split(": ", 1)) for line in lines], one.data)
    assert found == wanted
    assert not duplicated_origins(stored)
    for subject in {one.subject for one in stored} if ordered else ():
        seqs = [int((one.origin or "").split("/")[2]) for one in stored if one.subject == subject]
        assert seqs == sorted(seqs)
    pair.require_nothing_left()


WHERE = [
    "subject LIKE 's.%.paid' AND seq > 10",
    "exists(headers, h -> h.name = 'Region' AND h.value IN ('r1', 'r2'))",
    "get_json_object(CAST(data AS STRING), '$.n') % 7 = 0 OR origin LIKE 'leaf/S/5/%'",
]


@pytest.mark.parametrize(
    ("where", "order"),
    [
        (WHERE[0], "stream"),
        (WHERE[1], "subject"),
        pytest.param(WHERE[2], "none", marks=pytest.mark.soak),
    ],
    ids=["like", "headers", "json"],
)
def test_where_selects_like_sql_over_parquet(
    pair: Pair, spark: SparkSession, where: str, order: str
) -> None:
    """`where` copies the messages that the same SQL selects from the Parquet of the stream."""
    pair.stream("leaf", "S", rows(120))
    pair.stream("hub", "T")
    expected = export_parquet(pair, spark, "archive").where(where)

    found = run(pair, where=where, order=order)

    assert (found.copied, found.verified, found.gaps) == (expected.count(), True, [])
    require_same(pair, expected, ordered=order != "none")
    if order == "stream":
        assert [one.origin for one in pair.stored("hub", "T")] == [
            row.origin for row in expected.orderBy("seq").collect()
        ]
    assert run(pair, where=where, order=order).copied == 0
    assert verify_counts(pair.space.load) == {"equal": found.copied}


CLEAN = """
from pyspark.sql import functions as f

FACTOR = 10


def _tenfold(data):
    import json

    said = json.loads(data)
    return json.dumps({"n": said["n"] * FACTOR}).encode()


def run(frame):
    tenfold = f.udf(_tenfold, "binary")
    return (
        frame.where("subject NOT LIKE 's.3.%'")
        .withColumn("data", tenfold("data"))
        .withColumn("headers", f.concat("headers", f.array(f.struct(f.lit("Cleaned").alias("name"), f.lit("yes").alias("value")))))
        .withColumn("subject", f.concat(f.lit("clean."), "subject"))
        .withColumn("time", f.lit(0).cast("bigint"))
        .orderBy(f.rand())
    )


def doubled(frame):
    return frame.union(frame.withColumn("subject", f.concat(f.lit("again."), "subject")))


def untyped(frame):
    return frame.withColumn("data", f.col("seq"))


def nameless(frame):
    return frame.drop("headers")


def broken(frame):
    return frame.withColumn("data", f.udf(lambda seq: bytes([abs(7 // (seq - 3))]), "binary")("seq"))


def subjectless(frame):
    return frame.withColumn("subject", f.when(f.col("seq") == 3, f.lit("no subject")).otherwise(f.col("subject")))


def typo(frame):
    return frame.withColumn("x", f.col("subjekt"))


def nothing(frame):
    return None
"""


@pytest.mark.parametrize("order", [pytest.param("stream", marks=pytest.mark.soak), "subject"])
def test_a_function_works_like_over_parquet(pair: Pair, spark: SparkSession, order: str) -> None:
    """A function copies what it returns for the Parquet of the stream, in order.

    Messages that it drops are no gap, and a second run copies nothing.
    """
    (pair.space.folder / "clean.py").write_text(CLEAN, "utf-8")
    pair.stream("leaf", "S", rows(100))
    pair.stream("hub", "T")
    scope: dict[str, Any] = {}
    exec(CLEAN, scope)  # noqa: S102 - the source of the transform under test
    expected = scope["run"](export_parquet(pair, spark, "archive")).cache()

    found = run(pair, transform="clean.py:run", order=order)

    assert (found.copied, found.verified, found.gaps) == (80, True, [])
    require_same(pair, expected)
    again = run(pair, transform="clean.py:run", order=order)
    assert (again.copied, again.gaps) == (0, [])
    assert verify_counts(pair.space.load) == {"equal": 80}


def test_verify_applies_where_and_transforms(pair: Pair) -> None:
    """`verify` counts missing and extra messages after `where` and the subject transform.

    Messages that a source of the target brought do not differ.
    """
    pair.stream("leaf", "S", rows(60))
    pair.stream(
        "hub",
        "T",
        sources=[{"name": "S", "external": {"api": "$JS.leaf.API"}, "opt_start_seq": 51}],
    )
    pair.sandbox["hub"].wait_until(
        lambda: pair.state("hub", "T")["messages"] == 10, "the source brought its messages"
    )
    found = run(
        pair,
        where="seq % 2 = 0",
        order="subject",
        subject_transform={"src": "s.>", "dest": "new.>"},
    )
    assert (found.copied, verify_counts(pair.space.load)) == (25, {"equal": 30, "expired": 5})
    other = next(one for one in pair.stored("leaf", "S") if one.seq == 7)

    pair.delete(
        "hub",
        "T",
        next(
            one.seq
            for one in pair.stored("hub", "T")
            if (one.origin or "").startswith("leaf/S/20/")
        ),
    )
    header = f"NATS/1.0\r\nJsplan-Origin: leaf/S/7/{with_nanoseconds(other.time)}\r\n\r\n"
    pair.publish("hub", [(b"t.extra", header.encode(), b"x")])

    assert verify_counts(pair.space.load) == {"equal": 29, "expired": 5, "missing": 1, "extra": 1}
    assert (
        run(
            pair,
            where="seq % 2 = 0",
            order="subject",
            subject_transform={"src": "s.>", "dest": "new.>"},
        ).copied
        == 1
    )


FAULTS = [
    ("doubled", r"transform clean.py:doubled makes more than one message of leaf/S/\d+\."),
    (
        "untyped",
        "transform clean.py:untyped returns column `data` as bigint. It must be binary",
    ),
    ("nameless", "transform clean.py:nameless returns no column `headers`"),
    ("broken", r"transform clean.py:broken: ZeroDivisionError: .*, at leaf/S/3/20"),
    (
        "subjectless",
        r"returned a row \(leaf/S/3/20[^)]*\) with an invalid subject: 'no subject'",
    ),
    ("typo", r"transform clean.py:typo: AnalysisException: .*subjekt.* \(line \d+\)"),
    ("nothing", "transform clean.py:nothing returns NoneType, not a DataFrame"),
    ("gone", "clean.py has no function gone"),
]


@pytest.mark.parametrize(("name", "message"), FAULTS, ids=[name for name, _ in FAULTS])
def test_a_function_with_a_fault(pair: Pair, name: str, message: str) -> None:
    """A fault in a function is reported with its name, and nothing reaches the target."""
    (pair.space.folder / "clean.py").write_text(CLEAN, "utf-8")
    pair.stream("leaf", "S", rows(4))
    pair.stream("hub", "T")

    with pytest.raises(RefusedError, match=message):
        run(pair, transform=f"clean.py:{name}", order="subject")
    assert pair.stored("hub", "T") == []
    pair.require_nothing_left()


SQL = [
    ("subjekt = 'a'", "where: .*subjekt"),
    ("subject LIKE", "where: .*"),
    ("seq + 1", "where: .*"),
    ("rand() < 0.5", "is not deterministic"),
    ("CAST(subject AS INT) = 3", "where: .*CAST_INVALID_INPUT"),
]


@pytest.mark.parametrize(("where", "message"), SQL, ids=[where for where, _ in SQL])
def test_sql_with_a_fault(pair: Pair, where: str, message: str) -> None:
    """A `where` that is invalid or not deterministic is refused before any write."""
    pair.stream("leaf", "S", rows(10))
    pair.stream("hub", "T")

    with pytest.raises(RefusedError, match=message):
        run(pair, where=where)
    assert pair.stored("hub", "T") == []
    pair.require_nothing_left()


@pytest.mark.soak
def test_where_function_and_transform_together(pair: Pair, spark: SparkSession) -> None:
    """`where`, a function and a subject transform are applied in this order to two origins."""
    (pair.space.folder / "clean.py").write_text(CLEAN, "utf-8")
    pair.stream("leaf", "S", rows(50))
    pair.stream("hub", "H", [(b"h.1.new", b"", b'{"n": 7}')], subjects=["h.>"])
    pair.stream("hub", "T")
    sides = [{"domain": "leaf", "stream": "S"}, {"domain": "hub", "stream": "H"}]
    entry = pair.entry | {
        "from": sides,
        "order": "subject",
        "where": "seq <= 40",
        "transform": "clean.py:run",
        "subject_transform": {"src": "clean.*.*.*", "dest": "all.{{partition(3,1,2)}}.$2.$3"},
    }
    pair.space.write(backfills=[entry])

    result = backfill.run(pair.space.load, BackfillOptions(name="x"), RecordingObserver())

    stored = pair.stored("hub", "T")
    assert [origin.copied for origin in result.origins] == [32, 1]
    assert {one.subject.split(".")[0] for one in stored} == {"all"}
    assert all(json.loads(one.data)["n"] % 10 == 0 for one in stored)
    origins = {
        f"leaf/S/{one.seq}/{with_nanoseconds(one.time)}"
        for one in pair.stored("leaf", "S")
        if one.seq <= 40 and ".3." not in f"{one.subject}."
    }
    assert {one.origin for one in stored if (one.origin or "").startswith("leaf")} == origins
    pair.require_nothing_left()
    assert spark.range(1).count() == 1
