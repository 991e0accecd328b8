"""History that a source leaves out, since it begins later: planned with the source, copied by apply or declined, and then never again."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from jsplan.cli.main import main
from jsplan.documents.schema import schemas
from jsplan.errors import JsplanError, NotAvailableError
from jsplan.units import next_instant
from jsplan.workflows import backfill
from jsplan.workflows.history import history
from jsplan.workflows.revert import RevertOptions, revert
from tests.backfill.backfill_pair import Pair, without_spark
from tests.support.process import PROGRAM
from tests.support.raw import streams
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.workspaces import RecordingObserver, Space, approve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox

pytestmark = pytest.mark.timeout(180)

ALL: dict[str, Any] = {"name": "ALL", "domain": "hub", "subjects": ["all.>"]}
NAME = "leaf/stream/S>hub/stream/ALL"
COMMAND = "jsplan backfill run --from leaf/stream/S --to hub/stream/ALL"
#: So many things an apply does until the source is there and the copy has begun; deaths in the copy itself are looked at elsewhere.
CLOSE_COUNT = 12
ENDS: dict[str, Any] = {"name": None, "origin": "leaf/stream/S", "target": "hub/stream/ALL"}


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Hub and leaf; the leaf has `S` with twenty messages, half of them on `s.a`."""
    pair = Pair.create(tmp_path, clean_hub_leaf)
    pair.stream("leaf", "S", [(b"s.a" if n % 2 else b"s.b", b"", b"%d" % n) for n in range(1, 21)])
    return pair


def write_sources(pair: Pair, *sources: dict[str, Any], **config: Any) -> Space:
    """The workspace with a stream that sources `S` like this."""
    return pair.space.write(
        streams=[
            ALL
            | config
            | {"sources": [{"name": "S", "domain": "leaf"} | source for source in sources]}
        ]
    )


def apply(pair: Pair, **options: Any) -> tuple[Plan, ApplyResult]:
    """Apply, without Spark."""
    with without_spark():
        return pair.space.apply(**options)


def payloads(pair: Pair) -> list[int]:
    """What the target holds, as numbers, sorted: what is there twice is there twice."""
    return sorted(int(one.data) for one in pair.stored("hub", "ALL"))


def wait_for_count(pair: Pair, count: int) -> None:
    """Wait until the target has so many messages; the servers copy when they are ready to."""
    pair.sandbox["hub"].wait_until(
        lambda: pair.state("hub", "ALL")["messages"] >= count, f"have {count} messages in ALL", 60
    )


def stored_state(pair: Pair) -> dict[str, Any]:
    """What state keeps of it."""
    state = pair.space.folder / "state"
    found = (
        json.loads((state / "test.json").read_text("utf-8"))["backfills"]
        if (state / "test.json").exists()
        else {}
    )
    journal = state / "test.json.journal"
    for line in journal.read_text("utf-8").splitlines() if journal.exists() else ():
        found |= {said["name"]: said for said in [json.loads(line).get("backfill")] if said}
    return dict(found[NAME])


def require_nothing_planned(pair: Pair) -> None:
    """Nothing is listed, counted or to be done."""
    plan = pair.space.plan()
    assert (plan.backfills, plan.deferred, plan.has_changes) == ([], [], False)


# --- planned, copied, declined ----------------------------------------------------------------------------------------


def test_a_plan_has_a_step_for_it(pair: Pair) -> None:
    """Exactly the range before the source, with amount, estimate, strategy, reason and command, counted among what is to backfill."""
    plan = write_sources(pair, {"opt_start_seq": 16}).plan()

    created = pair.ask("leaf", "STREAM.INFO.S")["created"]
    assert plan.backfills == [
        {
            "name": NAME,
            "declared": False,
            "runs": True,
            "strategy": "spark",
            "messages": 15,
            "command": COMMAND,
            "bytes": plan.backfills[0]["bytes"],
            "estimate": plan.backfills[0]["estimate"],
            "from": [
                {
                    "domain": "leaf",
                    "stream": "S",
                    "source": "S@$JS.leaf.API",
                    "end_seq": 15,
                    "range": {"first": 1, "last": 15, "created": created},
                }
            ],
            "to": {"domain": "hub", "stream": "ALL"},
            "reason": "its new source begins at sequence 16 and leaves out what is before; "
            "copied by Spark, so that each message says where it comes from",
        }
    ]
    assert plan.backfills[0]["bytes"] > 0
    assert plan.backfills[0]["estimate"]["seconds"] >= 10
    assert (plan.summary["add"], plan.summary["backfill"]) == (1, 1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            [],
            "Apply copies them. With --no-backfill they are skipped, and not planned again. To copy them: ",
        ),
        (["--no-backfill"], "Skipped by --no-backfill, and not planned again. To copy them: "),
    ],
)
def test_the_plan_says_what_becomes_of_it(
    pair: Pair, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    """With amount, reason and estimate, who copies it, how that is declined, and the command; in a document that its schema allows."""
    folder = write_sources(pair, {"opt_start_seq": 16}).folder

    assert main(["-C", str(folder), "plan", *options]) == 0
    text = capsys.readouterr().out
    assert main(["-C", str(folder), "plan", *options, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)

    Draft202012Validator(schemas()["plan-v1.json"]).validate(document)
    assert document["summary"]["backfill"] == 1
    lines = [line.strip() for line in text.splitlines() if line]
    assert lines[-5].startswith("> earlier messages leaf/stream/S -> hub/stream/ALL [15 messages, ")
    assert lines[-5].endswith(", about 10s]")
    assert lines[-4].startswith(
        "its new source begins at sequence 16 and leaves out what is before; copied by Spark"
    )
    assert lines[-3].startswith("the time is an estimate, assuming ")
    assert lines[-2:] == [
        f"{says}{COMMAND}",
        "Plan: 1 to add, 0 to change, 0 to destroy, 1 to backfill.",
    ]


@pytest.mark.matrix
def test_apply_copies_it_once(pair: Pair) -> None:
    """Once the source is there; what the source brings is not brought twice. It is done then, under the name that two addresses have."""
    write_sources(pair, {"opt_start_seq": 16})

    plan, result = apply(pair)

    assert result.backfills == [
        {"name": NAME, "status": "done", "copied": 15, "gap_messages": 0, "error": None}
    ]
    assert (result.exit_code, plan.summary["backfill"]) == (0, 1)
    wait_for_count(pair, 20)
    assert payloads(pair) == list(range(1, 21))
    assert (
        sorted(one.origin is not None for one in pair.stored("hub", "ALL"))
        == [False] * 5 + [True] * 15
    )
    require_nothing_planned(pair)
    status = backfill.status(pair.space.load, (NAME,)).entries[0]
    assert (status.status, status.next, status.skipped) == ("done", "", False)
    assert pair.run(**ENDS).copied == 0
    pair.require_nothing_left()


def test_no_backfill_declines_it(pair: Pair) -> None:
    """The source is made, the command said; nobody is asked again, and the command brings exactly what was left."""
    write_sources(pair, {"opt_start_seq": 16})

    _, result = apply(pair, backfill=False)

    assert result.exit_code == 0
    told = f"skipped by --no-backfill, and not planned again; run it with: {COMMAND}"
    assert result.backfills == [{"name": NAME, "status": "skipped", "error": told}]
    wait_for_count(pair, 5)
    assert payloads(pair) == [16, 17, 18, 19, 20]
    require_nothing_planned(pair)
    status = backfill.status(pair.space.load).entries[0]
    assert (status.status, status.next, status.skipped) == ("new", COMMAND, True)
    pair.publish("leaf", [(b"s.a", b"", b"21")])
    assert pair.run(**ENDS).copied == 15
    wait_for_count(pair, 21)
    assert payloads(pair) == list(range(1, 22))
    require_nothing_planned(pair)
    assert backfill.status(pair.space.load, (NAME,)).entries[0].status == "done"


def test_a_saved_plan_declines_it(pair: Pair) -> None:
    """`plan --no-backfill -o` is what the apply of that plan goes by."""
    plan = write_sources(pair, {"opt_start_seq": 16}).plan(backfill=False)

    assert plan.options["backfill"] is False
    assert [done["status"] for done in pair.space.apply_saved(plan).backfills] == ["skipped"]
    require_nothing_planned(pair)


@pytest.mark.matrix
def test_a_time_is_found_without_a_consumer(pair: Pair) -> None:
    """`opt_start_time` lies somewhere in the stream: what is before it is copied, also where the source is added to a stream."""
    pair.space.write(streams=[ALL]).apply()
    time = pair.stored("leaf", "S")[12].time
    write_sources(pair, {"opt_start_time": time})

    plan, result = apply(pair)

    job = plan.backfills[0]
    assert (job["messages"], job["from"][0]["range"]["last"], plan.summary["backfill"]) == (
        12,
        12,
        1,
    )
    assert [done["copied"] for done in result.backfills] == [12]
    wait_for_count(pair, 20)
    assert payloads(pair) == list(range(1, 21))
    require_nothing_planned(pair)


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"opt_start_seq": 1},
        {"opt_start_time": "2020-01-01T00:00:00Z"},
        {"opt_start_time": "2300-01-01T00:00:00Z"},
    ],
)
def test_nothing_is_left_out(pair: Pair, source: dict[str, Any]) -> None:
    """A source that begins at the first message or before it; and one that has not begun, of which nobody knows what it will leave out."""
    assert write_sources(pair, source).plan().backfills == []


@pytest.mark.parametrize("late", [False, True])
def test_everything_is_left_out(pair: Pair, *, late: bool) -> None:
    """A source that begins behind the last message, at a sequence or a time past: what is there now is its history."""
    source = (
        {"opt_start_time": next_instant(pair.stored("leaf", "S")[-1].time)}
        if late
        else {"opt_start_seq": 1000}
    )

    plan = write_sources(pair, source).plan()

    assert [(job["messages"], job["from"][0]["range"]["last"]) for job in plan.backfills] == [
        (20, 20)
    ]


def test_what_is_gone_at_the_origin_is_not_left_out(pair: Pair) -> None:
    """Neither what an empty origin never had, nor what retention took."""
    pair.ask("leaf", "STREAM.PURGE.S", {"seq": 16})

    assert write_sources(pair, {"opt_start_seq": 16}).plan().backfills == []
    pair.stream("leaf", "E")
    space = pair.space.write(
        streams=[ALL | {"sources": [{"name": "E", "domain": "leaf", "opt_start_seq": 9}]}]
    )
    assert space.plan().backfills == []


def test_an_entry_for_it_is_enough(pair: Pair) -> None:
    """Where an entry brings the history only the entry is listed."""
    streams = [ALL | {"sources": [{"name": "S", "domain": "leaf", "opt_start_seq": 16}]}]
    entry = {
        "name": "x",
        "from": {"domain": "leaf", "stream": "S"},
        "to": {"domain": "hub", "stream": "ALL"},
    }

    plan = pair.space.write(streams=streams, backfills=[entry]).plan()

    assert [job["name"] for job in plan.backfills] == ["x"]


def test_what_a_run_has_brought_is_not_planned(pair: Pair) -> None:
    """Who ran it by hand before the source came is not asked for it; only for what came since."""
    pair.space.write(streams=[ALL]).apply()
    assert pair.run(**ENDS).copied == 20
    assert write_sources(pair, {"opt_start_seq": 16}).plan().backfills == []
    pair.publish("leaf", [(b"s.a", b"", b"%d" % n) for n in range(21, 31)])
    write_sources(pair, {"opt_start_seq": 28})

    plan, result = apply(pair)

    assert [job["from"][0]["range"]["first"] for job in plan.backfills] == [21]
    assert [done["copied"] for done in result.backfills] == [7]
    wait_for_count(pair, 30)
    assert payloads(pair) == list(range(1, 31))


@pytest.mark.matrix
@pytest.mark.parametrize("names", [(), ("s.a", "s.b")])
def test_a_source_that_comes_back_later(pair: Pair, names: tuple[str, ...]) -> None:
    """What was brought before is not planned again. A server lets a source go on behind what the target has of it, wherever the files say
    that it begins: that is not brought a second time.
    """
    source: dict[str, Any] = (
        {"subject_transforms": [{"src": name, "dest": name} for name in names]} if names else {}
    )
    write_sources(pair, source | {"opt_start_seq": 16})
    apply(pair)
    wait_for_count(pair, 20)
    pair.space.write(streams=[ALL]).apply()
    assert write_sources(pair, source | {"opt_start_seq": 16}).plan().backfills == []
    pair.publish("leaf", [(b"s.a", b"", b"%d" % n) for n in range(21, 31)])
    write_sources(pair, source | {"opt_start_seq": 28})

    plan, result = apply(pair, allow_hazards=("DUPLICATES_MESSAGES",))

    span = plan.backfills[0]["from"][0]["range"]
    assert ((span["first"], span["last"]), [done["status"] for done in result.backfills]) == (
        (16, 27),
        ["done"],
    )
    wait_for_count(pair, 30)
    assert payloads(pair) == list(range(1, 31))
    require_nothing_planned(pair)


def test_a_revert_copies_nothing(pair: Pair) -> None:
    """It puts the source back, says what that leaves out and how to bring it, and plans no copy."""
    write_sources(pair, {"opt_start_seq": 16})
    apply(pair, backfill=False)
    pair.space.write(streams=[ALL]).apply(allow_hazards=("BREAKS_REPLICATION",))
    number = max(entry["id"] for entry in history(pair.space.load)["entries"])

    plan, result = revert(pair.space.load, RevertOptions(number), approve, RecordingObserver())

    assert [(job["runs"], job["command"]) for job in plan.backfills] == [(False, COMMAND)]
    assert (
        plan.summary["backfill"],
        plan.summary["change"],
        result.exit_code,
        result.backfills,
    ) == (0, 1, 0, [])


# --- sources of every kind --------------------------------------------------------------------------------------------


def test_several_sources_of_one_stream_are_one_copy(pair: Pair) -> None:
    """Each filter with its own start: one element, and of each just what it leaves out."""
    write_sources(
        pair,
        {"filter_subject": "s.a", "opt_start_seq": 11},
        {"filter_subject": "s.b", "opt_start_seq": 5},
    )

    plan, result = apply(pair)

    assert [(end["filter_subjects"], end["end_seq"]) for end in plan.backfills[0]["from"]] == [
        (["s.a"], 10),
        (["s.b"], 4),
    ]
    assert [(done["status"], done["copied"]) for done in result.backfills] == [("done", 7)]
    wait_for_count(pair, 20)
    assert payloads(pair) == list(range(1, 21))
    require_nothing_planned(pair)


def test_a_second_source_is_a_question_of_its_own(pair: Pair) -> None:
    """The first one was declined and stays so; what the second one leaves out is copied."""
    write_sources(pair, {"filter_subject": "s.a", "opt_start_seq": 11})
    apply(pair, backfill=False)
    write_sources(
        pair,
        {"filter_subject": "s.a", "opt_start_seq": 11},
        {"filter_subject": "s.b", "opt_start_seq": 5},
    )

    plan, result = apply(pair)

    assert [end["filter_subjects"] for end in plan.backfills[0]["from"]] == [["s.b"]]
    assert [done["copied"] for done in result.backfills] == [2]
    wait_for_count(pair, 15)
    assert payloads(pair) == sorted([*range(11, 21, 2), *range(2, 21, 2)])
    require_nothing_planned(pair)
    assert pair.result(**ENDS).copied == 5
    assert payloads(pair) == list(range(1, 21))


@pytest.mark.parametrize(
    ("source", "config", "why"),
    [
        (
            {"subject_transforms": [{"src": "s.>", "dest": "t.>"}]},
            {},
            "the source changes subjects",
        ),
        (
            {},
            {"retention": "interest"},
            "it cannot be copied: hub/stream/ALL has retention interest",
        ),
    ],
)
def test_what_a_copy_cannot_do_is_reported_once(
    pair: Pair, source: dict[str, Any], config: dict[str, Any], why: str
) -> None:
    """It is listed with the reason and counts for nothing; the source is made, and later plans say nothing."""
    write_sources(pair, {"opt_start_seq": 16} | source, **config)

    plan, result = apply(pair)

    assert [(job["runs"], why in job["reason"]) for job in plan.backfills] == [(False, True)]
    assert (plan.summary["backfill"], result.exit_code, result.backfills[0]["status"]) == (
        0,
        0,
        "deferred",
    )
    require_nothing_planned(pair)


def test_the_history_of_a_work_queue_is_not_promised(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing but its own consumers can read a work queue: the plan says so, apply is done without it, and a run is refused."""
    pair.stream("leaf", "Q", [(b"q.a", b"", b"1"), (b"q.b", b"", b"2")], retention="workqueue")
    source = {"name": "Q", "domain": "leaf", "opt_start_seq": 2, "filter_subject": "q.b"}
    space = pair.space.write(streams=[ALL | {"sources": [source]}])

    assert main(["-C", str(space.folder), "plan"]) == 0
    said = capsys.readouterr().out
    assert "earlier messages leaf/stream/Q -> hub/stream/ALL [up to 1 message, " in said
    assert "it cannot be copied: Q is a work queue" in said
    assert "Apply does not copy them." in said
    assert "jsplan backfill run" not in said
    plan, result = apply(pair, allow_hazards=("DELETES_MESSAGES",))

    assert [(job["runs"], "command" in job) for job in plan.backfills] == [(False, False)]
    Draft202012Validator(schemas()["plan-v1.json"]).validate(plan.to_json())
    assert (result.exit_code, result.backfills[0]["status"]) == (0, "deferred")
    assert "it cannot be copied: Q is a work queue" in result.backfills[0]["error"]
    require_nothing_planned(pair)
    with pytest.raises(JsplanError, match="leaf/stream/Q cannot be copied: Q is a work queue"):
        pair.result(name=None, origin="leaf/stream/Q", target="hub/stream/ALL")


def test_a_transform_that_only_filters_is_a_filter(pair: Pair) -> None:
    """Subjects stay as they are: then a copy brings the same."""
    write_sources(
        pair, {"opt_start_seq": 11, "subject_transforms": [{"src": "s.a", "dest": "s.a"}]}
    )

    _, result = apply(pair)

    assert [done["copied"] for done in result.backfills] == [5]
    wait_for_count(pair, 10)
    assert payloads(pair) == list(range(1, 21, 2))


# --- whoever dies, or is away -----------------------------------------------------------------------------------------


def kill_at_each_action(pair: Pair, **options: Any) -> Iterator[int]:
    """Let an apply die at each thing that it would do, on servers where nothing was done yet; then what is left is for the caller."""
    deaths = 0
    while True:
        with kill_after(deaths):
            try:
                apply(pair, **options)
            except SimulatedKill:
                pass
            else:
                return
        yield deaths
        for name in ("ALL", *(one for one in stream_names(pair) if one.startswith("JSPLAN_"))):
            with pair.raw("hub") as raw:
                raw.api(f"$JS.hub.API.STREAM.DELETE.{name}")
        shutil.rmtree(pair.space.folder / "state")
        deaths += 1 if deaths < CLOSE_COUNT else 4


def stream_names(pair: Pair) -> list[str]:
    """The streams of the hub."""
    with pair.raw("hub") as raw:
        return streams(raw, "$JS.hub.API")


def test_dying_before_any_write(pair: Pair) -> None:
    """As long as it is neither done nor declined the next plan has it, and an apply brings every message once."""
    write_sources(pair, {"opt_start_seq": 16})
    deaths = 0
    for deaths in kill_at_each_action(pair):
        plan = pair.space.plan()
        done = pair.raw_info("hub", "ALL") is not None and stored_state(pair)["done_at"]
        assert [job["messages"] for job in plan.backfills] == ([] if done else [15]), deaths

        _, result = apply(pair)

        assert result.exit_code == 0, deaths
        wait_for_count(pair, 20)
        assert payloads(pair) == list(range(1, 21)), deaths
        require_nothing_planned(pair)
        pair.require_nothing_left()
    assert deaths > 10


def test_dying_before_it_is_skipped(pair: Pair) -> None:
    """Whoever applied with --no-backfill, and died, is asked again only where the source was not made."""
    write_sources(pair, {"opt_start_seq": 16})
    for deaths in kill_at_each_action(pair, backfill=False):
        made = pair.raw_info("hub", "ALL") is not None
        assert len(pair.space.plan().backfills) == (0 if made else 1), deaths

        apply(pair, backfill=False)

        wait_for_count(pair, 5)
        assert payloads(pair) == [16, 17, 18, 19, 20]
        require_nothing_planned(pair)


def test_an_apply_that_is_killed(pair: Pair) -> None:
    """A process that is killed as soon as the source is there, before anything was copied: state knows what it owes."""
    write_sources(pair, {"opt_start_seq": 16})
    null = subprocess.DEVNULL
    with subprocess.Popen(
        [PROGRAM, "apply", "-y"], cwd=pair.space.folder, stdin=null, stdout=null, stderr=null
    ) as process:
        pair.sandbox["hub"].wait_until(
            lambda: pair.raw_info("hub", "ALL") is not None or process.poll() is not None,
            "have ALL",
            120,
        )
        process.kill()
    assert process.returncode == -signal.SIGKILL

    assert [job["messages"] for job in pair.space.plan().backfills] == [15]
    _, result = apply(pair)

    assert [done["copied"] for done in result.backfills] == [15]
    wait_for_count(pair, 20)
    assert payloads(pair) == list(range(1, 21))
    require_nothing_planned(pair)
    pair.require_nothing_left()


def test_pending_history_can_be_skipped(pair: Pair) -> None:
    """The source is there, its history is not: an apply with --no-backfill has nothing else to do, and settles it."""
    write_sources(pair, {"opt_start_seq": 16})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jsplan.workflows.apply.run_planned_backfills", skip_backfills)
        with pytest.raises(SimulatedKill):
            apply(pair)
    owed = pair.space.plan()
    assert (owed.steps, owed.summary["backfill"], owed.has_changes) == ([], 1, True)
    assert owed.backfills[0]["reason"].startswith(
        "its source begins at sequence 16 and leaves out what is before"
    )

    plan, result = apply(pair, backfill=False)

    assert (plan.summary["backfill"], result.exit_code, result.steps) == (1, 0, [])
    require_nothing_planned(pair)


async def skip_backfills(*_: Any) -> None:
    """What follows the changes of an apply that died after them."""
    raise SimulatedKill


def test_a_copy_that_fails_is_planned_again(pair: Pair) -> None:
    """One that is refused leaves the source in place, and exit 6; what was planned is what the next plan has."""
    pair.publish("leaf", [(b"s.a", b"", b"21")])
    write_sources(pair, {"opt_start_seq": 16}, max_msgs=12, discard="old")

    plan, result = apply(pair)

    assert (result.exit_code, result.backfills[0]["status"]) == (6, "failed")
    assert "DELETES_MESSAGES:hub/stream/ALL" in result.backfills[0]["error"]
    again = pair.space.plan()
    assert [job["from"] for job in again.backfills] == [job["from"] for job in plan.backfills]


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("late", [False, True])
def test_an_offline_origin(pair: Pair, *, wanted: bool, late: bool) -> None:
    """The source is made before its origin is there; what it leaves out is deferred until somebody can say how much that is. Or it is
    declined, unseen.
    """
    source = (
        {"opt_start_time": pair.stored("leaf", "S")[15].time} if late else {"opt_start_seq": 16}
    )
    write_sources(pair, source)
    pair.space.write(streams=[ALL]).apply()
    write_sources(pair, source)
    pair.sandbox["leaf"].stop()
    plan, first = apply(pair, backfill=wanted)
    waiting = pair.space.plan()
    pair.sandbox["leaf"].start()
    wait_for_leaf(pair)

    assert (plan.summary["backfill"], first.exit_code) == (0, 0)
    assert ["leaf/stream/S"] == [one.address for one in plan.deferred]
    assert "history that a source of hub/stream/ALL leaves out waits: " in plan.deferred[0].reason
    assert (waiting.backfills, waiting.has_changes, len(waiting.deferred)) == (
        [],
        False,
        int(wanted),
    )
    if wanted:
        found, result = apply(pair)
        assert (found.deferred, found.diagnostics) == ([], [])
        assert (found.summary["backfill"], [done["copied"] for done in result.backfills]) == (
            1,
            [15],
        )
    else:
        require_nothing_planned(pair)
        assert pair.run(**ENDS).copied == 15
    assert [number for number in payloads(pair) if number < 16] == list(
        range(1, 16)
    )  # the server tries its source again when it will
    require_nothing_planned(pair)


def test_an_origin_that_was_offline_and_has_no_history(pair: Pair) -> None:
    """Whoever had to look finds nothing: the next apply takes note of it, and nobody waits for that origin any more."""
    pair.ask("leaf", "STREAM.PURGE.S", {"seq": 16})
    write_sources(pair, {"opt_start_seq": 16})
    pair.sandbox["leaf"].stop()
    apply(pair)
    pair.sandbox["leaf"].start()
    wait_for_leaf(pair)

    plan, result = apply(pair)

    assert (plan.has_changes, plan.summary["backfill"], result.backfills) == (False, 0, [])
    require_nothing_planned(pair)
    assert backfill.status(pair.space.load, (NAME,)).entries[0].status == "done"


def wait_for_leaf(pair: Pair) -> None:
    """Wait until a plan reads the leaf again, which was started."""
    pair.sandbox.wait_ready()
    pair.sandbox["hub"].wait_until(
        lambda: not any("away" in one.reason for one in pair.space.plan().deferred),
        "reach the leaf again",
    )


def test_without_spark_nothing_is_changed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PySpark is not installed such an apply is refused before its first write, and names the way to do without."""
    write_sources(pair, {"opt_start_seq": 16})
    monkeypatch.setattr(
        "jsplan.backfill.spark_extra.find_spec",
        lambda name: None if name == "pyspark" else importlib.util.find_spec(name),
    )

    with pytest.raises(
        NotAvailableError,
        match="backfill needs pyspark, which is not installed; nothing was changed",
    ) as refused:
        pair.space.apply()

    assert "--no-backfill" in str(refused.value.hint)
    assert stream_names(pair) == []
    assert not (pair.space.folder / "state" / "test.json").exists()
    assert pair.space.apply(backfill=False)[1].exit_code == 0
