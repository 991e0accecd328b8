"""What tests of copies of a replaced stream say in one word: publish, count, wait, and that nothing is left to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, Space

if TYPE_CHECKING:
    from collections.abc import Callable

    from jsplan.sandbox import Server
    from tests.support.raw import Raw

PERMITTED = (
    "DELETES_STREAM",
    "BREAKS_REPLICATION",
    "REMOVES_SUBJECTS",
    "IRREVERSIBLE",
    "DUPLICATES_MESSAGES",
)


def publish(raw: Raw, subject: str, count: int) -> None:
    """So many messages; they are stored when the stream's count says so."""
    for number in range(count):
        raw.publish(subject, f"{number}".encode())
    raw.flush()


def message_count(raw: Raw, stream: str, prefix: str = "$JS.API") -> int:
    """How many a stream has."""
    return int(raw.api_ok(f"{prefix}.STREAM.INFO.{stream}")["state"]["messages"])


def origin_config(mode: str, *, replaced: bool, **more: Any) -> dict[str, Any]:
    """The stream that is replaced, as it was and as it shall be."""
    return (
        {"name": "O", "subjects": ["o.>"], "lifecycle": {"on_replace": mode}}
        | ({"storage": "memory"} if replaced else {})
        | more
    )


def wait_until_copied(server: Server, look: Callable[[], bool]) -> None:
    """Wait for what a source may take half a minute to begin with."""
    server.wait_until(look, "copy what is published", 90.0)


def require_converged(space: Space) -> None:
    """Nothing to do, nothing to say, nothing drifted, nothing under way."""
    plan = space.plan()
    assert [step.title for step in plan.steps] == []
    assert [d.summary for d in plan.diagnostics if d.severity != "info"] == []
    assert drift(space.load, DriftOptions(), RecordingObserver()).resource_drift == []
    assert read_state(space.folder).replacements == {}
