"""Fields that a domain's server does not know are errors of the plan that name the field, the level it needs and the level there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.context import build_inputs
from jsplan.facts.live import DomainFacts, Live
from jsplan.planning.build import build_plan, decide_all
from jsplan.planning.model import PlanRequest
from jsplan.resources import CONSUMER, STREAM
from tests.support.raw import Raw
from tests.support.state import load_context
from tests.support.workspaces import Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Server

#: For each field that came later: the level it needs, and a value that is none of its defaults. Nested ones by their path.
STREAMS: dict[str, tuple[int, dict[str, Any]]] = {
    "allow_msg_ttl": (1, {"allow_msg_ttl": True}),
    "subject_delete_marker_ttl": (1, {"subject_delete_marker_ttl": "1h"}),
    "allow_msg_counter": (2, {"allow_msg_counter": True}),
    "allow_atomic": (2, {"allow_atomic": True}),
    "allow_msg_schedules": (2, {"allow_msg_schedules": True}),
    "persist_mode": (2, {"persist_mode": "async"}),
    "allow_batched": (4, {"allow_batched": True}),
    "sources.consumer": (
        4,
        {"sources": [{"name": "O", "consumer": {"name": "c", "deliver_subject": "d"}}]},
    ),
}
CONSUMERS: dict[str, tuple[int, dict[str, Any]]] = {
    "pause_until": (1, {"pause_until": "2031-01-01T00:00:00Z"}),
    "priority_groups": (1, {"priority_groups": ["g"], "priority_policy": "overflow"}),
    "priority_policy": (1, {"priority_groups": ["g"], "priority_policy": "overflow"}),
    "priority_timeout": (
        1,
        {"priority_groups": ["g"], "priority_policy": "pinned_client", "priority_timeout": "1m"},
    ),
    "priority_policy: prioritized": (
        2,
        {"priority_groups": ["g"], "priority_policy": "prioritized"},
    ),
    "ack_policy: flow_control": (4, {"ack_policy": "flow_control", "deliver_subject": "d.x"}),
    "sourcing": (4, {"sourcing": True}),
}
CASES = [("stream", path, *case) for path, case in STREAMS.items()] + [
    ("consumer", path, *case) for path, case in CONSUMERS.items()
]
NAMES = {1: "2.11", 2: "2.12", 4: "2.14"}


def write_workspace(space: Space, kind: str, body: dict[str, Any]) -> Space:
    """A workspace with just this stream or consumer."""
    if kind == "stream":
        return space.write(streams=[{"name": "S"} | body])
    return space.write(
        streams=[
            {
                "name": "S",
                "subjects": ["s"],
                "consumers": [{"name": "C", "ack_policy": "explicit"} | body],
            }
        ]
    )


def plan_at_level(space: Space, level: int) -> Plan:
    """The plan for a domain of this level in which nothing is yet."""
    inputs = build_inputs(
        load_context(space.load), PlanRequest(now=datetime(2026, 1, 1, tzinfo=UTC))
    )
    inputs.live = Live(
        {
            "main": DomainFacts(
                "main", reachable=True, level=level, server={"name": "s", "cluster": "c"}
            )
        }
    )
    return build_plan(inputs, decide_all(inputs))


def unknown_field_errors(plan: Plan) -> dict[str, tuple[str | None, str]]:
    """The errors of this kind: address and text by the field they name."""
    found = [d for d in plan.diagnostics if d.code == "JS413"]
    return {d.summary.partition(" needs ")[0]: (d.address, d.summary) for d in found}


@pytest.mark.parametrize(("kind", "path", "needed", "body"), CASES)
def test_the_error_names_field_and_levels(
    tmp_path: Path, kind: str, path: str, needed: int, body: dict[str, Any]
) -> None:
    """One level too low is an error with the field, the level it needs and the one that is there; just high enough is none."""
    server_of_nobody = Space(
        tmp_path,
        {
            "jsplan": 1,
            "workspace": "test",
            "connections": {"main": {"url": "nats://127.0.0.1:1"}},
            "defaults": {"domain": "main"},
            "domains": {"main": {"connection": "main", "js_domain": None}},
        },
    )
    space = write_workspace(server_of_nobody, kind, body)

    below, enough = plan_at_level(space, needed - 1), plan_at_level(space, needed)

    address, text = unknown_field_errors(below)[path]
    assert address == ("main/stream/S" if kind == "stream" else "main/consumer/S/C")
    assert (
        text
        == f"{path} needs API level {needed} (nats-server {NAMES[needed]}); main has level {needed - 1}"
    )
    assert below.errored
    assert below.steps == []
    assert path not in unknown_field_errors(enough)


def test_every_field_that_came_later_is_among_the_cases() -> None:
    """A new row with a level needs a case here."""
    rows = {row.name for table in (STREAM, CONSUMER) for row in table.rows if row.level}
    values = {
        f"{row.name}: {value}"
        for table in (STREAM, CONSUMER)
        for row in table.rows
        for value, level in row.value_levels.items()
        if level
    }

    assert rows | values <= {path for _, path, _, _ in CASES}


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "path", "needed", "body"), CASES)
def test_real_servers(
    server: Server, tmp_path: Path, kind: str, path: str, needed: int, body: dict[str, Any]
) -> None:
    """On a real server the error is there exactly where the server is too old, and nothing was sent to find out."""
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.CREATE.O", {"name": "O", "subjects": ["o"]})
        level = (raw.api_ok("$JS.API.INFO").get("api") or {}).get("level", 0)
        plan = write_workspace(single_space(tmp_path, server), kind, body).plan()

        assert (path in unknown_field_errors(plan)) == (level < needed)
        assert raw.api_ok("$JS.API.STREAM.NAMES")["streams"] == ["O"]
