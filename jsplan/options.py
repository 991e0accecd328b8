"""Options of the workflows, and the protocols by which a running workflow reports and asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from jsplan.documents.drift_causes import FAILING_CAUSES
from jsplan.planning.options import PlanningOptions
from jsplan.units import SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.apply import ApplyEvent
    from jsplan.documents.plan import Plan


@dataclass(frozen=True, slots=True)
class PlanOptions(PlanningOptions):
    """Options of `plan`, `apply` and `destroy`.

    `lock_timeout` is ns. `backup` is a folder: streams are backed up below it before their messages
    are deleted. `server_version` is the release to rehearse on, None for those of the real servers.
    `waves` are the terms of `--wave`; in one wave `max_failures` domains may fail.
    `moves` are the streams that a cluster moves or scales at once, per domain; without `follow` a
    step does not wait for that. `deferred` applies the rest of a saved plan.
    """

    parallelism: int = 10
    moves: int = 2
    follow: bool = True
    lock_timeout: int = 10 * SECOND
    rehearse: bool = False
    server_version: str | None = None
    backup: Path | None = None
    waves: tuple[str, ...] = ()
    max_failures: int = 0
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class DriftOptions:
    """Options of one drift check.

    `fail_on` are among `CAUSES`. Without `replication` no flow is checked.
    """

    targets: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    parallelism: int = 10
    fail_on: frozenset[str] = frozenset(FAILING_CAUSES)
    replication: bool = True


class Observer(Protocol):
    """Progress of a workflow. Each method may be called at any time in the event loop's thread."""

    def phase(self, text: str) -> None:
        """Report that a phase begins, such as "Reading 2 domains"."""

    def event(self, event: ApplyEvent) -> None:
        """Report a started or finished step of an apply, or the progress of a copy."""

    def warn(self, text: str) -> None:
        """Report a warning, such as waiting for a lock."""


class NullObserver:
    """An observer that ignores progress."""

    def phase(self, text: str) -> None:
        """Ignore it."""

    def event(self, event: ApplyEvent) -> None:
        """Ignore it."""

    def warn(self, text: str) -> None:
        """Ignore it."""


class Approve(Protocol):
    """Shows a plan and asks the user. Raises NotApprovedError without a yes."""

    def __call__(self, plan: Plan) -> None:
        """Return when the plan may be applied."""
