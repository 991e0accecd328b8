"""Values at the edges of every row: files and server take the same, on each version."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.resources import CONSUMER, STREAM, Field, Table
from jsplan.resources.nested import CONSUMER_LIMITS

if TYPE_CHECKING:
    from tests.fields.server_bench import ServerBench

pytestmark = pytest.mark.matrix

NUMBERS = (-(2**31), -2, -1, 0, 1, 3, 5, 6, 1000, 2**31)
VALUES: dict[str, tuple[Any, ...]] = {
    "int": NUMBERS,
    "size": NUMBERS,
    "duration": NUMBERS,
    "percent": (
        "",
        "0",
        "30%",
        "101",
        "+5",
        "007",
        "abc",
        "30 %",
        "100%%",
        "%",
        "1.5",
        " 5",
        "1e1",
        "-1",
    ),
    "strings": ([], [""]),
    "durations": ([], [0], [-1], [1]),
    "string": ("",),
    "time": ("", "2024-01-01T01:00:00+01:00"),
    "metadata": ({}, {"": "x"}),
}
#: Negative times that servers before 2.12 keep as they are written; newer ones refuse them, and so do the files.
KEPT_BY_OLD_SERVERS = {("ack_wait", 0), ("ack_wait", 1), ("backoff", 0), ("backoff", 1)}
PULL, PUSH = {"ack_policy": "explicit"}, {"ack_policy": "explicit", "deliver_subject": "d.c"}


def edge_values(row: Field) -> tuple[Any, ...]:
    """Draw values at the edges of what a row allows, and beyond."""
    if row.type == "enum":
        return ("", *row.values, *(value.upper() for value in row.values), "nonsense")
    if row.name == "inactive_threshold":
        return (
            *(n for n in NUMBERS if n <= 0),
            3_600_000_000_000,
        )  # shorter ones delete the consumer in the middle
    if row.name == "priority_groups":
        return ([],)  # 2.11 takes a group without a name where it takes no other
    return VALUES.get(row.type, ())


CASES = [
    pytest.param(table, row, base, id=f"{table.kind}-{row.name}{suffix}")
    for table, bases in ((STREAM, {"": {}}), (CONSUMER, {"-pull": PULL, "-push": PUSH}))
    for suffix, base in bases.items()
    for row in table.rows
    if row.name not in ("name", "durable_name") and row.type in (*VALUES, "enum")
]


def parse_value(row: Field, value: Any) -> tuple[bool, Any]:
    """Parse the value; return whether the files take it, and what it becomes."""
    try:
        return True, row.parse(value)
    except ValueError:
        return False, None


def is_accepted(bench: ServerBench, table: Table, config: dict[str, Any]) -> bool:
    """Check whether the server takes the configuration exactly and unchanged."""
    consumer = table is CONSUMER
    api = "CONSUMER.{}.PLAIN.U" if consumer else "STREAM.{}.U"
    payload = {"stream_name": "PLAIN", "action": "create", "config": config} if consumer else config
    taken = "error" not in bench.raw.api(f"$JS.API.{api.format('CREATE')}", payload)
    if taken:
        bench.raw.api_ok(f"$JS.API.{api.format('DELETE')}")
    return taken


def body_of(table: Table, base: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return one stream or consumer called U."""
    name = (
        {"name": "U", "subjects": ["U.>"]}
        if table is STREAM
        else {"name": "U", "durable_name": "U"}
    )
    return name | base | more


@pytest.mark.parametrize(("table", "row", "base"), CASES)
def test_files_take_what_the_server_takes(
    bench: ServerBench, table: Table, row: Field, base: dict[str, Any]
) -> None:
    """A value of one field is taken by the files if the server takes it, and refused if not.

    One that the files take is kept by the server, or was a predicted refusal.
    """
    for value in edge_values(row) if row.level <= bench.level else ():
        known, value_sent = parse_value(row, value)
        if not known:
            taken = is_accepted(bench, table, body_of(table, base, **{row.name: value}))
            assert not taken or (row.name, bench.level) in KEPT_BY_OLD_SERVERS, (
                row.name,
                json.dumps(value),
            )
            continue
        old, new = body_of(table, base, **{row.name: value_sent}), body_of(table, base)
        if table is STREAM:
            bench.stream(old, new)
        else:
            bench.consumer("PLAIN", old, new)


@pytest.mark.parametrize("row", CONSUMER_LIMITS.rows, ids=lambda row: row.name)
def test_limits_for_consumers_at_their_edges(bench: ServerBench, row: Field) -> None:
    """Limits for consumers are taken by the files if the server takes them."""
    for value in VALUES["int"]:
        known, value_sent = parse_value(row, value)
        assert known or not is_accepted(
            bench, STREAM, body_of(STREAM, {}, consumer_limits={row.name: value})
        ), value
        if known:
            bench.stream(
                body_of(STREAM, {}, consumer_limits={row.name: value_sent}), body_of(STREAM, {})
            )


def test_a_heartbeat_of_its_own(bench: ServerBench) -> None:
    """A heartbeat beside `ack_policy: flow_control`, which implies one second, stops no apply."""
    for beat in (
        (0, 1, 30_000_000_000) if bench.level >= 4 else ()
    ):  # no server knows that policy before 2.14
        bench.consumer(
            "PLAIN",
            body_of(CONSUMER, PUSH, ack_policy="flow_control", idle_heartbeat=beat),
            body_of(CONSUMER, PUSH),
        )
