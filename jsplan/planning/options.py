"""What may be asked of a plan. Once, for whoever plans and for whoever applies; light, since the command line reads it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jsplan.facts.measurement import MEASURE_LIMIT


@dataclass(frozen=True, slots=True)
class PlanningOptions:
    """Which addresses, how, and what is permitted. `allow_hazards` are `CODE` or `CODE:ADDR` (ADDR may be a glob); `safe_below` counts
    messages, `measure_limit` the reads that one measurement may take.
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
