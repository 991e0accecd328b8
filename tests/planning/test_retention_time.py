"""Estimates of how long a stream keeps its messages at the measured rate."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from jsplan.address import Address
from jsplan.facts.live import LiveObject
from jsplan.planning.domain_findings import shortest_retention
from jsplan.units import DURATIONS, SECOND

NOW = datetime(2026, 1, 11, tzinfo=UTC)
DAY = DURATIONS["d"]


def stream_facts(messages: int, size: int, since: str) -> LiveObject:
    """Build a stream with this many messages, the first of them from this time."""
    state = {"messages": messages, "bytes": size, "first_ts": since, "last_ts": since}
    return LiveObject(Address("s", "stream", "A"), {"name": "A"}, "c", state)


TEN_DAYS = stream_facts(1000, 10_000_000, "2026-01-01T00:00:00.123456789Z")


def test_shortest_retention() -> None:
    """The limit that is reached first determines how long a stream keeps messages.

    A limit that refuses new messages deletes none, and a limit that is hardly used has no estimate.
    """
    empty = stream_facts(0, 0, "0001-01-01T00:00:00Z")
    burst = stream_facts(500, 1, "2026-01-10T23:59:58Z")
    hour = stream_facts(500, 1, "2026-01-10T22:59:59Z")
    least = {"max_bytes": 20_000_000, "max_msgs": 700, "max_age": 30 * DAY}
    refusing = {"max_msgs": 500, "discard": "new"}
    rows: list[tuple[dict[str, Any], LiveObject | None, int | None, str | None]] = [
        ({}, TEN_DAYS, None, None),
        ({"max_age": 3 * DAY}, TEN_DAYS, 3 * DAY, "max_age"),
        ({"max_age": 3 * DAY}, None, 3 * DAY, "max_age"),
        ({"max_msgs": 1000}, TEN_DAYS, 10 * DAY, "max_msgs"),
        ({"max_msgs": 500}, TEN_DAYS, 5 * DAY, "max_msgs"),
        ({"max_bytes": 20_000_000}, TEN_DAYS, 20 * DAY, "max_bytes"),
        (least, TEN_DAYS, 7 * DAY, "max_msgs"),
        (refusing, TEN_DAYS, None, None),
        (refusing | {"max_age": 30 * DAY}, TEN_DAYS, 30 * DAY, "max_age"),
        ({"max_msgs": 1_000_000}, TEN_DAYS, None, None),
        ({"max_msgs": 500}, empty, None, None),
        ({"max_msgs": 500}, None, None, None),
        ({"max_msgs": 500}, burst, None, None),
        ({"max_msgs": 500}, hour, 3600 * SECOND, "max_msgs"),
    ]
    for config, live, keeps, limit in rows:
        found = shortest_retention(config, live, NOW)
        assert (found.limit if found else None) == limit, (config, live)
        if found is not None and keeps is not None:
            assert abs(found.duration - keeps) < 3600 * SECOND, (config, live)


def test_reason_of_the_estimate() -> None:
    """The finding names the limit, the number of messages and their period."""
    found = shortest_retention({"max_msgs": 500}, TEN_DAYS, NOW)

    assert found is not None
    assert found.reason == "max_msgs is 500, and 1,000 messages came in 10d"
