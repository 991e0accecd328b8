"""What a caller may ask of a backfill."""

from __future__ import annotations

from dataclasses import dataclass

from jsplan.backfill.windows import SYSTEM_CLOCK, Clock
from jsplan.units import SECOND


@dataclass(frozen=True, slots=True)
class BackfillOptions:
    """`name` is an entry; or `origin` and `target` are addresses of streams, without an entry.

    `reset_range` pins the range again, `fail_on_gap` makes a gap exit code 2; `allow_hazards` as in `apply`; `lock_timeout` is ns;
    `master` is Spark's (None: `local[*]`), `clock` what an entry's window goes by. `include_skipped`: also what was
    declined when it was planned.
    """

    name: str | None = None
    origin: str | None = None
    target: str | None = None
    reset_range: bool = False
    fail_on_gap: bool = False
    allow_hazards: tuple[str, ...] = ()
    lock_timeout: int = 10 * SECOND
    master: str | None = None
    clock: Clock = SYSTEM_CLOCK
    include_skipped: bool = True


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """`name`, `origin`, `target` and `master` as in `BackfillOptions`; `listed` is how many differences of each origin are named."""

    name: str | None = None
    origin: str | None = None
    target: str | None = None
    listed: int = 20
    master: str | None = None
