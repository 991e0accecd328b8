"""Backfills of a fleet are grouped into one line."""

from __future__ import annotations

from typing import Any

from jsplan.render.backfill_groups import group_backfills


def planned_backfill(number: int, **fields: Any) -> dict[str, Any]:
    """Return a backfill of the history that a source of hub/stream/ALL leaves out of one shop."""
    origin = f"store-{number:03}/stream/SALES"
    return {
        "name": f"{origin}>hub/stream/ALL",
        "declared": False,
        "runs": True,
        "to": {"domain": "hub", "stream": "ALL"},
        "from": [{"domain": f"store-{number:03}", "stream": "SALES", "end_seq": number}],
        "messages": number,
        "bytes": 10 * number,
        "estimate": {"seconds": 2.0, "basis": "at a rate"},
        "reason": "it begins at 2026-01-01T00:00:00Z",
        "command": f"jsplan backfill run --from {origin} --to hub/stream/ALL",
    } | fields


def test_a_fleet_is_one_line() -> None:
    """Equal backfills of a fleet are one, with sums, domains and one command."""
    [(found, where)] = group_backfills([planned_backfill(number) for number in range(1, 21)])

    assert where == "in 20 domains: store-{001..020}"
    assert (found["messages"], found["bytes"], found["estimate"]) == (
        210,
        2100,
        {"seconds": 40.0, "basis": "at a rate"},
    )
    assert found["from"] == [{"domain": "${domain}", "stream": "SALES"}]
    assert (
        found["command"] == "jsplan backfill run --from ${domain}/stream/SALES --to hub/stream/ALL"
    )


def test_backfills_that_differ_stay_apart() -> None:
    """A backfill with another reason, target or `runs` stays apart, and a few are written out."""
    jobs = [planned_backfill(number) for number in range(1, 21)]
    jobs[3]["reason"], jobs[4]["runs"], jobs[5]["to"] = (
        "it begins at sequence 9",
        False,
        {"domain": "hub", "stream": "OTHER"},
    )

    assert [where for _, where in group_backfills(jobs)] == [
        "in 17 domains: store-{001..003}, store-{007..020}",
        "",
        "",
        "",
    ]
    assert [where for _, where in group_backfills(jobs[:3])] == ["", "", ""]


def test_unknown_numbers_have_no_sum() -> None:
    """A group has a sum only if every one of its backfills has the number."""
    [(found, _)] = group_backfills(
        [
            planned_backfill(1, messages=None, bytes=None, estimate=None),
            *(planned_backfill(number) for number in range(2, 9)),
        ]
    )

    assert (found["messages"], found["bytes"], found["estimate"]) == (None, None, None)


def test_entries_stay_apart() -> None:
    """Backfills of entries are not grouped, nor are those that only wait or copy nothing."""
    entries = [
        {"name": f"entry-{number}", "from": [], "to": {}, "messages": 1} for number in range(10)
    ]
    silent = [
        planned_backfill(1, runs=False, waits="domain store-001 is offline"),
        planned_backfill(2, runs=False, messages=0),
    ]

    assert [found["name"] for found, _ in group_backfills([*entries, *silent])] == [
        f"entry-{number}" for number in range(10)
    ]
