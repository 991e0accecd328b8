"""The apply document and the events of a running apply, both as data; printing is left to `render`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

FORMAT_VERSION = "1.0"

StepStatus = Literal["done", "failed", "skipped", "unknown"]


@dataclass(slots=True)
class StepResult:
    """How one step ended. `unknown`: the call was sent and its answer never came; the next plan tells."""

    id: str
    address: str
    op: str
    status: StepStatus
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The element of `steps`."""
        return {"id": self.id, "address": self.address, "op": self.op, "status": self.status, "error": self.error}


@dataclass(frozen=True, slots=True)
class ApplyStarted:
    """Everything is checked; so many steps will come."""

    steps: int


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A step's call is about to be sent."""

    id: str
    address: str
    title: str


@dataclass(frozen=True, slots=True)
class StepFinished:
    """A step ended; `seconds` is its wall time."""

    result: StepResult
    title: str
    seconds: float


ApplyEvent = ApplyStarted | StepStarted | StepFinished


@dataclass(slots=True)
class ApplyResult:
    """The document that `apply --json` prints. `summary` counts resources: imported, added, changed, replaced,
    destroyed, forgotten, deferred, failed, skipped.
    """

    plan_id: str
    steps: list[StepResult] = field(default_factory=list)
    summary: dict[str, int] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    exit_code: int = 0
    deferred: list[dict[str, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "format_version": FORMAT_VERSION, "kind": "apply", "plan_id": self.plan_id,
            "steps": [s.to_json() for s in self.steps], "summary": self.summary, "state": self.state,
            "deferred": self.deferred, "exit_code": self.exit_code,
        }  # fmt: skip
