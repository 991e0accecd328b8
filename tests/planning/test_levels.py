"""Fields that the server of a domain does not know are errors with both API levels."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from jsplan.facts.live import DomainFacts, Live
from jsplan.plan_inputs import build_inputs
from jsplan.planning.build import build_plan, decide_all
from jsplan.resources import CONSUMER, STREAM
from jsplan.resources.server_features import SERVER_VERSIONS
from tests.support.process import jsplan
from tests.support.raw import Raw
from tests.support.state import load_context
from tests.support.workspaces import Space, new_space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Server

#: Later fields by path: the level that they need, and a value that is not the default.
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


def write_workspace(space: Space, kind: str, body: dict[str, Any]) -> Space:
    """Write a workspace with one stream or consumer."""
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
    """Plan for an empty domain of this level."""
    inputs = build_inputs(load_context(space.load))
    inputs = replace(inputs, now=datetime(2026, 1, 1, tzinfo=UTC))
    server = {"name": "s", "cluster": "c"}
    live = Live({"main": DomainFacts("main", reachable=True, level=level, server=server)})
    inputs = replace(inputs, live=live)
    return build_plan(inputs, decide_all(inputs))


def unknown_field_errors(plan: Plan) -> dict[str, tuple[str | None, str]]:
    """Return the JS413 errors as address and text, by field."""
    found = [d for d in plan.diagnostics if d.code == "JS413"]
    return {d.summary.partition(" needs ")[0]: (d.address, d.summary) for d in found}


@pytest.mark.parametrize(("kind", "path", "needed", "body"), CASES)
def test_the_error_names_field_and_levels(
    tmp_path: Path, kind: str, path: str, needed: int, body: dict[str, Any]
) -> None:
    """A field above the level of the domain is an error with both levels."""
    offline_space = new_space(
        tmp_path,
        connections={"main": {"url": "nats://127.0.0.1:1"}},
        defaults={"domain": "main"},
        domains={"main": {"connection": "main", "js_domain": None}},
    )
    space = write_workspace(offline_space, kind, body)

    below, sufficient = plan_at_level(space, needed - 1), plan_at_level(space, needed)

    address, text = unknown_field_errors(below)[path]
    assert address == ("main/stream/S" if kind == "stream" else "main/consumer/S/C")
    assert (
        text
        == f"{path} needs API level {needed} (nats-server {SERVER_VERSIONS[needed]}); main has level {needed - 1}"
    )
    assert below.errored
    assert below.steps == []
    assert path not in unknown_field_errors(sufficient)


def test_every_field_with_a_level_is_among_the_cases() -> None:
    """Each row of the tables with a level is among the cases."""
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
    """A real server has the error when it is too old, and receives no request for it."""
    with Raw(server.url) as raw:
        raw.create("O", subjects=["o"])
        level = raw.api_level()
        plan = write_workspace(single_space(tmp_path, server), kind, body).plan()

        assert (path in unknown_field_errors(plan)) == (level < needed)
        assert raw.api_ok("$JS.API.STREAM.NAMES")["streams"] == ["O"]


@pytest.mark.matrix
def test_subjects_that_only_2_10_stores(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """A first wildcard that catches the API is imported from 2.10 with a warning, later refused."""
    space = single_space(tmp_path, server).write()
    subjects = ["*.orders.>"]
    with Raw(server.url) as raw:
        answer = raw.api("$JS.API.STREAM.CREATE.WILD", {"name": "WILD", "subjects": subjects})

    if server_version >= (2, 11):
        assert answer["error"]["err_code"] == 10052
        plan = space.write(streams=[{"name": "WILD", "subjects": subjects}]).plan()
        assert [d.code for d in plan.diagnostics if d.severity == "error"] == ["JS157"]
        return
    imported = jsplan(tmp_path, "import", "--all", "--generate-config", "all.jsplan.yaml", "-y")
    assert imported.code == 0, imported.text
    warning = 'Warning: main/stream/WILD: nats-server 2.11 refuses "*.orders.>"'
    assert warning in imported.text
    assert warning in jsplan(tmp_path, "plan").text
    assert not space.plan().has_changes
