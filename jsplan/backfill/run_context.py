"""The objects that all copies of one run share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from jsplan.backfill.retry import retry_transient
from jsplan.backfill.spark_runner import SparkRunner
from jsplan.backfill.tasks.target_scan import find_capacity_problem
from jsplan.config.model import Backfill
from jsplan.diagnostics import quote_shell
from jsplan.errors import RefusedError
from jsplan.jetstream import DomainApi
from jsplan.options import Observer
from jsplan.planning.backfill.model import Deadline
from jsplan.topology import Topology

WriteGuard = Callable[[float], float]
#: The longest time of a write in seconds: the lock must last as long.
WRITE_SECONDS: Final = 30.0
#: A portion takes so long at the rate of the entry, or has so many bytes without one.
PORTION_SECONDS, PORTION_BYTES = 600, 64 << 20


class RunContext(Struct):
    """The objects that all copies of a run share.

    `entry_id` names the entry and its workspace on the servers. Copying stops at `deadline`.
    """

    entry: Backfill
    entry_id: str
    config_hash: str
    topology: Topology
    apis: dict[str, DomainApi]
    runner: SparkRunner
    observer: Observer
    may_write: WriteGuard
    is_allowed: Callable[[str, str], bool]
    deadline: Deadline | None = None

    @property
    def portion_bytes(self) -> int | None:
        """The bytes of one portion, which is lost at the deadline; None without one."""
        if self.deadline is None:
            return None
        rate = self.entry.rate
        return max(1, rate * PORTION_SECONDS) if rate else PORTION_BYTES

    def require_open(self) -> None:
        """Raise DeadlinePassedError if nothing more may be copied now."""
        if self.deadline is not None:
            self.deadline.require_open()

    async def write(self, api: DomainApi, request: Callable[[], Any]) -> Any:
        """Send a write, and check before each attempt that the lock is still held."""

        async def guarded() -> Any:
            self.may_write(WRITE_SECONDS)
            return await request()

        return await retry_transient(api, guarded)

    def require_capacity(
        self, address: str, info: dict[str, Any], messages: int, size: int
    ) -> bool:
        """Check the capacity of a target. Return True if it will delete messages of its own.

        Raises RefusedError if it cannot take these messages, or may not delete others for them.
        `info` is its STREAM.INFO, `size` is in bytes.
        """
        problem = find_capacity_problem(address, info, messages, size)
        if problem is None or (problem.deletes and self.is_allowed("DELETES_MESSAGES", address)):
            return problem is not None
        hint = "Delete messages there, or raise its limits."
        if problem.deletes:
            hint = "To allow it: --allow-hazard " + quote_shell(f"DELETES_MESSAGES:{address}")
        raise RefusedError(f"{problem.text}. Nothing was changed", hint=hint)
