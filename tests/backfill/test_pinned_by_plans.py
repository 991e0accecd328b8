"""The range that a plan shows is the one that its apply pins and copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import StalePlanError
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions, VerifyOptions
from tests.backfill.backfill_pair import Pair, numbered_rows, without_spark
from tests.support.raw import streams
from tests.support.simulated_kill import SimulatedKill
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox

pytestmark = pytest.mark.timeout(120)

TARGET: dict[str, Any] = {"name": "T", "domain": "hub", "subjects": ["t.>"]}


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Hub and leaf; `S` has twenty messages, and the files have a target that does not exist."""
    pair = Pair.create(tmp_path, clean_hub_leaf)
    pair.stream("leaf", "S", numbered_rows(20))
    return write_workspace(pair)


def write_workspace(pair: Pair, *more: dict[str, Any], **entry: Any) -> Pair:
    """Write the workspace: the target, more streams, and the entry."""
    pair.write_entry(**entry)
    pair.space.write(streams=[TARGET, *more], backfills=[pair.entry])
    return pair


def apply(pair: Pair, plan: Plan | None = None, **options: Any) -> ApplyResult:
    """Apply a saved or a new plan, without Spark."""
    with without_spark():
        return (
            pair.space.apply_saved(plan, **options)
            if plan is not None
            else pair.space.apply(**options)[1]
        )


def planned_ranges(plan: Plan) -> list[tuple[int, int]]:
    """Return the ranges of the only entry of a plan."""
    return [(end["range"]["first"], end["range"]["last"]) for end in plan.backfills[0]["from"]]


def pinned_ranges(pair: Pair) -> list[tuple[int, int]]:
    """Return the ranges in state."""
    return [(origin["first"], origin["last"]) for origin in pair.state_record["origins"]]


def test_a_saved_plan_copies_its_range(pair: Pair) -> None:
    """Messages after a saved plan are not copied, and those that were removed are gaps."""
    plan = pair.space.plan()
    pair.publish("leaf", numbered_rows(5, first=21))
    pair.ask("leaf", "STREAM.PURGE.S", {"seq": 4})

    result = apply(pair, plan)

    assert planned_ranges(plan) == pinned_ranges(pair) == [(1, 20)]
    assert result.backfills == [
        {"name": "x", "status": "done", "copied": 17, "gap_messages": 3, "error": None}
    ]
    assert (pair.state_record["pinned_at"], pair.state_record["planned"]) == (plan.timestamp, False)
    assert (
        pair.state_record["origins"][0]["created"]
        == plan.backfills[0]["from"][0]["range"]["created"]
    )
    pair.require_copied(seqs=range(4, 21))
    assert not pair.space.plan().has_changes


def test_a_recreated_origin_makes_a_plan_stale(pair: Pair) -> None:
    """A plan is stale after its origin was recreated, and nothing is changed."""
    plan = pair.space.plan()
    pair.ask("leaf", "STREAM.DELETE.S")
    pair.stream("leaf", "S", numbered_rows(20))

    with pytest.raises(
        StalePlanError,
        match=r"leaf/stream/S was recreated.* Nothing was changed",
    ):
        apply(pair, plan)

    with pair.raw() as raw:
        assert streams(raw, "$JS.hub.API") == []
    assert not (pair.space.folder / "state" / "test.json").exists()


def test_a_changed_entry_makes_a_plan_stale(pair: Pair) -> None:
    """A plan is stale after its entry was changed."""
    plan = pair.space.plan()
    write_workspace(pair, where="subject = 's.y'")

    with pytest.raises(
        StalePlanError, match=r"backfill x was changed in the files .*\. Nothing was changed"
    ):
        apply(pair, plan)


def test_no_backfill_keeps_the_range(pair: Pair) -> None:
    """An apply with `--no-backfill` pins the range that a later run copies."""
    first = pair.space.plan()
    apply(pair, first, backfill=False)
    pair.publish("leaf", numbered_rows(5, first=21))

    again = pair.space.plan()

    assert (planned_ranges(again), again.backfills[0]["messages"]) == ([(1, 20)], 20)
    status = backfill.status(pair.space.load).entries[0]
    assert (status.status, [(origin.first, origin.last) for origin in status.origins]) == (
        "new",
        [(1, 20)],
    )
    assert (pair.run().copied, pinned_ranges(pair)) == (20, [(1, 20)])
    assert pair.space.plan().backfills == []
    assert pair.run(reset_range=True).copied == 5


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("spark")
def test_preview_and_verify_of_a_planned_entry(pair: Pair) -> None:
    """`backfill plan` and `verify` use the range of a plan that has not run, without running it."""
    apply(pair, backfill=False)
    pair.publish("leaf", numbered_rows(5, first=21))

    preview = backfill.plan(pair.space.load, BackfillOptions(name="x"))
    compared = backfill.verify(pair.space.load, VerifyOptions("x"), RecordingObserver())

    assert (preview.status, preview.messages) == ("new", 20)
    assert (preview.origins[0].pinned, preview.origins[0].last) == (True, 20)
    assert (compared.origins[0].counts["missing"], compared.origins[0].last) == (20, 20)
    assert pair.state_record["planned"] is True


def test_the_strategy_is_chosen_when_it_runs(pair: Pair) -> None:
    """A planned snapshot becomes a copy by Spark if the target was created without it."""
    write_workspace(pair, mode="exact")
    planned = pair.space.plan().backfills[0]["strategy"]
    apply(pair, backfill=False)

    again = pair.space.plan().backfills[0]["strategy"]
    pair.run()

    assert (planned, again, pair.state_record["origins"][0]["strategy"]) == (
        "snapshot",
        "spark",
        "spark",
    )
    assert pair.state("hub", "T")["messages"] == 20


def test_a_resumed_run_copies_what_was_planned(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The apply after one that died before its copy uses the pinned range."""

    async def die(*_: Any) -> None:
        raise SimulatedKill

    with monkeypatch.context() as patch:
        patch.setattr("jsplan.workflows.apply.run_planned_backfills", die)
        with pytest.raises(SimulatedKill):
            apply(pair)
    pair.publish("leaf", numbered_rows(5, first=21))

    result = apply(pair)

    assert (pinned_ranges(pair), [done["copied"] for done in result.backfills]) == ([(1, 20)], [20])


BOUNDS: dict[str, Any] = {
    "nothing": lambda _: {},
    "sequences": lambda _: {"start_seq": 5, "end_seq": 15},
    "beyond": lambda _: {"end_seq": 50},
    "from a message on": lambda times: {"start_time": times[4]},
    "to a message": lambda times: {"end_time": times[9]},
    "between": lambda times: {"start_time": times[4], "end_time": times[9]},
    "later": lambda _: {"end_time": "2300-01-01T00:00:00Z"},
}


@pytest.mark.matrix
@pytest.mark.parametrize("bounds", BOUNDS)
def test_plan_and_run_read_bounds_alike(pair: Pair, bounds: str) -> None:
    """A plan and a run read the bounds of an entry alike, both ends included."""
    pair.delete("leaf", "S", 1, 2)
    limits = BOUNDS[bounds]({seq: one.time for seq, one in enumerate(pair.stored("leaf", "S"))})
    write_workspace(pair, origin=limits)

    planned = planned_ranges(pair.space.plan())
    pair.stream("hub", "T")
    pair.run()

    assert planned == pinned_ranges(pair)
    expected = {
        "sequences": (5, 15),
        "from a message on": (7, 20),
        "to a message": (3, 12),
        "between": (7, 12),
    }
    assert planned == [expected.get(bounds, (3, 20))]


def test_several_origins_have_a_range_each(pair: Pair) -> None:
    """An origin that was offline is pinned by a later plan, and other ranges are unchanged."""
    pair.stream("hub", "H", numbered_rows(10, subject=b"h.x"))
    sides = [{"domain": "leaf", "stream": "S"}, {"domain": "hub", "stream": "H"}]
    pair.space.write(
        streams=[TARGET],
        backfills=[{"name": "x", "from": sides, "to": {"domain": "hub", "stream": "T"}}],
    )
    pair.sandbox["leaf"].kill()
    first = pair.space.plan()
    pair.publish("hub", numbered_rows(5, first=11, subject=b"h.x"))
    apply(pair, first)
    alone = pinned_ranges(pair)
    pair.start_leaf()
    second = pair.space.plan()
    pair.publish("leaf", numbered_rows(5, first=21))

    apply(pair, second)

    assert (planned_ranges(first), alone) == ([(1, 10)], [(1, 10)])
    assert planned_ranges(second) == pinned_ranges(pair) == [(1, 20), (1, 10)]
    assert pair.state("hub", "T")["messages"] == 30
    assert not pair.space.plan().has_changes


def test_two_ranges_of_one_stream(pair: Pair) -> None:
    """Each side of an entry has its own range."""
    sides = [
        {"domain": "leaf", "stream": "S", "end_seq": 5},
        {"domain": "leaf", "stream": "S", "start_seq": 16},
    ]
    pair.space.write(
        streams=[TARGET],
        backfills=[{"name": "x", "from": sides, "to": {"domain": "hub", "stream": "T"}}],
    )
    plan = pair.space.plan()
    pair.publish("leaf", numbered_rows(5, first=21))

    apply(pair, plan)

    assert planned_ranges(plan) == pinned_ranges(pair) == [(1, 5), (16, 20)]
    assert sorted(int(one.data) for one in pair.stored("hub", "T")) == [
        *range(1, 6),
        *range(16, 21),
    ]


def test_an_archive_has_the_range_of_the_plan(pair: Pair) -> None:
    """An archive has the range of the plan."""
    pair.space.write(
        backfills=[
            {"name": "x", "from": {"domain": "leaf", "stream": "S"}, "to": {"parquet": "archive"}}
        ]
    )
    plan = pair.space.plan()
    pair.publish("leaf", numbered_rows(5, first=21))

    result = apply(pair, plan)

    assert planned_ranges(plan) == pinned_ranges(pair) == [(1, 20)]
    assert [done["copied"] for done in result.backfills] == [20]


def test_a_recreated_origin_is_pinned_by_the_copy(pair: Pair) -> None:
    """A plan has no range for an origin that it recreates, and the copy pins one."""
    origin = {
        "name": "S",
        "domain": "leaf",
        "subjects": ["s.>"],
        "lifecycle": {"on_replace": "recreate"},
    }
    write_workspace(pair, origin)
    apply(pair, adopt=True, backfill=False)
    before = pinned_ranges(pair)
    (pair.space.folder / "state" / "test.json").unlink()
    write_workspace(pair, origin | {"storage": "memory"})
    allowed = ("DELETES_STREAM", "DELETES_MESSAGES", "BREAKS_REPLICATION")

    plan = pair.space.plan(adopt=True, allow_hazards=allowed)

    assert before == [(1, 20)]
    assert [
        tuple(change.change.actions) for change in plan.resource_changes if change.domain == "leaf"
    ] == [("delete", "create")]
    assert [sorted(end) for end in plan.backfills[0]["from"]] == [["domain", "stream"]]
    assert [done["copied"] for done in apply(pair, plan).backfills] == [0]
