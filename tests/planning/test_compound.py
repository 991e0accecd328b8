"""Updates that a server takes only in parts: which part comes first, what it sends, and that nothing else is touched."""

from __future__ import annotations

from typing import Any

import pytest

from jsplan.address import Address
from jsplan.facts.live import LiveObject
from jsplan.planning.compound import first_part, reorganises
from jsplan.planning.verdict import Verdict
from jsplan.resources import STREAM

ADDRESS = Address.parse("main/stream/A")
BASE = {"name": "A", "subjects": ["a"], "num_replicas": 1, "unknown_to_tables": 7, "metadata": {"_nats.level": "5", "team": "x"}}


def split(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]] | None:
    """The first part of the update from one raw configuration to another."""
    live = LiveObject(ADDRESS, BASE | before, "2026-01-01T00:00:00Z", {})
    wanted = STREAM.compact(BASE | after)
    return first_part(Verdict(ADDRESS, ["update"], "test", live, None, wanted), BASE | after)


WHOLE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "scale only": ({}, {"num_replicas": 3}),
    "move only": ({}, {"placement": {"tags": ["ssd"]}}),
    "a placement that goes is no move": ({"placement": {"tags": ["ssd"]}}, {"num_replicas": 3}),
    "limits that only grow": ({"consumer_limits": {"max_ack_pending": 5}}, {"consumer_limits": {"max_ack_pending": 9}}),
    "limits that only shrink": ({}, {"consumer_limits": {"max_ack_pending": 9, "inactive_threshold": 10}}),
    "something else": ({}, {"description": "x", "max_age": 10**12}),
}


@pytest.mark.parametrize("case", WHOLE)
def test_what_the_server_takes_at_once_is_one_step(case: str) -> None:
    """Nothing is split that need not be."""
    assert split(*WHOLE[case]) is None


def test_it_is_moved_before_it_grows() -> None:
    """More copies come after the move: the first part has the new place, the old number, and everything else as it was."""
    part = split({}, {"num_replicas": 3, "placement": {"tags": ["ssd"]}, "description": "later"})

    assert part is not None
    title, sent, expect = part
    assert title == "move it"
    assert sent == BASE | {"placement": {"tags": ["ssd"]}}
    assert expect == {"placement": {"tags": ["ssd"]}}


def test_it_shrinks_before_it_is_moved() -> None:
    """Copies that are not wanted are not moved either: the first part has fewer of them, where they are."""
    before = {"num_replicas": 5, "placement": {"tags": ["hdd"]}}

    part = split(before, {"num_replicas": 3, "placement": {"tags": ["ssd"]}})
    one = split(before, {"num_replicas": 1, "placement": {"tags": ["ssd"]}})

    assert part is not None
    assert one is not None
    assert part == ("scale it to 3 copies", BASE | {"num_replicas": 3, "placement": {"tags": ["hdd"]}}, {"num_replicas": 3})
    assert (one[0], one[2]) == ("scale it to 1 copy", {"num_replicas": None})


def test_limits_widen_before_they_tighten() -> None:
    """Where one limit for consumers grows and another shrinks, the first part has the wider of each; taken away is the widest."""
    old = {"consumer_limits": {"max_ack_pending": 10, "inactive_threshold": 100}}

    grows = split(old, {"consumer_limits": {"max_ack_pending": 20, "inactive_threshold": 50}})
    goes = split(old, {"consumer_limits": {"inactive_threshold": 50}})

    assert grows is not None
    assert goes is not None
    assert grows[0] == goes[0] == "widen its limits for consumers"
    assert grows[2] == {"consumer_limits": {"max_ack_pending": 20, "inactive_threshold": 100}}
    assert goes[2] == {"consumer_limits": {"inactive_threshold": 100}}
    assert goes[1]["consumer_limits"] == {"inactive_threshold": 100}


def test_both_at_once_are_one_first_part() -> None:
    """A stream that moves, grows, and trades limits has one step before the last, with all of it."""
    part = split(
        {"consumer_limits": {"max_ack_pending": 10}},
        {"num_replicas": 3, "placement": {"cluster": "west"}, "consumer_limits": {"inactive_threshold": 5}},
    )

    assert part is not None
    assert part[0] == "move it and widen its limits for consumers"
    assert part[1]["placement"] == {"cluster": "west"}
    assert part[1]["num_replicas"] == 1


@pytest.mark.parametrize(
    ("before", "after", "works"),
    [({}, {"num_replicas": 3}, True), ({}, {"placement": {"cluster": "w"}}, True), ({"placement": {"cluster": "w"}}, {}, False),
     ({}, {"max_age": 1}, False)],
)  # fmt: skip
def test_when_a_cluster_goes_on_working(before: dict[str, Any], after: dict[str, Any], works: bool) -> None:
    """After a move or a change of copies others have to wait; after anything else they need not."""
    assert reorganises(STREAM.compact(BASE | before), STREAM.compact(BASE | after)) == works
