"""Helpers for tests of downstream streams: publish, count, wait, require convergence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.support.raw import encode
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, Space, left_to_do

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
    """Publish `count` messages without waiting until they are stored."""
    raw.publish_all(encode(subject, f"{number}".encode()) for number in range(count))
    raw.flush()


def origin_config(mode: str, *, replaced: bool, **more: Any) -> dict[str, Any]:
    """Build the stream that is replaced, before or after the replacement."""
    return (
        {"name": "O", "subjects": ["o.>"], "lifecycle": {"on_replace": mode}}
        | ({"storage": "memory"} if replaced else {})
        | more
    )


def wait_until_copied(server: Server, look: Callable[[], bool]) -> None:
    """Wait for messages of a source, which may take half a minute to start."""
    server.wait_until(look, "copy what is published", 90.0)


def require_converged(space: Space) -> None:
    """Require an empty plan without warnings, no drift and no replacement in state."""
    plan = space.plan()
    assert left_to_do(plan) == []
    assert [d.summary for d in plan.diagnostics if d.severity != "info"] == []
    assert drift(space.load, DriftOptions(), RecordingObserver()).resource_drift == []
    assert read_state(space.folder).replacements == {}
