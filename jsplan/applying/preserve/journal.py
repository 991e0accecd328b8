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
from jsplan.applying.work import NotBegun, StepFailed, Work
from jsplan.documents.plan import Step
from jsplan.errors import ServerRefusedError, StateError
from jsplan.facts.live import LiveObject
from jsplan.jetstream.api import STREAM_NOT_FOUND
from jsplan.planning.preserve.standins import marked

Record = dict[str, Any]
#: Seconds for a cluster to put up what it was told to make.
READY: Final = 60.0


def params(step: Step) -> dict[str, Any]:
    """What the plan says besides the request."""
    return step.params or {}


def record_of(work: Work, step: Step) -> Record:
    """What state has of the replacement that the step is a part of."""
    found = work.state.replacements.get(params(step)["state_address"])
    if found is None:
        raise StepFailed("state knows nothing of this replacement; plan again")
    return found


async def note(work: Work, step: Step, **more: Any) -> Record:
    """Add to the record, on the disk. Raises StateError."""
    record = work.state.replacements.get(params(step)["state_address"], {}) | more
    await work.record({"replacing": record})
    return record


def go_on(work: Work) -> None:
    """Raise NotBegun after Ctrl-C: between two requests the record says all that is needed to go on later."""
    if work.stop.is_set():
        raise NotBegun


def may_write(work: Work, seconds: float) -> None:
    """Raise StateError where the lock may be lost before a write that takes so long is over."""
    try:
        work.backend.may_write(seconds)
    except StateError as error:
        work.failure = error
        raise


async def delete_stream(work: Work, step: Step, verb: str) -> None:
    """Send the deletion of a stream. One that is gone already is none to delete: an answer may have been lost."""
    try:
        await work.send(step, verb)
    except ServerRefusedError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise


async def ready(work: Work, address: Address) -> LiveObject | None:
    """The object once a cluster that has just made it has a leader for it and all its copies; None where there is none.

    A server alone is ready at once. Raises StepFailed after `READY` seconds, NotBegun after Ctrl-C.
    """
    end = time.monotonic() + READY
    while (live := await work.read(address)) is not None and live.clustered:
        if live.settled if address.kind != "consumer" else live.server.get("leader"):
            break
        go_on(work)
        if time.monotonic() > end:
            raise StepFailed(f"{address} has no leader, or not all its copies, after {READY:.0f}s; the next plan goes on from there")
        await asyncio.sleep(0.1)
    return live


def require_ours(live: LiveObject, record: Record) -> None:
    """Raise StepFailed for an object that this replacement did not make."""
    if not marked(live.raw, record["id"]):
        raise StepFailed(f"{live.address} was made by somebody else; nothing was written")


async def take_mark_out(work: Work, step: Step, record: Record, stream: Address) -> None:
    """Delete the message that marked the end of a stream; it may not be there, and a stream that forbids deleting keeps it."""
    if record.get("end_marker"):
        with suppress(ServerRefusedError):
            await work.send(step, f"STREAM.MSG.DELETE.{stream.stream}", {"seq": record["end_marker"]})
