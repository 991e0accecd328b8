"""Options of the drift job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jsplan.units import SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.drift.service.schedule import Schedule


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Options of the drift job. `schedule` is that of full checks; `notify` are alert kinds.

    `grace` is ns that a domain, or the whole check, may fail before an alert. `metrics` is
    HOST:PORT. `metrics_file` and `report` are written whenever their content changes.
    """

    schedule: Schedule
    notify: frozenset[str]
    grace: int = 30 * SECOND
    metrics: str | None = None
    metrics_file: Path | None = None
    report: Path | None = None
