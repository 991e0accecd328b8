from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from jsplan.documents.apply import StepFinished, StepStarted
from jsplan.options import PlanOptions
from jsplan.workflows import apply as applying
from tests.support.workspaces import RecordingObserver, approve, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.apply import ApplyEvent
    from jsplan.sandbox import Server


class InterruptingObserver(RecordingObserver):
    """Sends Ctrl-C when the first step begins, and records everything in one order."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    def event(self, event: ApplyEvent) -> None:
        """Interrupt the first step."""
        super().event(event)
        if isinstance(event, StepFinished):
            self.order.append("finished")
        if isinstance(event, StepStarted):
            os.kill(os.getpid(), signal.SIGINT)

    def warn(self, text: str) -> None:
        """Record the warning among the steps."""
        super().warn(text)
        self.order.append(text)


def test_ctrl_c_says_at_once_what_it_waits_for(tmp_path: Path, server: Server) -> None:
    """Ctrl-C names the running steps before they end, and the rest is not begun."""
    space = single_space(tmp_path, server).write(
        streams=[{"name": f"S{number}", "subjects": [f"s{number}"]} for number in range(3)]
    )
    observer = InterruptingObserver()

    _, result = applying.apply(space.load, PlanOptions(parallelism=1), approve, observer)

    assert result.exit_code == 130
    assert observer.order[0] == (
        "interrupted; waiting for 1 running step: create stream S0 in main. "
        "Ctrl-C again does not wait."
    )
    assert {step.status for step in result.steps} <= {"done", "skipped"}
