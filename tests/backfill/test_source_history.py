"""History that a new source leaves out: a plan notes it, with the command that copies it."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from jsplan.cli.main import main
from jsplan.errors import JsplanError
from jsplan.units import format_instant, parse_instant
from jsplan.workflows.history import history
from jsplan.workflows.revert import RevertOptions, revert
from tests.backfill.backfill_pair import Pair, numbered_rows, without_spark
from tests.support.process import PROGRAM
from tests.support.schemas import validator
from tests.support.workspaces import RecordingObserver, Space, approve

if TYPE_CHECKING:
    from jsplan.diagnostics import Diagnostic
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox

pytestmark = pytest.mark.timeout(180)

ALL: dict[str, Any] = {"name": "ALL", "domain": "hub", "subjects": ["all.>"]}
LEAF = {"api": "$JS.leaf.API"}
COMMAND = "jsplan backfill run --from leaf/stream/S --to hub/stream/ALL"


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Hub and leaf; the leaf has `S` with twenty messages, half of them on `s.a`."""
    pair = Pair.create(tmp_path, clean_hub_leaf)
    pair.stream("leaf", "S", [(b"s.a" if n % 2 else b"s.b", b"", b"%d" % n) for n in range(1, 21)])
    return pair


def write_sources(pair: Pair, *sources: dict[str, Any], **config: Any) -> Space:
    """Write a workspace with a stream that has these sources of `S`."""
    origins = [{"name": "S", "domain": "leaf"} | source for source in sources]
    return pair.space.write(streams=[ALL | config | {"sources": origins}])


def list_notes(plan: Plan) -> list[Diagnostic]:
    """The notes of a plan about history, which plans no copy of it."""
    assert plan.backfills == []
    assert plan.summary["backfill"] == 0
    return [found for found in plan.diagnostics if found.code == "JS475"]


def find_note(plan: Plan) -> Diagnostic:
    """The only note of a plan about history."""
    (note,) = list_notes(plan)
    return note


def run_command(pair: Pair, note: Diagnostic) -> int:
    """Run the command of a note, without Spark, and return how many messages it copied."""
    words = shlex.split(note.detail.splitlines()[-1])
    assert words[:4] == ["jsplan", "backfill", "run", "--from"]
    assert words[5] == "--to"
    return pair.run(
        name=None, origin=words[4], target=words[6], reset_range=words[7:] == ["--reset-range"]
    ).copied


def payloads(pair: Pair) -> list[int]:
    """The numbers in the target, sorted. One that is there twice is listed twice."""
    return sorted(int(one.data) for one in pair.stored("hub", "ALL"))


def wait_for_count(pair: Pair, count: int) -> None:
    """Wait until the target has so many messages."""
    pair.sandbox["hub"].wait_until(
        lambda: pair.state("hub", "ALL")["messages"] >= count, f"have {count} messages in ALL", 60
    )


def require_settled(pair: Pair) -> None:
    """The next plan has nothing to do and notes nothing."""
    plan = pair.space.plan()
    assert (list_notes(plan), plan.deferred, plan.has_changes) == ([], [], False)


# --- the note -------------------------------------------------------------------------------------


def test_the_plan_has_a_note_and_no_step(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    """The note has the place in the files, the number and the command, in a valid document."""
    folder = write_sources(pair, {"opt_start_seq": 16}).folder

    assert main(["-C", str(folder), "plan"]) == 0
    text = capsys.readouterr().out
    assert main(["-C", str(folder), "plan", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)

    validator("plan").validate(document)
    assert [step["op"] for step in document["steps"]] == ["stream.create"]
    (note,) = document["diagnostics"]
    assert note == {
        "severity": "info",
        "code": "JS475",
        "summary": "its new source leaf/stream/S begins at sequence 16 and leaves out "
        "15 earlier messages",
        "detail": f"Apply does not copy them. To copy those that are not there yet, after it:\n{COMMAND}",
        "address": "hub/stream/ALL",
        "range": note["range"],
    }
    assert note["range"]["file"] == "jsplan.yaml"
    lines = [line.strip() for line in text.splitlines()]
    assert f"Note: hub/stream/ALL: {note['summary']} [JS475]" in lines
    assert COMMAND in lines
    assert "Plan: 1 to add, 0 to change, 0 to destroy." in lines


def test_the_command_copies_the_history(pair: Pair) -> None:
    """A shell runs the printed command with Spark, and each message is in the target once."""
    pair.stream("leaf", "S$1", numbered_rows(20, subject=b"s1.x"), subjects=["s1.>"])
    space = write_sources(pair, {"name": "S$1", "opt_start_seq": 16})
    plan, result = space.apply()
    assert (result.exit_code, result.backfills) == (0, [])
    wait_for_count(pair, 5)

    command = find_note(plan).detail.splitlines()[-1]
    assert command == "jsplan backfill run --from 'leaf/stream/S$1' --to hub/stream/ALL"
    line = f'PATH="{Path(PROGRAM).parent}:$PATH"; {command}'
    done = subprocess.run(
        ["/bin/sh", "-c", line], cwd=space.folder, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "Backfill complete! Messages: 15 copied, 0 missing at the origin" in done.stdout
    assert payloads(pair) == list(range(1, 21))
    require_settled(pair)
    pair.require_nothing_left()


@pytest.mark.matrix
def test_apply_copies_nothing(pair: Pair) -> None:
    """The source delivers what is from its start on; the command copies what is before, once."""
    write_sources(pair, {"opt_start_seq": 16})

    plan, result = pair.space.apply()

    assert (result.exit_code, result.backfills) == (0, [])
    wait_for_count(pair, 5)
    assert payloads(pair) == [16, 17, 18, 19, 20]
    require_settled(pair)
    pair.publish("leaf", [(b"s.a", b"", b"21")])
    assert (run_command(pair, find_note(plan)), run_command(pair, find_note(plan))) == (15, 0)
    wait_for_count(pair, 21)
    assert payloads(pair) == list(range(1, 22))
    assert sum(one.origin is not None for one in pair.stored("hub", "ALL")) == 15
    require_settled(pair)
    pair.require_nothing_left()


@pytest.mark.matrix
def test_a_source_that_begins_at_a_time(pair: Pair) -> None:
    """The sequence of a time is found, also for a source that is added to an existing stream."""
    pair.space.write(streams=[ALL]).apply()
    time = pair.stored("leaf", "S")[12].time
    write_sources(pair, {"opt_start_time": time})

    plan, _ = pair.space.apply()

    note = find_note(plan)
    assert note.summary == (
        f"its new source leaf/stream/S begins at {time} and leaves out 12 earlier messages"
    )
    assert run_command(pair, note) == 12
    wait_for_count(pair, 20)
    assert payloads(pair) == list(range(1, 21))
    require_settled(pair)


def test_without_spark_installed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such an apply copies nothing, so it needs no PySpark."""
    monkeypatch.setattr(
        "jsplan.backfill.spark_extra.find_spec",
        lambda name: None if name == "pyspark" else importlib.util.find_spec(name),
    )

    assert write_sources(pair, {"opt_start_seq": 16}).apply()[1].exit_code == 0


# --- the number -----------------------------------------------------------------------------------


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
    """A source begins at the first message or before it, or in the future."""
    assert list_notes(write_sources(pair, source).plan()) == []


@pytest.mark.parametrize("by_time", [False, True])
def test_everything_is_left_out(pair: Pair, *, by_time: bool) -> None:
    """A source begins after the last message."""
    after = format_instant(parse_instant(pair.stored("leaf", "S")[-1].time) + 1)
    pair.delete("leaf", "S", 7)

    plan = write_sources(
        pair, {"opt_start_time": after} if by_time else {"opt_start_seq": 1000}
    ).plan()

    assert find_note(plan).summary.endswith("leaves out 19 earlier messages")


def test_deleted_messages_make_the_number_a_bound(pair: Pair) -> None:
    """The server reveals only how many of the stream are deleted, not where."""
    pair.delete("leaf", "S", 3, 18)

    note = find_note(write_sources(pair, {"opt_start_seq": 16}).plan())

    assert note.summary.endswith("leaves out at most 15 earlier messages")


def test_messages_that_the_origin_lost_are_not_left_out(pair: Pair) -> None:
    """Neither what an empty origin never had, nor what was purged."""
    pair.ask("leaf", "STREAM.PURGE.S", {"seq": 16})
    pair.stream("leaf", "E")

    assert list_notes(write_sources(pair, {"opt_start_seq": 16}).plan()) == []
    assert list_notes(write_sources(pair, {"name": "E", "opt_start_seq": 9}).plan()) == []


@pytest.mark.parametrize("by_time", [False, True])
def test_an_offline_origin(pair: Pair, *, by_time: bool) -> None:
    """The note has what is known. The command works once the origin is back."""
    time = pair.stored("leaf", "S")[15].time
    write_sources(pair, {"opt_start_time": time} if by_time else {"opt_start_seq": 16})
    pair.sandbox["leaf"].stop()

    plan, result = pair.space.apply()

    most = "an unknown number of" if by_time else "at most 15"
    note = find_note(plan)
    assert f"leaves out {most} earlier messages (domain leaf is offline: " in note.summary
    assert (result.exit_code, pair.space.plan().has_changes) == (0, False)
    pair.start_leaf()
    assert run_command(pair, note) == 15
    # the server retries its source when it will
    assert [number for number in payloads(pair) if number < 16] == list(range(1, 16))
    require_settled(pair)


# --- what is there already ------------------------------------------------------------------------


def test_an_entry_replaces_the_note(pair: Pair) -> None:
    """A declared backfill of the same streams is planned and applied as ever."""
    write_sources(pair, {"opt_start_seq": 16})
    entry = {
        "name": "x",
        "from": {"domain": "leaf", "stream": "S"},
        "to": {"domain": "hub", "stream": "ALL"},
    }
    pair.space.write(
        streams=[ALL | {"sources": [{"name": "S", "domain": "leaf", "opt_start_seq": 16}]}],
        backfills=[entry],
    )

    with without_spark():
        plan, result = pair.space.apply()

    assert [job["name"] for job in plan.backfills] == ["x"]
    assert [found for found in plan.diagnostics if found.code == "JS475"] == []
    assert [done["copied"] for done in result.backfills] == [15]
    wait_for_count(pair, 20)
    assert payloads(pair) == list(range(1, 21))


def test_an_earlier_run_of_the_command(pair: Pair) -> None:
    """The range is pinned again, and what the target has is not copied again."""
    pair.space.write(streams=[ALL]).apply()
    assert pair.run(name=None, origin="leaf/stream/S", target="hub/stream/ALL").copied == 20
    pair.publish("leaf", numbered_rows(10, first=21, subject=b"s.a"))
    write_sources(pair, {"opt_start_seq": 28})

    plan, _ = pair.space.apply()

    note = find_note(plan)
    assert note.summary.endswith("begins at sequence 28 and leaves out 27 earlier messages")
    assert note.detail.endswith(f"\n{COMMAND} --reset-range")
    assert run_command(pair, note) == 7
    wait_for_count(pair, 30)
    assert payloads(pair) == list(range(1, 31))


@pytest.mark.parametrize("side", ["leaf", "hub"])
def test_a_recreated_stream(pair: Pair, side: str) -> None:
    """The earlier run copied another stream, or into another one, so the range is pinned again."""
    write_sources(pair, {"opt_start_seq": 16})
    plan, _ = pair.space.apply()
    assert run_command(pair, find_note(plan)) == 15
    wait_for_count(pair, 20)
    pair.space.write(streams=[]).apply(allow_hazards=("DELETES_STREAM", "BREAKS_REPLICATION"))
    if side == "leaf":
        pair.ask("leaf", "STREAM.DELETE.S")
        pair.stream("leaf", "S", numbered_rows(20, subject=b"s.a"))
    write_sources(pair, {"opt_start_seq": 16})

    plan, _ = pair.space.apply()

    note = find_note(plan)
    assert note.summary.endswith("leaves out 15 earlier messages")
    assert run_command(pair, note) == 15
    wait_for_count(pair, 20)
    assert payloads(pair) == list(range(1, 21))


@pytest.mark.matrix
@pytest.mark.parametrize("names", [(), ("s.a", "s.b")])
def test_a_source_that_comes_back_later(pair: Pair, names: tuple[str, ...]) -> None:
    """The server continues a source after its messages, wherever the files start it."""
    source: dict[str, Any] = (
        {"subject_transforms": [{"src": name, "dest": name} for name in names]} if names else {}
    )
    command: dict[str, Any] = {"name": None, "origin": "leaf/stream/S", "target": "hub/stream/ALL"}
    write_sources(pair, source | {"opt_start_seq": 16}).apply()
    assert pair.run(**command).copied == 15
    wait_for_count(pair, 20)
    pair.space.write(streams=[ALL]).apply()
    pair.publish("leaf", numbered_rows(10, first=21, subject=b"s.a"))
    write_sources(pair, source | {"opt_start_seq": 28})

    plan, _ = pair.space.apply(allow_hazards=("DUPLICATES_MESSAGES",))

    assert "27 earlier messages" in find_note(plan).summary
    assert pair.run(**command, reset_range=True).copied == 0
    wait_for_count(pair, 30)
    assert payloads(pair) == list(range(1, 31))
    require_settled(pair)


def test_a_revert_has_the_note_too(pair: Pair) -> None:
    """It adds the source again and copies nothing."""
    write_sources(pair, {"opt_start_seq": 16}).apply()
    pair.space.write(streams=[ALL]).apply(allow_hazards=("BREAKS_REPLICATION",))
    number = max(entry["id"] for entry in history(pair.space.load)["entries"])

    plan, result = revert(pair.space.load, RevertOptions(number), approve, RecordingObserver())

    assert find_note(plan).detail.endswith(COMMAND)
    assert (plan.summary["change"], result.exit_code, result.backfills) == (1, 0, [])


# --- sources that the command cannot copy ---------------------------------------------------------


def test_sources_with_filters(pair: Pair) -> None:
    """The command would copy other subjects too, so the note describes an entry."""
    write_sources(
        pair,
        {"filter_subject": "s.a", "opt_start_seq": 11},
        {"subject_transforms": [{"src": "s.b", "dest": "s.b"}], "opt_start_seq": 5},
    )

    plan, _ = pair.space.apply()

    first, second = list_notes(plan)
    assert first.summary.endswith(
        "begins at sequence 11 and leaves out at most 10 earlier messages"
    )
    assert second.summary.endswith("begins at sequence 5 and leaves out at most 4 earlier messages")
    assert "jsplan backfill run" not in first.detail + second.detail
    wait_for_count(pair, 13)
    # Add the entries that the notes describe to the workspace.
    notes = (first, second)
    entries: list[dict[str, Any]] = []
    for note in notes:
        (said,) = [part for part in note.detail.split("`") if part.startswith("filter_subjects:")]
        entries.append(
            {
                "name": f"b{len(entries)}",
                "from": {"domain": "leaf", "stream": "S"} | yaml.safe_load(said),
                "to": {"domain": "hub", "stream": "ALL"},
            }
        )
    document = yaml.safe_load((pair.space.folder / "jsplan.yaml").read_text("utf-8"))
    pair.space.write(streams=document["streams"], backfills=entries)
    with without_spark():
        _, result = pair.space.apply()
    assert [done["copied"] for done in result.backfills] == [5, 2]
    assert payloads(pair) == list(range(1, 21))
    require_settled(pair)


@pytest.mark.parametrize(
    ("source", "config", "says"),
    [
        (
            {"subject_transforms": [{"src": "s.>", "dest": "t.>"}]},
            {},
            "To copy them, declare a backfill with the `subject_transform` of the source.",
        ),
        (
            {},
            {"retention": "interest"},
            "They cannot be copied: hub/stream/ALL has retention interest",
        ),
    ],
)
def test_what_the_command_cannot_copy(
    pair: Pair, source: dict[str, Any], config: dict[str, Any], says: str
) -> None:
    """The note says why, and has no command."""
    note = find_note(write_sources(pair, {"opt_start_seq": 16} | source, **config).plan())

    assert "15 earlier messages" in note.summary
    assert says in note.detail
    assert "jsplan backfill run" not in note.detail


def test_a_work_queue(pair: Pair) -> None:
    """Only its own consumers can read a work queue, so a run is refused too."""
    pair.stream("leaf", "Q", [(b"q.a", b"", b"1"), (b"q.b", b"", b"2")], retention="workqueue")
    write_sources(pair, {"name": "Q", "opt_start_seq": 2, "filter_subject": "q.b"})

    note = find_note(pair.space.plan())

    assert note.summary.endswith("leaves out at most 1 earlier message")
    assert "They cannot be copied: Q is a work queue" in note.detail
    assert "jsplan backfill run" not in note.detail
    pair.stream("hub", "T")
    with pytest.raises(JsplanError, match="leaf/stream/Q cannot be copied: Q is a work queue"):
        pair.result(name=None, origin="leaf/stream/Q", target="hub/stream/T")


@pytest.mark.matrix
@pytest.mark.since_2_12
def test_a_source_that_waits_for_a_recreated_origin(
    pair: Pair, server_version: tuple[int, ...]
) -> None:
    """Before 2.15 a source waits for the sequences of a new origin; a run copies what is before.

    Later releases begin again, so that a run copies nothing.
    """
    pair.stream("hub", "ALL", subjects=["all.>"], sources=[{"name": "S", "external": LEAF}])
    wait_for_count(pair, 20)
    pair.ask("leaf", "STREAM.DELETE.S")
    pair.stream("leaf", "S", [(b"s.a", b"", b"%d" % n) for n in range(101, 106)])

    def run() -> int:
        found = pair.run(
            name=None, origin="leaf/stream/S", target="hub/stream/ALL", reset_range=True
        )
        return found.copied

    if server_version >= (2, 15):
        assert run() == 0
        return
    assert run() == 5
    pair.publish("leaf", [(b"s.a", b"", b"%d" % n) for n in range(106, 126)])
    wait_for_count(pair, 30)  # 20, the 5 that were copied, and 5 beyond the old sequence
    assert run() == 15
    assert payloads(pair) == [*range(1, 21), *range(101, 126)]
    assert run() == 0
