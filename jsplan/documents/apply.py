"""The apply document, and the events of a running apply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct, field

from jsplan.documents.base import Document
from jsplan.documents.step_kinds import Op
from jsplan.documents.types import AnyAddress, Count, Deferred, Interrupted, written

#: Operations of the history that change the state and no server.
STATE_COMMANDS: Final = ("state rm", "state mv", "state push", "state take")
StepStatus = Literal["done", "failed", "skipped", "unknown"]


if TYPE_CHECKING:
    StepOp = str
else:
    StepOp = Op


class StepResult(Struct, omit_defaults=True):
    """The result of one step.

    `unknown`: the call was sent and no answer came. The next plan reads the result. `note` is what
    remains after a step that is done, such as a replica on a server that is offline.
    """

    id: str
    address: AnyAddress
    op: StepOp
    status: StepStatus
    error: str | None = written(lambda: None)
    note: str | None = None


class ApplyStarted(Struct, frozen=True):
    """All checks passed; `steps` steps follow, each of them a `noun`."""

    steps: int
    noun: str = "step"


class StepStarted(Struct, frozen=True):
    """A step's call is about to be sent."""

    id: str
    address: str
    title: str


class BytesMoved(Struct, frozen=True):
    """Progress of a step in bytes: `done` of about `total`, which is 0 if it is unknown."""

    id: str
    done: int
    total: int


class ObjectsRead(Struct, frozen=True):
    """Progress of a phase that reads: `done` of `total` objects, which is 0 if it is unknown."""

    done: int
    total: int = 0


class StepFinished(Struct, frozen=True):
    """A step ended; `seconds` is its wall time."""

    result: StepResult
    title: str
    seconds: float


class MessagesMoved(Struct, frozen=True):
    """Progress of the copy `id`: `done` of about `total` messages (0: unknown) after `seconds`."""

    id: str
    title: str
    done: int
    total: int
    seconds: float


class MoveProgress(Struct, frozen=True):
    """Progress of a cluster that moves or scales a stream, after step `id` and `seconds`.

    `lag` is how many operations its replicas lack together, of the `highest` seen. `reason` is what
    the cluster waits for, empty where it does not say.
    """

    id: str
    title: str
    reason: str
    lag: int
    highest: int
    seconds: float


ApplyEvent = (
    ApplyStarted
    | StepStarted
    | BytesMoved
    | MessagesMoved
    | MoveProgress
    | ObjectsRead
    | StepFinished
)


class ApplyResult(Document, omit_defaults=True, tag="apply"):
    """The document that `apply --json` prints.

    `summary` counts resources: imported, added, changed, replaced, destroyed, forgotten, deferred,
    failed, skipped. `backup` is `{"folder", "streams"}` if streams were backed up first.
    `backfills` has the result of each backfill of the plan:
    `{"name", "status": "done|failed|deferred|skipped", "copied", "gap_messages", "error"}`.
    `interrupted` are replacements of streams that it did not finish:
    `{"address", "rejected", "summary", "detail"}`.
    """

    plan_id: str
    steps: list[StepResult] = written(list)
    summary: dict[str, Count] = written(dict)
    state: dict[str, Any] = written(dict)
    exit_code: Count = written(int)
    deferred: list[Deferred] = written(list)
    backup: dict[str, Any] | None = None
    backfills: list[dict[str, Any]] = field(default_factory=list)
    interrupted: list[Interrupted] = written(list)
