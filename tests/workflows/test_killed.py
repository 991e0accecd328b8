"""Promise 7: after a killed apply, plan and apply continue, and state owns all resources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.support.process import jsplan
from tests.support.raw import Raw, streams
from tests.support.simulated_kill import SimulatedKill, kill_at_request
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

PERMITTED = ("DELETES_STREAM", "REMOVES_SUBJECTS")


def owned_addresses(space: Space) -> set[str]:
    """Return the addresses in state, and require that nothing is pending."""
    state = read_state(space.folder)
    assert state.pending == {}
    return {str(address) for address in state.resources}


def declared(*bodies: dict[str, Any]) -> set[str]:
    """Return the addresses of streams and their consumers."""
    consumers = {
        f"main/consumer/{body['name']}/{c['name']}"
        for body in bodies
        for c in body.get("consumers", [])
    }
    return {f"main/stream/{body['name']}" for body in bodies} | consumers


def require_no_outside_changes(space: Space) -> None:
    """Require that plan and drift report no change outside jsplan."""
    found = drift(space.load, DriftOptions(replication=False), RecordingObserver())
    assert (found.resource_drift, found.unmanaged) == ([], [])
    assert found.exit_code == (2 if found.interrupted else 0)
    plan = space.plan()
    reasons = {change.action_reason for change in plan.resource_changes}
    assert plan.resource_drift == []
    assert not {
        reason for reason in reasons if reason.endswith(("_missing", "_not_ours", "_drifted"))
    }


def kill_after_delete(space: Space) -> None:
    """Kill the next apply between the answer to its deletion and the journal."""
    with kill_at_request("STREAM.DELETE", answered=True), pytest.raises(SimulatedKill):
        space.apply(allow_hazards=PERMITTED, parallelism=1)
    assert [begun["op"] for begun in read_state(space.folder).pending.values()] == ["stream.delete"]


@pytest.mark.parametrize(
    "then", [[], [{"name": "A", "consumers": [{"name": "B"}]}]], ids=["left", "back"]
)
def test_a_deletion_of_a_killed_apply_is_no_drift(
    tmp_path: Path, server: Server, then: list[dict[str, Any]]
) -> None:
    """A deletion that was not recorded is known as one of jsplan, and leaves the state."""
    space = single_space(tmp_path, server).write(
        streams=[{"name": "A", "consumers": [{"name": "B"}, {"name": "C"}]}]
    )
    space.apply()
    space.write(streams=[])
    kill_after_delete(space)
    space.write(streams=then)

    assert jsplan(tmp_path, "drift").code == 0
    shown = jsplan(tmp_path, "plan").text
    assert "outside" not in shown
    assert "forgotten" not in shown
    if not then:
        assert "No changes." in shown
    space.apply()
    assert owned_addresses(space) == declared(*then)


def test_a_deletion_is_not_forgotten_after_a_second_kill(tmp_path: Path, server: Server) -> None:
    """A second kill, while the stream is created again, keeps the record of the deletion."""
    space = single_space(tmp_path, server).write(
        streams=[{"name": "A", "consumers": [{"name": "B"}]}]
    )
    space.apply()
    space.write(streams=[])
    kill_after_delete(space)
    space.write(streams=[{"name": "A"}])
    with kill_at_request("STREAM.CREATE", answered=False), pytest.raises(SimulatedKill):
        space.apply(parallelism=1)
    assert [begun["op"] for begun in read_state(space.folder).pending.values()] == ["stream.create"]

    require_no_outside_changes(space)
    space.apply()
    assert owned_addresses(space) == {"main/stream/A"}


def test_a_deletion_outside_is_still_distinguished(tmp_path: Path, server: Server) -> None:
    """Another stream that was deleted outside jsplan is reported as such."""
    space = single_space(tmp_path, server).write(streams=[{"name": "A"}, {"name": "B"}])
    space.apply()
    space.write(streams=[{"name": "B"}])
    kill_after_delete(space)
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.DELETE.B")
    found = drift(space.load, DriftOptions(), RecordingObserver())

    assert [(r.address, r.action_reason) for r in found.resource_drift] == [
        ("main/stream/B", "drift_missing")
    ]


def test_a_deletion_of_a_killed_apply_in_a_renamed_domain(tmp_path: Path, server: Server) -> None:
    """A domain that is renamed after the kill leaves the state with its deleted resources."""
    space = single_space(tmp_path, server).write(
        streams=[{"name": "A", "consumers": [{"name": "B"}]}]
    )
    space.apply()
    space.write(streams=[])
    kill_after_delete(space)
    domains = {
        "domains": {"new": {"connection": "main", "js_domain": None}},
        "defaults": {"domain": "new"},
    }
    space.write(streams=[], moved=[{"from": "main/**", "to": "new/**"}], **domains)

    require_no_outside_changes(space)
    space.apply()
    assert owned_addresses(space) == set()


@pytest.mark.parametrize(
    ("then", "action"),
    [([{"name": "A", "max_msgs": 9}], "update"), ([], "delete")],
    ids=["changed", "left"],
)
def test_a_stream_of_a_killed_apply_is_managed(
    tmp_path: Path, server: Server, then: list[dict[str, Any]], action: str
) -> None:
    """A stream of a killed apply is updated without --adopt, or deleted if it left the files."""
    space = single_space(tmp_path, server).write(streams=[{"name": "A", "max_msgs": 5}])
    kill_after_request(space)
    plan, result = space.write(streams=then).apply(allow_hazards=PERMITTED)

    assert [change.change.actions for change in plan.resource_changes] == [[action]]
    assert result.exit_code == 0
    assert not space.plan().has_changes


def test_an_unmanaged_stream_stays_unmanaged(tmp_path: Path, server: Server) -> None:
    """A stream that was created outside jsplan after the kill stays unmanaged."""
    space = single_space(tmp_path, server).write(streams=[{"name": "A", "max_msgs": 5}])
    kill_after_request(space)
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.DELETE.A")
        raw.create("A", max_msgs=6)
    plan = space.plan()
    assert [d.code for d in plan.diagnostics if d.severity == "error"] == ["JS302"]
    plan, result = space.write(streams=[]).apply()

    assert not plan.has_changes
    assert result.exit_code == 0
    assert owned_addresses(space) == set()
    with Raw(server.url) as raw:
        assert streams(raw) == ["A"]


def test_a_create_that_never_arrived_is_no_longer_pending(tmp_path: Path, server: Server) -> None:
    """A create that never arrived is removed from state when the stream left the files."""
    space = single_space(tmp_path, server).write(streams=[{"name": "A"}])
    kill_after_request(space)
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.DELETE.A")
    plan, result = space.write(streams=[]).apply()

    assert not plan.has_changes
    assert result.exit_code == 0
    assert owned_addresses(space) == set()


def kill_after_request(space: Space) -> None:
    """Kill an apply after the first request, before its end is in the journal."""
    with kill_at_request("STREAM.CREATE", answered=True), pytest.raises(SimulatedKill):
        space.apply(parallelism=1)
    state = read_state(space.folder)
    assert list(state.pending) == ["main/stream/A"]
    assert state.resources == {}
