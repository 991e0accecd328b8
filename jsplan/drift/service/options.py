"""Options of the drift job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from jsplan.units import SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.drift.service.schedule import Schedule


class WatchOptions(Struct, frozen=True):
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
