"""`pause_until`: the steps of a plan that set, move and lift a pause."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.options import DriftOptions
from jsplan.planning.pauses import is_expired
from jsplan.workflows.drift import drift
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, Space

if TYPE_CHECKING:
    from jsplan.sandbox import Server

NOW = datetime(2026, 6, 1, 12, 0, 0, 500_000, tzinfo=UTC)
LATER, MUCH_LATER = "2040-01-01T00:00:00Z", "2041-01-01T00:00:00Z"


def test_a_pause_is_over_once_its_time_has_come() -> None:
    """A pause ends at its time, to the microsecond; no time is no pause."""
    for until, over in [
        (None, True),
        ("", True),
        ("2026-06-01T12:00:00Z", True),
        ("2026-06-01T12:00:00.5Z", True),
        ("2026-06-01T12:00:00.500001Z", False),
        ("2026-06-01T12:00:00.499999999Z", True),
        ("2026-06-01T12:00:01Z", False),
        ("2026-06-01T14:00:00.4+02:00", True),
        ("2026-06-01T11:00:00.6-01:00", False),
        (LATER, False),
    ]:
        assert is_expired(until, NOW) is over, until


def write(space: Space, **consumer: Any) -> Space:
    """Write a workspace with one consumer."""
    return space.write(streams=[{"name": "A", "consumers": [{"name": "C"} | consumer]}])


def test_a_pause_is_one_call_after_the_update(space: Space) -> None:
    """A pause is moved by a second step that depends on the update."""
    write(space, pause_until=LATER).apply()

    update, pause = write(space, pause_until=MUCH_LATER, description="x").plan().steps

    assert (update.op, pause.op) == ("consumer.update", "consumer.pause")
    assert update.request is not None
    assert update.request["payload"]["config"]["pause_until"] == LATER
    assert update.expect is not None
    assert update.expect["pause_until"] == LATER
    assert pause.request == {"api": "CONSUMER.PAUSE.A.C", "payload": {"pause_until": MUCH_LATER}}
    assert (pause.depends_on, pause.expect) == ([update.id], {"pause_until": MUCH_LATER})
    assert pause.precondition["after_step"] == update.id
    assert pause.title == f"pause consumer C of A in main until {MUCH_LATER}"


def test_a_pause_alone_needs_no_update(space: Space) -> None:
    """A pause is set and lifted by one step without an update."""
    write(space).apply()
    (pause,) = write(space, pause_until=LATER).plan().steps
    assert pause.op == "consumer.pause"
    assert set(pause.precondition) == {"fingerprint", "parent"}
    space.apply()

    (resume,) = write(space).plan().steps

    assert resume.request == {"api": "CONSUMER.PAUSE.A.C", "payload": None}
    assert resume.title == "resume consumer C of A in main"
    assert space.apply()[1].summary["changed"] == 1
    assert not space.plan().steps


def test_a_declared_pause_lifted_outside_is_drift_and_comes_back(
    space: Space, server: Server
) -> None:
    """A lifted pause of the files is drift; a pause that the files do not name is none."""
    write(space, pause_until=LATER).apply()
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.CONSUMER.PAUSE.A.C")

        (found,) = drift(space.load, DriftOptions(), RecordingObserver()).resource_drift
        assert [f.path for f in found.change.fields] == ["pause_until"]
        space.apply()
        assert raw.api_ok("$JS.API.CONSUMER.INFO.A.C")["config"]["pause_until"] == LATER

        write(space).apply()
        raw.api_ok("$JS.API.CONSUMER.PAUSE.A.C", {"pause_until": LATER})
        assert drift(space.load, DriftOptions(), RecordingObserver()).resource_drift == []
        assert not space.plan().has_changes


def test_a_pause_that_passed_is_no_drift_when_it_is_cleared(space: Space, server: Server) -> None:
    """The removal of a pause that has passed is no drift."""
    write(space, pause_until="2021-01-01T00:00:00Z").apply()
    with Raw(server.url) as raw:
        assert (
            raw.api_ok("$JS.API.CONSUMER.INFO.A.C")["config"]["pause_until"]
            == "2021-01-01T00:00:00Z"
        )
        raw.api_ok("$JS.API.CONSUMER.PAUSE.A.C")

    assert drift(space.load, DriftOptions(), RecordingObserver()).resource_drift == []
    assert not space.plan().has_changes


@pytest.mark.matrix
def test_a_server_that_cannot_pause_is_named_by_the_plan(
    space: Space, server_version: tuple[int, ...]
) -> None:
    """A server without pauses is an error of the plan; newer servers pause and resume.

    Server 2.10 would drop the field silently.
    """
    plan = write(space, pause_until=LATER).plan()
    if server_version < (2, 11):
        assert [d.code for d in plan.diagnostics if d.severity == "error"] == ["JS413"]
        return
    for until in (LATER, MUCH_LATER, None):
        assert write(space, pause_until=until).apply()[1].exit_code == 0
        assert not space.plan().steps
