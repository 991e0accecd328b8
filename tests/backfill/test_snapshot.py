"""strategy snapshot: a target that does not exist is made from the origin's snapshot, whole or not at all, whoever dies meanwhile."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.backfill.snapshot_copy import SnapshotRestore
from jsplan.errors import PlanError, RefusedError
from tests.backfill.backfill_pair import Pair, create_bulk_stream, numbered_rows, without_spark
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
    """Hub and leaf; an entry copies `S` of the leaf into `T` of the hub, which the files declare and nobody has made."""
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
    """Sequence, time, subject, headers and payload are what the origin has; the target is as declared; nothing is left behind."""
    origin, target = pair.stored("leaf", "S"), pair.stored("hub", name)
    assert target[: len(origin)] == origin
    assert len(target) - len(origin) == others
    config = pair.ask("hub", f"STREAM.INFO.{name}")["config"]
    assert (config["subjects"], config["description"]) == (["t.>"], "history")
    assert not [key for key in config.get("metadata") or {} if key.startswith("jsplan.")]
    pair.require_nothing_left()


def test_the_target_is_made_whole(pair: Pair) -> None:
    """The create of the plan makes it with all messages; the entry is done, the next plan is empty, and it takes messages from now on."""
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
    leg = pair.state_record["origins"][0]
    assert (leg["strategy"], leg["status"], leg["gaps"]) == ("snapshot", "done", [[7, 7]])
    assert not pair.space.plan().has_changes
    pair.publish("hub", [(b"t.a", b"", b"new")])
    require_same(pair, others=1)


def test_a_run_after_it_copies_nothing(pair: Pair) -> None:
    """What is at its own sequence with its own time is there: neither a run, a fresh one, nor another text brings it again."""
    pair.stream("leaf", "S", numbered_rows(30))
    apply(pair)
    pair.delete("leaf", "S", 3)
    pair.publish("leaf", numbered_rows(5, first=31))

    assert pair.run().copied == 0
    assert pair.run(reset_range=True).copied == 5
    assert [int(one.data) for one in pair.stored("hub", "T")] == list(range(1, 36))


@pytest.mark.matrix
def test_dying_before_any_write(pair: Pair) -> None:
    """However many writes an apply came to before it died: the next one leaves the target whole, recorded, and nothing of ours.

    Under its own name, as servers of every release restore it.
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


def test_half_of_it_counts_as_nothing(pair: Pair) -> None:
    """A restore that was killed leaves what it had on newer servers: that is not there for a plan, listens to nobody, and is made anew."""
    create_bulk_stream(pair.sandbox["leaf"], "S", 20_000, 500)
    with (
        kill_after(6),
        pytest.raises(SimulatedKill),
    ):  # begun twice, the record, the restore, and some of its chunks
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


def test_what_was_not_opened_is_recreated(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, but not compared yet when its maker died: it takes nothing from anybody, and the next apply begins again."""
    pair.stream("leaf", "S", numbered_rows(20))

    def dead(*_: Any) -> None:
        raise SimulatedKill

    with monkeypatch.context() as patch:
        patch.setattr(SnapshotRestore, "_require_equal_state", dead)
        with pytest.raises(SimulatedKill):
            apply(pair)
    assert pair.ask("hub", "STREAM.INFO.T")["config"]["subjects"] == ["jsplan.staging.T"]
    assert pair.space.plan().summary["add"] == 1

    assert apply(pair)[1].exit_code == 0
    require_same(pair)


def test_an_unknown_half_stays(pair: Pair) -> None:
    """What another workspace fills under that name is not deleted."""
    pair.stream("leaf", "S", numbered_rows(3))
    pair.stream(
        "hub", "T", [(b"t.a", b"", b"theirs")], metadata={"jsplan.backfill.incomplete": "other/x"}
    )

    _, result = apply(pair)

    assert result.exit_code == 6
    assert "other/x fills it" in str(result.steps[0].error)
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
    """An entry that insists on a snapshot is told why there is none, in the plan; nothing is made."""
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


def test_later_is_too_late(pair: Pair) -> None:
    """Without its backfill an apply would make the target empty: an entry that insists on a snapshot keeps it from that."""
    pair.stream("leaf", "S", numbered_rows(3))
    write_workspace(pair, strategy="snapshot")

    with pytest.raises(RefusedError, match="would create hub/stream/T empty") as refused:
        apply(pair, backfill=False)

    assert "--exclude hub/stream/T" in str(refused.value.hint)
    write_workspace(pair)
    _, result = apply(pair, backfill=False)
    assert "a snapshot is not possible any more" in str(result.backfills[0]["error"])
    assert pair.run().path == "a source of the server"


def test_messages_that_a_link_does_not_take_in_one_answer(pair: Pair) -> None:
    """What is nearly as large as max_payload no link carries in an answer to MSG.GET: it is compared all the same."""
    pair.stream(
        "leaf",
        "S",
        [(b"s.a", b"NATS/1.0\r\nA: 1\r\n\r\n", bytes([65 + n]) * 1_000_000) for n in range(3)],
    )

    _, result = apply(pair)

    assert result.exit_code == 0
    require_same(pair)
