"""The record of a stream replacement in state, from which a later process resumes it.

`{address, id, staging, method, old: {config, created}, consumers, phase, new_created, made_seen}`:
`phase` is the last completed phase (`PHASES`), `new_created` the `created` of the new stream,
`made_seen` the server's time then, `consumers` the configuration and the position of each.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any, Final

from jsplan.address import Address
from jsplan.applying.step_context import StepContext, StepFailed, StepNotStarted
from jsplan.documents.plan import Step
from jsplan.errors import ServerRefusedError, StateError
from jsplan.facts.live import LiveObject
from jsplan.planning.preserve.staging import belongs_to_replacement

ReplacementRecord = dict[str, Any]
#: Seconds for a cluster to set up what it created.
READY_TIMEOUT: Final = 60.0


def params(step: Step) -> dict[str, Any]:
    """Return the step's parameters beside the request."""
    return step.params or {}


def require_record(context: StepContext, step: Step) -> ReplacementRecord:
    """Return the record of the replacement that the step is a part of."""
    record = context.state.replacements.get(params(step)["state_address"])
    if record is None:
        raise StepFailed("state has no record of this replacement; plan again")
    return record


async def update_record(
    context: StepContext, step: Step, *, durable: bool = True, **changes: Any
) -> ReplacementRecord:
    """Update the record. Raises StateError.

    `durable`: wait for the disk. Without it the loss of the change only repeats work.
    """
    record = context.state.replacements.get(params(step)["state_address"], {}) | changes
    await context.record({"replacing": record}, durable=durable)
    return record


def require_not_stopped(context: StepContext) -> None:
    """Raise StepNotStarted after Ctrl-C. Between two requests the record suffices to resume."""
    if context.stop.is_set():
        raise StepNotStarted


def require_lock(context: StepContext, seconds: float) -> None:
    """Raise StateError where the lock may be lost within `seconds`, the time of a write."""
    try:
        context.backend.may_write(seconds)
    except StateError as error:
        context.state_failure = error
        raise


class ProgressWatch:
    """A watch over a copy by the server: it says when nothing has moved for `timeout` seconds."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._before: object = None
        self._since = time.monotonic()

    def has_stalled(self, progress: object) -> bool:
        """Return True if `progress` is what it was `timeout` seconds ago."""
        if progress != self._before:
            self._before, self._since = progress, time.monotonic()
        return time.monotonic() - self._since > self.timeout


async def wait_until_ready(context: StepContext, address: Address) -> LiveObject | None:
    """Wait until a cluster has elected the object's leader and has all replicas.

    Returns None where the object does not exist. A single server is ready at once. Raises
    StepFailed after `READY_TIMEOUT` seconds, StepNotStarted after Ctrl-C.
    """
    end = time.monotonic() + READY_TIMEOUT
    while (live := await context.read(address)) is not None and live.is_clustered:
        if live.is_stable if address.kind != "consumer" else live.server.get("leader"):
            break
        require_not_stopped(context)
        if time.monotonic() > end:
            raise StepFailed(
                f"{address} lacks a leader or replicas after {READY_TIMEOUT:.0f}s; "
                "the next plan continues from there"
            )
        await asyncio.sleep(0.1)
    return live


def require_ours(live: LiveObject, record: ReplacementRecord) -> None:
    """Raise StepFailed for an object that this replacement did not create."""
    if not belongs_to_replacement(live.raw, record["id"]):
        raise StepFailed(f"{live.address} was created by another client; nothing was written")


async def delete_end_marker(
    context: StepContext, step: Step, record: ReplacementRecord, stream: Address
) -> None:
    """Delete the end marker of a stream, where it exists and the stream allows deleting."""
    if record.get("end_marker"):
        with suppress(ServerRefusedError):
            await context.send(
                step, f"STREAM.MSG.DELETE.{stream.stream}", {"seq": record["end_marker"]}
            )
