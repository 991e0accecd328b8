"""`oversize: native`: messages that have no room for where they are from, each once and in order, whatever dies; and known again by all."""

from __future__ import annotations

import contextlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.backfill.protocol import RawConnection, read
from jsplan.backfill.protocol.frames import BYTES
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.tasks.oversize import run_oversize_copy_task
from jsplan.backfill.tasks.sequence_identity import find_staged_sequences
from jsplan.backfill.tasks.staging_streams import hash_origin
from jsplan.errors import ApiTimeoutError, ConfigError, RefusedError
from jsplan.sandbox import Sandbox
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions, VerifyOptions
from tests.backfill.backfill_pair import (
    Pair,
    Row,
    interrupt_run,
    read_all,
    with_nanoseconds,
    without_spark,
)
from tests.backfill.conftest import connection_target
from tests.backfill.fake_clocks import SteppingClock, local_time
from tests.conftest import PROGRAM
from tests.support.raw import Raw
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.workspaces import RecordingObserver, Space

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jsplan.documents.backfill import Verification
    from jsplan.sandbox import Server

pytestmark = pytest.mark.timeout(180)
MAX_PAYLOAD = 1 << 20
KIND = b"NATS/1.0\r\nKind: x\r\n\r\n"


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Hub and leaf without a stream, and an entry that copies `S` of the leaf into `T` of the hub, also what is too large for a header."""
    return Pair.create(tmp_path, clean_hub_leaf, oversize="native")


def small(number: int) -> Row:
    """One that has room."""
    return (b"s.a", b"", b"%d" % number)


def large(number: int, block: bytes = b"") -> Row:
    """One of exactly max_payload, headers included."""
    text = b"%d " % number
    return (b"s.b", block, text + b"y" * (MAX_PAYLOAD - len(block) - len(text)))


def mixed() -> list[Row]:
    """Small ones and large ones, alone, in rows, with headers, at both ends."""
    return [
        large(1),
        small(2),
        small(3),
        large(4, KIND),
        large(5),
        small(6),
        (b"s.b", b"", b"7" + b"z" * (MAX_PAYLOAD - 100)),
        small(8),
        large(9),
    ]


def require_copied(pair: Pair, others: int = 0) -> None:
    """Every message of the origin is in the target once, in order, as it was; only those with room say where from; nothing is left."""
    origin = pair.stored("leaf", "S")
    target = [one for one in pair.stored("hub", "T") if not one.subject.startswith("t.")]
    assert [one.without_added_headers for one in target] == [
        one.without_added_headers for one in origin
    ]
    for one, copy in zip(origin, target, strict=True):
        said = f"leaf/S/{one.seq}/{with_nanoseconds(one.time)}"
        assert copy.origin == (
            said if len(one.headers) + len(one.data) < MAX_PAYLOAD - 200 else None
        )
    assert len(pair.stored("hub", "T")) - len(target) == others
    pair.require_nothing_left()


@pytest.mark.matrix
def test_they_come_at_their_place(pair: Pair) -> None:
    """In order with the others, compared, counted; a second run finds all of them there."""
    pair.stream("leaf", "S", mixed())
    pair.stream("hub", "T", [(b"t.own", b"", b"before")])

    found, again = pair.run(), pair.run()

    assert (found.copied, found.natively, found.verified, found.gaps, found.skipped) == (
        9,
        5,
        True,
        [],
        [],
    )
    assert (again.copied, again.natively, again.gaps) == (0, 0, [])
    require_copied(pair, others=1)


@pytest.mark.matrix
def test_what_is_gone_in_between(pair: Pair) -> None:
    """Deleted messages move no other: each large one is known by the sequence that it had. What is gone is a gap, and nothing else is."""
    pair.stream("leaf", "S", [*mixed(), large(10), small(11), large(12)])
    pair.stream("hub", "T")
    pair.delete("leaf", "S", 2, 5, 8, 11)

    found, again = pair.run(), pair.run()

    assert (found.copied, found.natively, found.gaps, found.gap_messages) == (
        8,
        6,
        [[2, 2], [5, 5], [8, 8], [11, 11]],
        4,
    )
    assert (again.copied, again.gap_messages) == (0, 4)
    require_copied(pair)


def test_filters(pair: Pair) -> None:
    """What is not chosen leaves holes as well."""
    pair.stream("leaf", "S", mixed())
    pair.stream("hub", "T")
    pair.write_entry(oversize="native", origin={"filter_subject": "s.b"})

    found = pair.run()

    assert (found.copied, found.natively, found.gaps) == (5, 5, [])
    assert [one.data[:1] for one in pair.stored("hub", "T")] == [b"1", b"4", b"5", b"7", b"9"]
    assert pair.run().copied == 0


def test_an_origin_that_begins_late(pair: Pair) -> None:
    """Sequences are those of the origin, however large."""
    pair.stream("leaf", "S", [small(1), large(2), small(3)], first_seq=10_000_000)
    pair.stream("hub", "T")

    assert (pair.run().natively, pair.run().copied) == (1, 0)
    require_copied(pair)


@pytest.mark.matrix
def test_dying_before_any_write(pair: Pair) -> None:
    """However many writes a run came to before it died: the next one leaves every message there once, in order, and nothing of ours."""
    pair.stream("leaf", "S", [large(1), small(2), large(3), large(4)])
    pair.delete("leaf", "S", 2)
    after, died = 0, True
    while died:
        pair.stream("hub", "T", [(b"t.a", b"", b"own")])
        died = False
        try:
            with kill_after(after):
                pair.run()
        except SimulatedKill:
            died = True

        pair.run()

        assert pair.state_record["done_at"]
        require_copied(pair, others=1)
        pair.ask("hub", "STREAM.DELETE.T")
        shutil.rmtree(pair.space.folder / "state")
        after += 3  # every third write
    assert after > 12  # two staging streams


@pytest.mark.parametrize("wrote", [1, 2, 3, 5])
def test_an_interrupted_copy_is_resumed(pair: Pair, wrote: int) -> None:
    """What a worker that died had staged comes into the target first, whatever its last message was, and the rest behind it."""
    pair.stream("leaf", "S", mixed())
    pair.stream("hub", "T")

    interrupt_run(pair, "run_oversize_copy_task", run_oversize_copy_task, wrote)
    assert pair.state("hub", "T")["messages"] == 0

    found = pair.run()

    assert (found.copied, found.natively) == (9, 5)
    require_copied(pair)


def test_a_repair(pair: Pair) -> None:
    """One that was deleted at the target is missing, and appended; the others are not brought again."""
    pair.stream("leaf", "S", mixed())
    pair.stream("hub", "T")
    pair.run()
    pair.delete("hub", "T", 4, 5)

    found = pair.run()

    assert (found.copied, found.natively) == (2, 2)
    assert sorted(one.data[:1] for one in pair.stored("hub", "T")) == [
        b"%d" % n for n in range(1, 10)
    ]
    pair.require_nothing_left()


def test_without_the_state(pair: Pair) -> None:
    """What is there is known by what is in the target: without any state, with --reset-range and for another entry nothing comes twice."""
    pair.stream("leaf", "S", mixed())
    pair.stream("hub", "T")
    pair.run()
    shutil.rmtree(pair.space.folder / "state")

    assert pair.run().copied == 0
    assert pair.run(reset_range=True).copied == 0
    pair.write_entry(oversize="error")
    assert pair.run().copied == 0
    require_copied(pair)


def test_a_recreated_origin(pair: Pair) -> None:
    """Its sequences mean other messages, and those are copied."""
    pair.stream("leaf", "S", [small(1), large(2)])
    pair.stream("hub", "T")
    pair.run()
    pair.ask("leaf", "STREAM.DELETE.S")
    pair.stream("leaf", "S", [small(3), large(4)])

    assert (found := pair.run(reset_range=True)).copied == 2
    assert found.natively == 1
    assert [one.data[:1] for one in pair.stored("hub", "T")] == [b"1", b"2", b"3", b"4"]


def test_headers_that_act_do_not_act_again(pair: Pair) -> None:
    """They are kept under another name, and an origin of an origin too, as with every copy; what has no room for that is refused."""
    ident, before = (
        b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n",
        b"NATS/1.0\r\nJsplan-Origin: hub/T/1/2026-01-01T00:00:00.000000001Z\r\n\r\n",
    )
    room = b"x" * (MAX_PAYLOAD - 120)
    pair.stream("leaf", "S", [(b"s.a", ident, room), (b"s.a", before, room[:-40])])
    pair.stream("hub", "T", [(b"t.a", ident, b"taken")])

    found = pair.run()

    blocks = [one.without_added_headers[1] for one in pair.stored("hub", "T")[1:]]
    assert found.natively == 2
    assert blocks == [
        ident.replace(b"Nats-", b"Jsplan-Kept-Nats-"),
        before.replace(b"Jsplan-Origin", b"Jsplan-Kept-Origin"),
    ]
    assert pair.run().copied == 0
    pair.ask("leaf", "STREAM.DELETE.S")
    pair.stream("leaf", "S", [small(1), large(2, ident)])
    with pytest.raises(
        RefusedError,
        match=r"message 2 of stream S has 1,048,588 bytes even without the .* accepts at most 1,048,576",
    ):
        pair.run(reset_range=True)
    assert len(pair.stored("hub", "T")) == 3
    pair.require_nothing_left()


def test_the_limit_of_the_target(pair: Pair) -> None:
    """`max_msg_size` counts what servers add as well: refused before the target has anything, it would never go further there."""
    pair.stream("leaf", "S", [small(1), large(2)])
    pair.stream("hub", "T", max_msg_size=MAX_PAYLOAD)

    with pytest.raises(RefusedError, match="message 2 of stream S"):
        pair.run()
    assert pair.stored("hub", "T") == []
    pair.require_nothing_left()


def test_with_a_window(pair: Pair) -> None:
    """Both go together: what was staged when the window closed is in the target, and the next one goes on."""
    pair.stream(
        "leaf",
        "S",
        [row for number in range(1, 17, 2) for row in (small(number), large(number + 1))],
    )
    pair.stream("hub", "T")
    pair.write_entry(oversize="native", window="01:00-05:00")

    found = pair.run(clock=SteppingClock(local_time("01:00"), step=3600.0 * 3, max_steps=2))

    assert (found.copied, found.natively, found.windows) == (16, 8, 2)
    require_copied(pair)


@pytest.mark.matrix
def test_what_it_does_to_a_link(tmp_path: Path, make_hub_leaf: Callable[[], Sandbox]) -> None:
    """With the line that servers add such a message exceeds max_payload in the target. Before 2.12 a link carries it; since then it closes
    whenever somebody reads it from the other side. So that is warned of, and nobody of us reads it over a link.
    """
    pair = Pair.create(tmp_path, make_hub_leaf(), oversize="native")
    pair.stream("leaf", "S", [large(1)])
    pair.stream("hub", "T")
    observer = RecordingObserver()
    pair.run(observer=observer)
    leaf = pair.sandbox["leaf"]

    assert (
        "1 message is larger in hub/stream/T than max_payload, by a line that servers add"
        in observer.texts[-1]
    )
    what = ReadRequest("$JS.hub.API", "T", 1, 1)
    with contextlib.suppress(ApiTimeoutError):
        assert (
            sum(
                rows.num_rows
                for rows in read(lambda: RawConnection(connection_target(leaf)), what, patience=1.0)
            )
            == 1
        )
    closed = "Maximum Message Payload Exceeded" in leaf.log_path.read_text("utf-8")
    assert closed == (version_of(leaf) >= (2, 12))


def version_of(server: Server) -> tuple[int, int]:
    """Its release."""
    major, minor = str(server.info()["version"]).split(".")[:2]
    return int(major), int(minor)


def test_a_target_behind_a_link(pair: Pair) -> None:
    """Connected to the leaf, the hub is behind a link: refused before the target has anything. Without such messages it does not matter."""
    leaf = pair.sandbox["leaf"]
    pair.space.base["connections"] = {
        "hub": {"url": leaf.url, "user": leaf.user, "password": leaf.password}
    }
    pair.write_entry(oversize="native")
    pair.stream("leaf", "S", [small(1), large(2)])
    pair.stream("hub", "T")

    with pytest.raises(
        RefusedError,
        match=r"message 2 of stream S has no space for a header, and \$JS.hub.API is reached over a leafnode link",
    ):
        pair.run()
    assert pair.stored("hub", "T") == []
    pair.require_nothing_left()
    pair.delete("leaf", "S", 2)
    assert pair.run().copied == 1


def test_a_second_hop(pair: Pair) -> None:
    """What is larger in the target by that line is too large for a copy from there, and said to be."""
    pair.stream("leaf", "S", [small(1), large(2)])
    pair.stream("hub", "T")
    pair.stream("hub", "ON")
    pair.run()
    sides = {
        "from": {"domain": "hub", "stream": "T"},
        "to": {"domain": "hub", "stream": "ON"},
        "oversize": "native",
    }
    pair.space.write(backfills=[{"name": "x"} | sides])

    with pytest.raises(
        RefusedError, match=r"message 2 of stream T has .* accepts at most 1,048,576"
    ):
        pair.run()
    pair.require_nothing_left()


# --- verify ----------------------------------------------------------------------------------------------------------


def verify_document(pair: Pair) -> Verification:
    """What both sides say."""
    return backfill.verify(pair.space.load, VerifyOptions("x"), RecordingObserver())


@pytest.mark.usefixtures("spark")
def test_verify_knows_them(pair: Pair) -> None:
    """Equal ones are equal, one that is missing is missing, and one that was altered differs; nothing is extra."""
    pair.stream("leaf", "S", mixed())
    pair.stream("hub", "T")
    pair.run()

    equal = verify_document(pair)
    pair.delete("hub", "T", 4)
    missing = verify_document(pair)

    assert (equal.origins[0].counts["equal"], equal.differences, equal.others) == (9, 0, 0)
    assert (
        missing.origins[0].counts["equal"],
        missing.differences,
        missing.origins[0].counts["missing"],
    ) == (8, 1, 1)
    assert [(one.kind, one.origin_seq) for one in missing.origins[0].listed] == [("missing", 4)]
    pair.run()
    repaired = verify_document(pair)
    assert (repaired.differences, repaired.origins[0].counts["repaired"]) == (0, 1)


# --- what is refused, and said ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"order": "subject"}, "the entry has `order: subject`"), ({"order": "none"}, "the entry has `order: none`"),
        ({"where": "seq > 1"}, "`where` changes messages"), ({"transform": "x.py:run"}, "`transform` changes messages"),
        ({"subject_transform": {"src": "s.>", "dest": "x.>"}}, "`subject_transform` changes"),
        ({"to": {"parquet": "a"}}, "an archive has no such order"), ({"from": {"parquet": "a"}}, "an archive has no such order"),
        ({"from": {"domain": ["hub", "leaf"], "stream": "S"}}, "the entry has 2 origins"),
    ],
)  # fmt: skip
def test_where_it_cannot_be(pair: Pair, entry: dict[str, Any], why: str) -> None:
    """It is refused when the files are read, with the reason and the place."""
    pair.space.write(backfills=[pair.entry | entry])

    with pytest.raises(ConfigError) as refused:
        pair.space.plan()

    (found,) = refused.value.diagnostics
    assert why in found.summary
    assert found.range is not None


def test_only_spark_does_it(pair: Pair) -> None:
    """A source or a snapshot takes everything as it is anyway."""
    pair.stream("leaf", "S", mixed())
    pair.stream("hub", "T")
    pair.write_entry(oversize="native", strategy="native", mode="exact")

    with pytest.raises(RefusedError, match="`oversize: native` is for copies by Spark"):
        pair.run()


def test_the_plan_says_so(pair: Pair) -> None:
    """What it means is among the reasons."""
    pair.stream("leaf", "S", mixed())
    pair.stream("hub", "T")

    listed, found = (
        pair.space.plan().backfills[0],
        backfill.plan(pair.space.load, BackfillOptions("x")),
    )

    assert listed["reason"].endswith(
        "what exceeds max_payload with that goes without (`oversize: native`)"
    )
    assert found.reason == listed["reason"]
    assert json.loads(json.dumps(found.to_json()))["messages"] == 9


def test_a_message_that_says_more_is_known_by_that() -> None:
    """In such a staging stream most messages say where they are from: what their place is there means nothing."""
    import pyarrow as pa  # noqa: PLC0415

    mark = hash_origin("leaf", "S", "2026-01-01T00:00:00Z")
    name = f"JSPLAN_STAGING_BACKFILL_00aa_{mark}"
    line = f"\r\nNats-Stream-Source: {name} 17 > >\r\n\r\n"
    blocks = [
        f"NATS/1.0{line}",
        f"NATS/1.0\r\nJsplan-Origin: leaf/S/3/x{line}",
        "NATS/1.0\r\nA: b\r\n\r\n",
        "",
    ]

    found = find_staged_sequences(pa.array([block.encode() for block in blocks], BYTES), mark)

    assert found.to_pylist() == [17, None, None, None]
    assert find_staged_sequences(
        pa.array([blocks[0].encode()], BYTES), hash_origin("leaf", "S", "another")
    ).to_pylist() == [None]


@pytest.mark.soak
def test_in_a_cluster(tmp_path: Path) -> None:
    """With three replicas on both sides, and as many of the staging streams: each once, at its place, known again."""
    with Sandbox.cluster(binary=PROGRAM) as sandbox:
        server = next(iter(sandbox.servers.values()))
        connection = {"url": server.url} | (
            {"user": server.user, "password": server.password} if server.user else {}
        )
        base = {
            "jsplan": 1,
            "workspace": "test",
            "connections": {"c": connection},
            "domains": {"c": {"connection": "c", "js_domain": None}},
        }
        sides = {
            "from": {"domain": "c", "stream": "S"},
            "to": {"domain": "c", "stream": "T"},
            "oversize": "native",
        }
        space = Space(tmp_path, base).write(backfills=[{"name": "x"} | sides])
        with Raw(server.url, server.user, server.password, timeout=30) as raw:
            for name in ("S", "T"):
                raw.api_ok(
                    f"$JS.API.STREAM.CREATE.{name}",
                    {"name": name, "subjects": [f"{name.lower()}.>"], "num_replicas": 3},
                )
            raw.subscribe("_INBOX.acks")
            for subject, block, data in mixed():
                raw.publish_raw(f"{subject.decode()} _INBOX.acks", block, data)
                raw.next_message()
            raw.api_ok("$JS.API.STREAM.MSG.DELETE.S", {"seq": 3})

        with without_spark():
            found, again = (
                backfill.run(space.load, BackfillOptions(name="x"), RecordingObserver()).origins[0]
                for _ in range(2)
            )

        assert (found.copied, found.natively, found.gaps, again.copied) == (8, 5, [[3, 3]], 0)
        assert [data for *_, data in read_all(server, "$JS.API", "T")] == [
            row[2] for row in mixed() if row[2] != b"3"
        ]
