"""The options of backfill commands, and the command that runs an entry."""

from __future__ import annotations

import shlex

from msgspec import Struct

from jsplan.planning.backfill.model import Deadline
from jsplan.units import SECOND


class EntryOptions(Struct, frozen=True):
    """The entry `name`, or the addresses `origin` and `target`.

    `master` is that of Spark (None: `local[*]`).
    """

    name: str | None = None
    origin: str | None = None
    target: str | None = None
    master: str | None = None


class BackfillOptions(EntryOptions, frozen=True):
    """The options of a run.

    `reset_range` pins the range again. `fail_on_gap` makes a gap exit code 2. `allow_hazards` is as
    in `apply`. `lock_timeout` is in ns. Nothing is copied after `until`.
    """

    reset_range: bool = False
    fail_on_gap: bool = False
    allow_hazards: tuple[str, ...] = ()
    lock_timeout: int = 10 * SECOND
    until: Deadline | None = None


class VerifyOptions(EntryOptions, frozen=True):
    """The options of a verification; `listed` is the number of differences shown per origin."""

    listed: int = 20


def format_run_command(name: str) -> str:
    """Return the command that runs an entry, by name or by two addresses."""
    origin, arrow, target = name.partition(">")
    sides = (
        f"--from {shlex.quote(origin)} --to {shlex.quote(target)}" if arrow else shlex.quote(name)
    )
    return f"jsplan backfill run {sides}"
