"""Strategy snapshot: a new target is made from a snapshot of its origin, or not at all."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.backfill.snapshot_copy import SnapshotRestore
from jsplan.errors import PlanError, RefusedError
from tests.backfill.backfill_pair import Pair, create_bulk_stream, numbered_rows, without_spark
from tests.support import undeleted_folder
from tests.support.raw import streams
from tests.support.simulated_kill import SimulatedKill, kill_after

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox

pytestmark = pytest.mark.timeout(180)

TARGET: dict[str, Any] = {
    "name": "T",
    "domain": "hub",
    "subjects": ["t.>"],
    "description": "history",
}


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Hub and leaf; an entry copies `S` into `T` of the hub, which only the files declare."""
    return write_workspace(Pair.create(tmp_path, clean_hub_leaf))


def write_workspace(pair: Pair, stream: dict[str, Any] | None = None, /, **entry: Any) -> Pair:
    """Write the workspace: the target, and the entry."""
    pair.write_entry(**({"mode": "exact"} | entry))
    pair.space.write(streams=[stream or TARGET], backfills=[pair.entry])
    return pair


def apply(pair: Pair, **options: Any) -> tuple[Plan, ApplyResult]:
    """Apply, without Spark."""
    with without_spark():
        return pair.space.apply(**options)


def require_same(pair: Pair, others: int = 0, name: str = "T") -> None:
    """Require the messages of the origin unchanged, the declared target, and nothing left."""
    origin, target = pair.stored("leaf", "S"), pair.stored("hub", name)
    assert target[: len(origin)] == origin
    assert len(target) - len(origin) == others
    config = pair.ask("hub", f"STREAM.INFO.{name}")["config"]
    assert (config["subjects"], config["description"]) == (["t.>"], "history")
    assert not [key for key in config.get("metadata") or {} if key.startswith("jsplan.")]
    pair.require_nothing_left()


def test_apply_creates_the_target_with_all_messages(pair: Pair) -> None:
    """An apply creates the target with all messages, and the next plan is empty."""
    pair.stream(
        "leaf",
        "S",
        [(b"s.a", b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % n, b"%d" % n) for n in range(1, 31)],
    )
    pair.delete("leaf", "S", 7)

    plan, result = apply(pair)

    assert (plan.backfills[0]["strategy"], plan.backfills[0]["messages"]) == ("snapshot", 29)
    assert result.backfills == [
        {"name": "x", "status": "done", "copied": 29, "gap_messages": 1, "error": None}
    ]
    assert result.exit_code == 0
    origin = pair.state_record["origins"][0]
    assert (origin["strategy"], origin["status"], origin["gaps"]) == ("snapshot", "done", [[7, 7]])
    assert not pair.space.plan().has_changes
    pair.publish("hub", [(b"t.a", b"", b"new")])
    require_same(pair, others=1)


def test_an_origin_that_never_had_a_message(pair: Pair) -> None:
    """An apply creates the target, without a message."""
    pair.stream("leaf", "S")

    _, result = apply(pair)

    assert (result.exit_code, result.backfills[0]["status"]) == (0, "done")
    assert not pair.space.plan().has_changes
    require_same(pair)


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_a_snapshot_of_a_queue(pair: Pair, retention: str) -> None:
    """An origin that consumers empty keeps all of its messages, and the target gets them."""
    pair.stream("leaf", "S", retention=retention)
    config = {"durable_name": "W", "ack_policy": "explicit"}
    pair.ask("leaf", "CONSUMER.CREATE.S.W", {"stream_name": "S", "config": config})
    pair.publish("leaf", numbered_rows(30))

    _, result = apply(pair)

    assert result.exit_code == 0
    assert pair.stored("hub", "T") == pair.stored("leaf", "S")
    assert pair.state("leaf", "S")["messages"] == 30


def test_a_target_over_messages_of_a_deleted_stream(pair: Pair) -> None:
    """A target whose name had a stream that the server did not delete has only the copy."""
    pair.stream("leaf", "S", numbered_rows(30))
    pair.stream("hub", "OTHER")  # the last stream of an account takes its folder along
    pair.stream("hub", "T", [(b"t.a", b"", b"old")])
    with undeleted_folder.until_recreated(pair.sandbox["hub"], "T"):
        pair.ask("hub", "STREAM.DELETE.T")
        _, result = apply(pair)
    assert result.exit_code == 0
    require_same(pair)


def test_a_later_run_copies_only_new_messages(pair: Pair) -> None:
    """Messages with their own sequence and time are present, and no later run copies them."""
    pair.stream("leaf", "S", numbered_rows(30))
    apply(pair)
    pair.delete("leaf", "S", 3)
    pair.publish("leaf", numbered_rows(5, first=31))

    assert pair.run().copied == 0
    assert pair.run(reset_range=True).copied == 5
    assert [int(one.data) for one in pair.stored("hub", "T")] == list(range(1, 36))


@pytest.mark.matrix
def test_dying_before_any_write(pair: Pair) -> None:
    """An apply that dies before any write is completed by the next.

    Origin and target have the same name, as servers of every release restore it.
    """
    pair.stream("leaf", "S", numbered_rows(20))
    write_workspace(pair, TARGET | {"name": "S"}, target={"stream": "S"})
    deaths = 0
    while True:
        with kill_after(deaths):
            try:
                apply(pair)
            except SimulatedKill:
                pass
            else:
                break
        plan = pair.space.plan()
        assert not plan.errored, plan.diagnostics

        _, result = apply(pair)

        assert result.exit_code == 0, deaths
        assert pair.space.plan().backfills == []
        assert not pair.space.plan().has_changes
        require_same(pair, name="S")
        pair.ask("hub", "STREAM.DELETE.S")
        shutil.rmtree(pair.space.folder / "state")
        deaths += 1
    assert deaths > 8


def test_an_origin_that_is_recreated_meanwhile(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that was made while its origin was recreated is not activated."""
    pair.stream("leaf", "S", numbered_rows(5))
    transfer = SnapshotRestore._transfer  # noqa: SLF001 - between the two looks at the origin

    async def recreate(restore: SnapshotRestore) -> None:
        pair.ask("leaf", "STREAM.DELETE.S")
        pair.stream("leaf", "S", numbered_rows(5, first=101))
        await transfer(restore)

    monkeypatch.setattr(SnapshotRestore, "_transfer", recreate)
    _, result = apply(pair)

    assert result.exit_code != 0
    assert "leaf/stream/S was recreated" in str(result.to_json())
    assert pair.ask("hub", "STREAM.INFO.T")["config"]["subjects"] != ["t.>"]


def test_an_interrupted_restore_is_repeated(pair: Pair) -> None:
    """A target of an interrupted restore does not count as created, and is created again.

    Newer servers keep the restored part. It has no subjects of users.
    """
    create_bulk_stream(pair.sandbox["leaf"], "S", 20_000, 500)
    # Begun twice, the record, the restore, and some of its chunks.
    with kill_after(6), pytest.raises(SimulatedKill):
        apply(pair)
    left = pair.raw_info("hub", "T")
    if left is not None:
        assert left["config"]["subjects"] == ["jsplan.staging.T"]
    assert pair.space.plan().summary["add"] == 1

    _, result = apply(pair)

    assert result.exit_code == 0
    assert pair.state("hub", "T")["messages"] == 20_000
    assert pair.ask("hub", "STREAM.INFO.T")["config"]["subjects"] == ["t.>"]
    assert not pair.space.plan().has_changes


def test_a_restored_message_that_differs(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """One message among many that the target lacks is found, and the target is not activated."""
    create_bulk_stream(pair.sandbox["leaf"], "S", 20_000, 10)
    compare = SnapshotRestore._require_equal_state  # noqa: SLF001 - between restore and comparison

    def compare_and_lose(*given: Any) -> None:
        compare(*given)
        pair.ask("hub", "STREAM.MSG.DELETE.T", {"seq": 12_345})

    with monkeypatch.context() as patch:
        patch.setattr(SnapshotRestore, "_require_equal_state", compare_and_lose)
        _, result = apply(pair)

    assert "message 12,345 differs" in str(result.steps[0].error)
    assert pair.ask("hub", "STREAM.INFO.T")["config"]["subjects"] == ["jsplan.staging.T"]
    assert apply(pair)[1].exit_code == 0
    assert pair.state("hub", "T")["messages"] == 20_000


def test_a_restore_that_was_not_compared_is_repeated(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that was restored but not compared takes no messages, and is created again."""
    pair.stream("leaf", "S", numbered_rows(20))

    def die(*_: Any) -> None:
        raise SimulatedKill

    with monkeypatch.context() as patch:
        patch.setattr(SnapshotRestore, "_require_equal_state", die)
        with pytest.raises(SimulatedKill):
            apply(pair)
    assert pair.ask("hub", "STREAM.INFO.T")["config"]["subjects"] == ["jsplan.staging.T"]
    assert pair.space.plan().summary["add"] == 1

    assert apply(pair)[1].exit_code == 0
    require_same(pair)


def test_an_incomplete_target_of_another_workspace_stays(pair: Pair) -> None:
    """An incomplete target of another workspace is not deleted."""
    pair.stream("leaf", "S", numbered_rows(3))
    pair.stream(
        "hub", "T", [(b"t.a", b"", b"theirs")], metadata={"jsplan.backfill.incomplete": "other/x"}
    )

    _, result = apply(pair)

    assert result.exit_code == 6
    assert "backfill x of workspace other is already restoring hub/stream/T" in str(
        result.steps[0].error
    )
    assert len(pair.stored("hub", "T")) == 1


@pytest.mark.parametrize(
    ("entry", "target", "words"),
    [
        ({"mode": "tagged"}, {}, "keeps no Jsplan-Origin"),
        ({"origin": {"start_seq": 2}}, {}, "the entry has a start or filters"),
        ({"origin": {"end_seq": 2}}, {}, "the range has an end"),
        ({}, {"max_msgs": 2}, "would not keep all of it (`max_msgs`)"),
        (
            {},
            {"max_age": "100ms", "duplicate_window": "100ms"},
            "would expire what is older than 100ms",
        ),
        ({}, {"sources": [{"name": "OTHER"}]}, "has a mirror or sources of its own"),
    ],
)
def test_what_a_snapshot_cannot_do_is_refused(
    pair: Pair, entry: dict[str, Any], target: dict[str, Any], words: str
) -> None:
    """An entry that a snapshot cannot copy is an error in the plan, and nothing is created."""
    pair.stream("leaf", "S", numbered_rows(3))
    write_workspace(pair, TARGET | target, **({"strategy": "snapshot"} | entry))

    pair.sandbox["hub"].wait_until(
        lambda: any(words in d.summary for d in pair.space.plan().diagnostics if d.code == "JS472"),
        words,
    )
    with pytest.raises(PlanError):
        apply(pair)
    with pair.raw() as raw:
        assert streams(raw, "$JS.hub.API") == []


def test_no_backfill_is_refused_for_a_snapshot(pair: Pair) -> None:
    """An apply with `--no-backfill` is refused if an entry needs a snapshot of a new target."""
    pair.stream("leaf", "S", numbered_rows(3))
    write_workspace(pair, strategy="snapshot")

    with pytest.raises(RefusedError, match="would create hub/stream/T empty") as refused:
        apply(pair, backfill=False)

    assert "--exclude hub/stream/T" in str(refused.value.hint)
    write_workspace(pair)
    _, result = apply(pair, backfill=False)
    assert "a snapshot is not possible any more" in str(result.backfills[0]["error"])
    assert pair.run().path == "spark, via a staging stream"


def test_messages_near_max_payload_are_compared(pair: Pair) -> None:
    """Messages that are too large for an answer to MSG.GET over a link are compared too."""
    pair.stream(
        "leaf",
        "S",
        [(b"s.a", b"NATS/1.0\r\nA: 1\r\n\r\n", bytes([65 + n]) * 1_000_000) for n in range(3)],
    )

    _, result = apply(pair)

    assert result.exit_code == 0
    require_same(pair)
