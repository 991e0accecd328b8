"""The apply document and the events of a running apply, both as data; printing is left to `render`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from jsplan.documents.backfill import MessagesMoved

FORMAT_VERSION = "1.0"

#: Operations of the history that change what is remembered, and no server.
STATE_COMMANDS: Final = ("state rm", "state mv", "state push")
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
        return {
            "id": self.id,
            "address": self.address,
            "op": self.op,
            "status": self.status,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class ApplyStarted:
    """Everything is checked; so many steps will come, each of them a `noun`."""

    steps: int
    noun: str = "step"


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A step's call is about to be sent."""

    id: str
    address: str
    title: str


@dataclass(frozen=True, slots=True)
class BytesMoved:
    """How far the data of a step is: `done` bytes of about `total`; the total may be a little wrong, and 0 where nobody knows."""

    id: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class StepFinished:
    """A step ended; `seconds` is its wall time."""

    result: StepResult
    title: str
    seconds: float


ApplyEvent = ApplyStarted | StepStarted | BytesMoved | MessagesMoved | StepFinished


@dataclass(slots=True)
class ApplyResult:
    """The document that `apply --json` prints. `summary` counts resources: imported, added, changed, replaced,
    destroyed, forgotten, deferred, failed, skipped. `backup` is `{"folder", "streams"}` where streams were saved before, `backfills`
    what became of each of the plan's: `{"name", "status": "done|failed|deferred|skipped", "copied", "gap_messages", "error"}`.
    `interrupted` are
    replacements of streams that it did not finish: `{"address", "rejected", "summary", "detail"}`.
    """

    plan_id: str
    steps: list[StepResult] = field(default_factory=list)
    summary: dict[str, int] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    exit_code: int = 0
    deferred: list[dict[str, str]] = field(default_factory=list)
    backup: dict[str, Any] | None = None
    backfills: list[dict[str, Any]] = field(default_factory=list)
    interrupted: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The document."""
        out = {
            "format_version": FORMAT_VERSION,
            "kind": "apply",
            "plan_id": self.plan_id,
            "steps": [s.to_json() for s in self.steps],
            "summary": self.summary,
            "state": self.state,
            "interrupted": self.interrupted,
            "deferred": self.deferred,
            "exit_code": self.exit_code,
        }
        out |= {"backup": self.backup} if self.backup is not None else {}
        return out | ({"backfills": self.backfills} if self.backfills else {})
