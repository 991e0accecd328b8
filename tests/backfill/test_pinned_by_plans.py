"""The range that a plan shows is the one that its apply keeps in state and copies, whatever comes to the origin or goes meanwhile."""

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
    """Hub and leaf; `S` has twenty messages, and the files have a target that nobody has made."""
    pair = Pair.create(tmp_path, clean_hub_leaf)
    pair.stream("leaf", "S", numbered_rows(20))
    return write_workspace(pair)


def write_workspace(pair: Pair, *more: dict[str, Any], **entry: Any) -> Pair:
    """Write the workspace: the target, more streams, and the entry."""
    pair.write_entry(**entry)
    pair.space.write(streams=[TARGET, *more], backfills=[pair.entry])
    return pair


def apply(pair: Pair, plan: Plan | None = None, **options: Any) -> ApplyResult:
    """Apply a plan as it was saved, or a new one, without Spark."""
    with without_spark():
        return (
            pair.space.apply_saved(plan, **options)
            if plan is not None
            else pair.space.apply(**options)[1]
        )


def planned_ranges(plan: Plan) -> list[tuple[int, int]]:
    """Of the only entry."""
    return [(end["range"]["first"], end["range"]["last"]) for end in plan.backfills[0]["from"]]


def pinned_ranges(pair: Pair) -> list[tuple[int, int]]:
    """What state keeps."""
    return [(leg["first"], leg["last"]) for leg in pair.state_record["origins"]]


def test_a_saved_plan_is_copied_as_it_was_planned(pair: Pair) -> None:
    """What came since is not part of it, and what went is a gap: nothing is measured again."""
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


def test_another_stream_in_the_place_of_an_origin_is_stale(pair: Pair) -> None:
    """Its sequences mean other messages: nothing is changed, and nothing kept."""
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


def test_an_entry_that_says_something_else_is_stale(pair: Pair) -> None:
    """A plan was approved for what the entry said then."""
    plan = pair.space.plan()
    write_workspace(pair, where="subject = 's.y'")

    with pytest.raises(
        StalePlanError, match=r"backfill x was changed in the files .*\. Nothing was changed"
    ):
        apply(pair, plan)


def test_no_backfill_keeps_the_range(pair: Pair) -> None:
    """It was planned: a run that comes later copies what the plan said, and later plans say the same."""
    first = pair.space.plan()
    apply(pair, first, backfill=False)
    pair.publish("leaf", numbered_rows(5, first=21))

    again = pair.space.plan()

    assert (planned_ranges(again), again.backfills[0]["messages"]) == ([(1, 20)], 20)
    status = backfill.status(pair.space.load).entries[0]
    assert (status.status, [(leg["first"], leg["last"]) for leg in status.origins]) == (
        "new",
        [(1, 20)],
    )
    assert (pair.run().copied, pinned_ranges(pair)) == (20, [(1, 20)])
    assert pair.space.plan().backfills == []
    assert pair.run(reset_range=True).copied == 5


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("spark")
def test_what_was_planned_and_never_run_can_be_looked_at(pair: Pair) -> None:
    """Measured and compared by the range of the plan; neither begins it."""
    apply(pair, backfill=False)
    pair.publish("leaf", numbered_rows(5, first=21))

    looked = backfill.plan(pair.space.load, BackfillOptions(name="x"))
    compared = backfill.verify(pair.space.load, VerifyOptions("x"), RecordingObserver())

    assert (looked.status, looked.messages, looked.origins[0].pinned, looked.origins[0].last) == (
        "new",
        20,
        True,
        20,
    )
    assert (compared.origins[0].counts["missing"], compared.origins[0].last) == (20, 20)
    assert pair.state_record["planned"] is True


def test_by_what_it_is_copied_is_chosen_when_it_is(pair: Pair) -> None:
    """A plan takes a snapshot for a target that is not there; once it was made without one, a source is what is left."""
    write_workspace(pair, mode="exact")
    planned = pair.space.plan().backfills[0]["strategy"]
    apply(pair, backfill=False)

    again = pair.space.plan().backfills[0]["strategy"]
    pair.run()

    assert (planned, again, pair.state_record["origins"][0]["strategy"]) == (
        "snapshot",
        "native",
        "native",
    )
    assert pair.state("hub", "T")["messages"] == 20


def test_a_resumed_run_copies_what_was_planned(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """An apply that died before it copied anything has kept the range; the next one goes by it."""

    async def dead(*_: Any) -> None:
        raise SimulatedKill

    with monkeypatch.context() as patch:
        patch.setattr("jsplan.workflows.apply.run_planned_backfills", dead)
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
def test_a_plan_means_what_a_run_means(pair: Pair, bounds: str) -> None:
    """Bounds are read alike, ends included, whether a plan pins them or a run that was never planned."""
    pair.delete("leaf", "S", 1, 2)
    said = BOUNDS[bounds]({seq: one.time for seq, one in enumerate(pair.stored("leaf", "S"))})
    write_workspace(pair, origin=said)

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
    """One that was away is pinned when somebody plans it; the others are what they were."""
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
    pair.sandbox["leaf"].start()
    pair.sandbox.wait_ready()
    pair.sandbox["hub"].wait_until(lambda: not pair.space.plan().deferred, "reach the leaf again")
    second = pair.space.plan()
    pair.publish("leaf", numbered_rows(5, first=21))

    apply(pair, second)

    assert (planned_ranges(first), alone) == ([(1, 10)], [(1, 10)])
    assert planned_ranges(second) == pinned_ranges(pair) == [(1, 20), (1, 10)]
    assert pair.state("hub", "T")["messages"] == 30
    assert not pair.space.plan().has_changes


def test_two_ranges_of_one_stream(pair: Pair) -> None:
    """Each side of an entry has its own."""
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
    """Also where nothing but the origin is a stream."""
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


def test_an_origin_that_the_plan_recreates_is_measured_then(pair: Pair) -> None:
    """What it will have nobody knows yet: the plan has no range of it, and the copy pins one."""
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
