"""What state has of a stream's replacement: the only thing from which it can go on when the process dies.

`{address, id, staging, method, old: {config, created}, consumers, phase, new_created}`: `phase` is the last part that is done (`PHASES`),
`new_created` the `created` of the new stream, `consumers` the configuration and the position that each had.
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
from jsplan.jetstream.api import STREAM_NOT_FOUND
from jsplan.planning.preserve.staging import belongs_to_replacement

ReplacementRecord = dict[str, Any]
#: Seconds for a cluster to put up what it was told to make.
READY_TIMEOUT: Final = 60.0


def params(step: Step) -> dict[str, Any]:
    """What the plan says besides the request."""
    return step.params or {}


def require_record(work: StepContext, step: Step) -> ReplacementRecord:
    """What state has of the replacement that the step is a part of."""
    found = work.state.replacements.get(params(step)["state_address"])
    if found is None:
        raise StepFailed("state knows nothing of this replacement; plan again")
    return found


async def update_record(work: StepContext, step: Step, **more: Any) -> ReplacementRecord:
    """Add to the record, on the disk. Raises StateError."""
    record = work.state.replacements.get(params(step)["state_address"], {}) | more
    await work.record({"replacing": record})
    return record


def require_not_stopped(work: StepContext) -> None:
    """Raise NotBegun after Ctrl-C: between two requests the record says all that is needed to go on later."""
    if work.stop.is_set():
        raise StepNotStarted


def require_lock(work: StepContext, seconds: float) -> None:
    """Raise StateError where the lock may be lost before a write that takes so long is over."""
    try:
        work.backend.may_write(seconds)
    except StateError as error:
        work.state_failure = error
        raise


async def delete_stream(work: StepContext, step: Step, verb: str) -> None:
    """Send the deletion of a stream. One that is gone already is none to delete: an answer may have been lost."""
    try:
        await work.send(step, verb)
    except ServerRefusedError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise


async def wait_until_ready(work: StepContext, address: Address) -> LiveObject | None:
    """The object once a cluster that has just made it has a leader for it and all its copies; None where there is none.

    A server alone is ready at once. Raises StepFailed after `READY_TIMEOUT` seconds, NotBegun after Ctrl-C.
    """
    end = time.monotonic() + READY_TIMEOUT
    while (live := await work.read(address)) is not None and live.is_clustered:
        if live.is_stable if address.kind != "consumer" else live.server.get("leader"):
            break
        require_not_stopped(work)
        if time.monotonic() > end:
            raise StepFailed(
                f"{address} has no leader, or not all its copies, after {READY_TIMEOUT:.0f}s; the next plan goes on from there"
            )
        await asyncio.sleep(0.1)
    return live


def require_ours(live: LiveObject, record: ReplacementRecord) -> None:
    """Raise StepFailed for an object that this replacement did not make."""
    if not belongs_to_replacement(live.raw, record["id"]):
        raise StepFailed(f"{live.address} was made by somebody else; nothing was written")


async def delete_end_marker(
    work: StepContext, step: Step, record: ReplacementRecord, stream: Address
) -> None:
    """Delete the message that marked the end of a stream; it may not be there, and a stream that forbids deleting keeps it."""
    if record.get("end_marker"):
        with suppress(ServerRefusedError):
            await work.send(
                step, f"STREAM.MSG.DELETE.{stream.stream}", {"seq": record["end_marker"]}
            )
