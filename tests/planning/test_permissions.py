from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.options import PlanOptions
from jsplan.planning.hazard_permissions import check_permissions
from jsplan.workflows import apply as applying
from jsplan.workflows.plan import save_plan
from tests.support.workspaces import RecordingObserver, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

UNKNOWN_ADDRESS = "DELETES_STREAM:main/stream/ODRERS"


def test_a_permission_for_an_unknown_address(tmp_path: Path, server: Server) -> None:
    """A permission for an unknown address is a warning with a suggestion, in plan and apply."""
    space = single_space(tmp_path, server).write(streams=[{"name": "ORDERS"}])
    allowed = (
        "DELETES_STREAM",
        "DELETES_STREAM:main/stream/ORDERS",
        "DELETES_STREAM:*/stream/O*",
        UNKNOWN_ADDRESS,
    )
    plan = space.plan(allow_hazards=allowed)
    [found] = [d for d in plan.diagnostics if d.code == "JS429"]
    save_plan(plan, tmp_path / "p.plan")
    observer = RecordingObserver()
    _, result = applying.apply_saved(
        space.load, tmp_path / "p.plan", PlanOptions(allow_hazards=(UNKNOWN_ADDRESS,)), observer
    )

    assert (found.severity, found.detail) == ("warning", 'Did you mean "main/stream/ORDERS"?')
    assert UNKNOWN_ADDRESS in found.summary
    assert result.exit_code == 0
    assert [text for text in observer.texts if UNKNOWN_ADDRESS in text]


def test_no_similar_address() -> None:
    """Without a similar address, the warning says where the plan shows the flags."""
    [found] = check_permissions([UNKNOWN_ADDRESS, UNKNOWN_ADDRESS], [])

    assert found.detail == "The plan shows each flag that is needed."
