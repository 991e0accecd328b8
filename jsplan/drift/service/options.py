"""Options of the drift job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from jsplan.units import SECOND

if TYPE_CHECKING:
    from jsplan.drift.service.schedule import Schedule


class WatchOptions(Struct, frozen=True):
    """Options of the drift job. `schedule` is that of full checks; `notify` are alert kinds.

    `grace` is ns that a domain, or the whole check, may fail before an alert. `metrics` is
    HOST:PORT.
    """

    schedule: Schedule
    notify: frozenset[str]
    grace: int = 30 * SECOND
    metrics: str | None = None
