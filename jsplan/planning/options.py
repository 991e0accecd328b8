"""The options of a plan, shared by planning, apply and the command line. Imports little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jsplan.facts.measurement import MEASURE_LIMIT


@dataclass(frozen=True, slots=True)
class PlanningOptions:
    """The addresses, the mode and the permissions of a plan.

    `allow_hazards` are `CODE` or `CODE:ADDR`, where ADDR may be a glob. `safe_below` counts
    messages. `measure_limit` is the most reads of one measurement. `stage` plans relocations only,
    and of these only the copy (`prepare`), or the rest of prepared ones (`cutover`).
    """

    targets: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    replace: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    reinstalled: tuple[str, ...] = ()
    refresh_only: bool = False
    destroy: bool = False
    allow_hazards: tuple[str, ...] = ()
    safe_below: int = 0
    measure_limit: int = MEASURE_LIMIT
    adopt: bool = False
    offline: Literal["defer", "fail"] = "defer"
    backfill: bool = True
    stage: Literal["prepare", "cutover"] | None = None
