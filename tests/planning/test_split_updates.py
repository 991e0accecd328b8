"""Updates that a server accepts only in parts, and the order of the parts."""

from __future__ import annotations

from typing import Any

import pytest

from jsplan.address import Address
from jsplan.facts.live import LiveObject
from jsplan.planning.model import ResourceDecision
from jsplan.planning.split_updates import (
    delayed_limits,
    is_reorganised,
    split_reorganisation,
    split_update,
)
from jsplan.resources import STREAM

ADDRESS = Address.parse("main/stream/A")
BASE = {
    "name": "A",
    "subjects": ["a"],
    "num_replicas": 1,
    "unknown_to_tables": 7,
    "metadata": {"_nats.level": "5", "team": "x"},
}


def first_update(
    before: dict[str, Any], after: dict[str, Any]
) -> tuple[str, dict[str, Any], dict[str, Any]] | None:
    """Return the first part of the update from one raw configuration to another."""
    live = LiveObject(ADDRESS, BASE | before, "2026-01-01T00:00:00Z", {})
    wanted = STREAM.compact(BASE | after)
    return split_reorganisation(
        ResourceDecision(ADDRESS, ["update"], "test", live, None, wanted), BASE | after
    )


WHOLE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "scale only": ({}, {"num_replicas": 3}),
    "move only": ({}, {"placement": {"tags": ["ssd"]}}),
    "a placement that goes is no move": ({"placement": {"tags": ["ssd"]}}, {"num_replicas": 3}),
    "limits that only grow": (
        {"consumer_limits": {"max_ack_pending": 5}},
        {"consumer_limits": {"max_ack_pending": 9}},
    ),
    "limits that only shrink": (
        {},
        {"consumer_limits": {"max_ack_pending": 9, "inactive_threshold": 10}},
    ),
    "something else": ({}, {"description": "x", "max_age": 10**12}),
}


@pytest.mark.parametrize("case", WHOLE)
def test_an_update_that_the_server_accepts_at_once_is_one_step(case: str) -> None:
    """An update that the server accepts at once is one step."""
    assert first_update(*WHOLE[case]) is None


def test_it_is_moved_before_it_grows() -> None:
    """A stream that is moved and gets more replicas is moved first."""
    part = first_update(
        {}, {"num_replicas": 3, "placement": {"tags": ["ssd"]}, "description": "later"}
    )

    assert part is not None
    title, sent, expect = part
    assert title == "move it"
    assert sent == BASE | {"placement": {"tags": ["ssd"]}}
    assert expect == {"placement": {"tags": ["ssd"]}}


def test_it_shrinks_before_it_is_moved() -> None:
    """A stream that is moved and gets fewer replicas is scaled down first."""
    before = {"num_replicas": 5, "placement": {"tags": ["hdd"]}}

    part = first_update(before, {"num_replicas": 3, "placement": {"tags": ["ssd"]}})
    single = first_update(before, {"num_replicas": 1, "placement": {"tags": ["ssd"]}})

    assert part is not None
    assert single is not None
    assert part == (
        "scale it to 3 replicas",
        BASE | {"num_replicas": 3, "placement": {"tags": ["hdd"]}},
        {"num_replicas": 3},
    )
    assert (single[0], single[2]) == ("scale it to 1 replica", {"num_replicas": None})


DELAYED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "nothing shrinks": ({"max_consumers": 2}, {"max_consumers": 9, "consumer_limits": {}}, {}),
    "a number of consumers that shrinks": ({"max_consumers": 9}, {"max_consumers": 2}, {"max_consumers": 9}),
    "a first number of consumers": ({}, {"max_consumers": 2}, {"max_consumers": None}),
    "a number of consumers that is not limited any more": ({"max_consumers": 2}, {}, {}),
    "first limits": ({}, {"consumer_limits": {"max_ack_pending": 5}}, {"consumer_limits": None}),
    "one limit that grows, one that shrinks": (
        {"consumer_limits": {"max_ack_pending": 10, "inactive_threshold": 100}},
        {"consumer_limits": {"max_ack_pending": 20, "inactive_threshold": 50}},
        {"consumer_limits": {"max_ack_pending": 20, "inactive_threshold": 100}},
    ),
    "one limit that goes, one that shrinks": (
        {"consumer_limits": {"max_ack_pending": 10, "inactive_threshold": 100}},
        {"consumer_limits": {"inactive_threshold": 50}},
        {"consumer_limits": {"inactive_threshold": 100}},
    ),
    "one limit that goes, one that is new": (
        {"consumer_limits": {"max_ack_pending": 10}}, {"consumer_limits": {"inactive_threshold": 50}}, {"consumer_limits": None},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DELAYED)
def test_lowered_limits_are_delayed(case: str) -> None:
    """Limits for consumers are lowered only after the consumers have changed."""
    before, after, waiting = DELAYED[case]

    assert delayed_limits(STREAM.compact(BASE | before), STREAM.compact(BASE | after)) == waiting


def test_an_update_is_split_only_when_limits_wait() -> None:
    """An update is split only when limits wait for consumers."""
    live = LiveObject(ADDRESS, BASE, "2026-01-01T00:00:00Z", {})
    more = ResourceDecision(
        ADDRESS,
        ["update"],
        "test",
        live,
        None,
        STREAM.compact(BASE | {"max_consumers": 2, "description": "x"}),
    )
    alone = ResourceDecision(
        ADDRESS, ["update"], "test", live, None, STREAM.compact(BASE | {"max_consumers": 2})
    )

    assert split_update(more, delays_limits=False) == (more, None, {})
    now, last, waiting = split_update(more, delays_limits=True)
    assert now is not None
    assert now.after == STREAM.compact(BASE | {"description": "x"})
    assert (last, waiting) == (more, {"max_consumers": 2})
    assert split_update(alone, delays_limits=True) == (None, alone, {"max_consumers": 2})


@pytest.mark.parametrize(
    ("before", "after", "works"),
    [({}, {"num_replicas": 3}, True), ({}, {"placement": {"cluster": "w"}}, True), ({"placement": {"cluster": "w"}}, {}, False),
     ({}, {"max_age": 1}, False)],
)  # fmt: skip
def test_changes_that_reorganise_a_stream(
    before: dict[str, Any], after: dict[str, Any], works: bool
) -> None:
    """After a move or a change of replicas other steps wait, and after other changes not."""
    assert is_reorganised(STREAM.compact(BASE | before), STREAM.compact(BASE | after)) == works
