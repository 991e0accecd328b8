"""`backfill plan`: the pending messages, their strategy and estimate, without any change."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.cli.main import main
from jsplan.config.model import Backfill, BackfillSide
from jsplan.errors import UsageError
from jsplan.planning.backfill.model import OriginState
from jsplan.planning.backfill.strategy import estimate_backfill
from jsplan.render.backfill_text import summary_line
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions
from tests.backfill.backfill_pair import Pair, numbered_rows
from tests.support.schemas import validator
from tests.support.simulated_kill import SimulatedKill, kill_after

if TYPE_CHECKING:
    from jsplan.documents.backfill import BackfillPreview

pytestmark = pytest.mark.timeout(120)


def preview_document(pair: Pair, **options: Any) -> BackfillPreview:
    """Return the preview after a check of its schema."""
    found = backfill.plan(pair.space.load, BackfillOptions(**(options or {"name": "x"})))
    validator("backfill-plan").validate(found.to_json())
    return found


@pytest.mark.matrix
def test_an_empty_target_is_counted_by_the_server(pair: Pair) -> None:
    """Without copies in the target the server counts, without deleted and filtered messages."""
    pair.stream("leaf", "S", [(b"s.a" if n % 2 else b"s.b", b"", b"%d" % n) for n in range(1, 21)])
    pair.delete("leaf", "S", 7, 12)
    pair.stream("hub", "T", [(b"t.a", b"", b"other")])

    found = preview_document(pair)

    origin = found.origins[0]
    assert (
        origin.first,
        origin.last,
        origin.messages,
        origin.measured,
        origin.in_target,
        origin.gap_messages,
    ) == (
        1,
        20,
        18,
        "counted",
        0,
        2,
    )
    assert (found.status, found.strategy, found.messages) == ("new", "spark", 18)
    assert found.bytes == 18 * pair.state("leaf", "S")["bytes"] // 18
    pair.require_nothing_left()
    assert not (pair.space.folder / "state").exists()
    pair.write_entry(origin={"start_seq": 5, "filter_subjects": ["s.b"]})
    assert preview_document(pair).messages == 7


@pytest.mark.matrix
@pytest.mark.since_2_12
@pytest.mark.parametrize("longer", ["S", "T"])
def test_streams_with_a_common_beginning(longer: str, pair: Pair) -> None:
    """A sequence means another message in each from where they part: none is there already.

    So it is with a promoted mirror whose origin lost messages, and got new ones at their sequences.
    """
    pair.stream("leaf", "S", numbered_rows(20))
    external = {"api": "$JS.leaf.API"}
    mirror = {"name": "T", "mirror": {"name": "S", "external": external}}
    pair.ask("hub", "STREAM.CREATE.T", mirror)
    pair.sandbox["hub"].wait_until(lambda: pair.state("hub", "T")["messages"] == 20, "copy all")
    pair.update("hub", "T", mirror=None, subjects=["t.>"])
    for domain, name in (("leaf", "S"), ("hub", "T")):
        count = 12 if name == longer else 7
        subject = f"{name.lower()}.own".encode()
        pair.publish(domain, [(subject, b"", b"own %d" % n) for n in range(count)])
    pair.update("hub", "T", subjects=["t.>", "s.>"])

    found = preview_document(pair).origins[0]
    pair.run()

    own = 12 if longer == "S" else 7
    assert (found.first, found.last, found.messages, found.in_target) == (1, 20 + own, own, 20)
    stored = [m.data for m in pair.stored("hub", "T") if m.subject == "s.own"]
    assert stored == [b"own %d" % n for n in range(own)]


@pytest.mark.matrix
def test_a_partial_target_is_compared(pair: Pair) -> None:
    """With copies in the target both sides are compared by message, with headers only."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    pair.write_entry(origin={"end_seq": 5})
    pair.run()
    pair.write_entry(origin={"start_seq": 11, "end_seq": 14})
    pair.run()
    pair.write_entry()

    found = preview_document(pair)

    origin = found.origins[0]
    assert (origin.messages, origin.measured, origin.in_target) == (11, "compared", 9)


def test_messages_of_a_source_are_not_pending(pair: Pair) -> None:
    """Messages that a source of the target brings are not counted."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream(
        "hub",
        "T",
        sources=[{"name": "S", "external": {"api": "$JS.leaf.API"}, "opt_start_seq": 16}],
    )

    assert preview_document(pair).messages == 15


def test_preview_of_a_begun_and_a_done_entry(pair: Pair) -> None:
    """A begun entry shows its pinned range, and a done one has no pending messages."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    with kill_after(3), pytest.raises(SimulatedKill):
        pair.run()
    pair.publish("leaf", numbered_rows(5, first=21))
    begun = preview_document(pair)
    assert (begun.status, begun.origins[0].pinned, begun.origins[0].last, begun.messages) == (
        "started",
        True,
        20,
        20,
    )

    pair.run()

    done = preview_document(pair)
    assert (done.status, done.messages, done.origins[0].done) == ("done", 0, True)


def test_a_declared_target(pair: Pair) -> None:
    """A target that only the files have can be made by a snapshot of the whole range."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.write_entry(mode="exact")
    pair.space.write(
        streams=[{"name": "T", "domain": "hub", "subjects": ["t.>"]}], backfills=[pair.entry]
    )

    found = preview_document(pair)

    assert (found.strategy, found.messages, found.estimate is not None) == ("snapshot", 20, True)
    assert found.command == "jsplan apply"


def test_an_impossible_strategy_is_explained(pair: Pair) -> None:
    """A strategy that is not possible is shown with the reason."""
    pair.stream("leaf", "S", numbered_rows(3))
    pair.stream("hub", "T")
    pair.write_entry(strategy="snapshot")

    assert "keeps no Jsplan-Origin" in str(preview_document(pair).strategy_problem)


def test_an_offline_origin(pair: Pair) -> None:
    """An offline origin has an error, and the others are counted."""
    pair.stream("hub", "HERE", numbered_rows(3, subject=b"here.x"))
    pair.stream("hub", "T")
    pair.entry = pair.entry | {
        "from": [{"domain": "hub", "stream": "HERE"}, {"domain": "leaf", "stream": "S"}]
    }
    pair.space.write(backfills=[pair.entry])
    pair.sandbox["leaf"].stop()

    found = preview_document(pair)

    assert (found.origins[0].messages, found.origins[1].messages) == (3, None)
    assert "leaf" in str(found.origins[1].error)
    assert summary_line(found) == (
        f"Backfill: 1 origin not measured, {found.messages} messages to copy of the others."
    )


def test_many_origins_in_one_target(pair: Pair) -> None:
    """Pending messages are counted for each of several origins in one target."""
    pair.stream("hub", "HERE", numbered_rows(10, subject=b"here.x"))
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    pair.entry = pair.entry | {
        "from": [{"domain": "hub", "stream": "HERE"}, {"domain": "leaf", "stream": "S"}]
    }
    pair.space.write(backfills=[pair.entry])
    pair.result()
    pair.publish("hub", numbered_rows(3, subject=b"here.x"))
    pair.publish("leaf", numbered_rows(4))
    pair.space.write(backfills=[pair.entry | {"oversize": "skip"}])

    found = preview_document(pair)

    assert [(origin.messages, origin.in_target, origin.measured) for origin in found.origins] == [
        (3, 10, "compared"),
        (4, 20, "compared"),
    ]
    assert found.messages == 7


def test_without_an_entry(pair: Pair) -> None:
    """Two addresses give a preview without an entry, and its command has the addresses."""
    pair.stream("leaf", "S", numbered_rows(3))
    pair.stream("hub", "T")

    found = preview_document(pair, origin="leaf/stream/S", target="hub/stream/T")

    assert (found.messages, found.command) == (
        3,
        "jsplan backfill run --from leaf/stream/S --to hub/stream/T",
    )
    with pytest.raises(UsageError):
        preview_document(pair, name="other")


def test_the_command_prints_the_preview(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints text, or one document with `--json`."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    pair.delete("leaf", "S", 4)

    assert main(["-C", str(pair.space.folder), "backfill", "plan", "x"]) == 0
    text = capsys.readouterr().out
    assert main(["-C", str(pair.space.folder), "backfill", "plan", "x", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)

    assert document["messages"] == 19
    assert text.splitlines() == [
        "x  not run yet",
        "  leaf/stream/S -> hub/stream/T  sequences 1 to 20",
        "      19 messages pending, about 699 B (counted by the origin's server)".replace(
            "699 B", text.split("about ")[1].split(" (")[0]
        ),
        "      gap: 1 message of the range no longer at the origin",
        "  by spark: copied by Spark, so that each message says where it comes from",
        "  about 10s, an estimate: assuming 60,000 messages/s and 60.0 MiB/s, and 10s for Spark to start",
        "",
        "Backfill: 19 messages to copy.",
        "To copy it: jsplan backfill run x",
    ]


def test_estimates() -> None:
    """An earlier copy between the same domains is preferred, and `rate` limits the estimate."""
    past = OriginState(
        "leaf/stream/A", "hub/stream/B", "", 1, 20_000, [], "", 1, copied=20_000, seconds=4.0
    )
    origins = (BackfillSide("leaf", "S"),)
    entry = Backfill("x", origins, BackfillSide("hub", "T"))
    other = Backfill("x", origins, BackfillSide("store", "T"))
    limited = Backfill("x", origins, BackfillSide("hub", "T"), rate=1 << 20)

    stated = estimate_backfill(entry, "snapshot", 1_500_000, 1 << 20, [past])
    measured = estimate_backfill(entry, "spark", 10_000, 1 << 20, [past])
    elsewhere = estimate_backfill(other, "spark", 600_000, 1 << 20, [past])
    slow = estimate_backfill(limited, "spark", 10_000, 1 << 30, [past])

    assert (stated.seconds, stated.basis) == (10.0, "assuming 150,000 messages/s and 100.0 MiB/s")
    assert measured.seconds == 12.0
    assert measured.basis.startswith(
        "at 5,000 messages/s, as leaf/stream/A was copied to hub/stream/B"
    )
    assert elsewhere.seconds == 20.0
    assert (slow.seconds, "`rate: 1.0 MiB/s`" in slow.basis) == (1034.0, True)
