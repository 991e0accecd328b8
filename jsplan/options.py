"""What a caller may ask of the workflows, and how a running workflow talks back. Free of click and rich."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from jsplan.backfill.windows import SYSTEM_CLOCK, Clock
from jsplan.planning.options import PlanningOptions
from jsplan.units import SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.apply import ApplyEvent
    from jsplan.documents.plan import Plan
    from jsplan.drift.schedule import Schedule


@dataclass(frozen=True, slots=True)
class PlanOptions(PlanningOptions):
    """Options of `plan`, `apply` and `destroy` (contract, section 3): what is asked of the plan, and how it is carried out.

    `lock_timeout` is ns. `backup` is a folder: streams are saved below it before messages of theirs are deleted. `waves` are the
    terms of `--wave`, `max_failures` domains of one of them may fail; `deferred` applies what is left of a saved plan. Windows of
    backfills go by `clock`.
    """

    parallelism: int = 10
    lock_timeout: int = 10 * SECOND
    rehearse: bool = False
    backup: Path | None = None
    waves: tuple[str, ...] = ()
    max_failures: int = 0
    deferred: bool = False
    clock: Clock = SYSTEM_CLOCK


@dataclass(frozen=True, slots=True)
class DriftOptions:
    """Options of one drift run. `fail_on` are among changed, missing, replication, unmanaged; without `replication` no flow is
    looked at.
    """

    targets: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    parallelism: int = 10
    fail_on: frozenset[str] = frozenset({"changed", "missing", "replication"})
    replication: bool = True


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Options of the scheduled job. `schedule` says when all is looked at; `notify` are the kinds that are told.

    `grace` is ns that a domain, or the whole check, may fail before that is told. `metrics` is HOST:PORT; `metrics_file` and `report`
    are written whenever what they show changes.
    """

    schedule: Schedule
    notify: frozenset[str]
    grace: int = 30 * SECOND
    metrics: str | None = None
    metrics_file: Path | None = None
    report: Path | None = None


class Observer(Protocol):
    """Progress as it happens; every method may be called from the event loop's thread at any time."""

    def phase(self, text: str) -> None:
        """A phase begins, such as "Reading 2 domains"."""

    def event(self, event: ApplyEvent) -> None:
        """A step of an apply started or finished, or a copy is further on."""

    def warn(self, text: str) -> None:
        """Something the user should know now, such as waiting for a lock."""


class Approve(Protocol):
    """Shows a plan and asks; raises NotApprovedError unless somebody said yes."""

    def __call__(self, plan: Plan) -> None:
        """Return when the plan may be carried out."""
