"""The record of a transfer in state, from which a later process resumes it, and its streams.

A transfer has one hop, from the origin to the target, or two: a stream that is replaced at its own
address goes through a staging stream. Each step belongs to one hop, from `params.from` to
`params.to`. The record is `Transferred` in `documents/state_parts.py`. The progress of unfinished
transfers is as the servers show it now.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from jsplan.address import STAGING_PREFIX, Address
from jsplan.applying.step_context import StepContext, StepFailed, StepNotStarted
from jsplan.applying.step_journal import gone_error
from jsplan.documents.plan import Step
from jsplan.errors import ApiError, ServerRefusedError, StateError
from jsplan.facts.live import LiveObject
from jsplan.planning.transfer.configs import belongs_to_replacement
from jsplan.planning.transfer.progress import Transfer, determine_progress, is_transfer

#: What state has of a transfer, `Transferred` in `documents/state_parts.py`.
TransferRecord = Mapping[str, Any]
#: Seconds for a cluster to set up what it created.
READY_TIMEOUT: Final = 60.0
Read = Callable[[Address], Awaitable[LiveObject | None]]


class MessagesLost(StepFailed):
    """The server of one side lost messages that the other side has."""


class Hop(NamedTuple):
    """The two streams of a step: the one that has the messages, and the one that gets them."""

    origin: Address
    copy: Address


def params(step: Step) -> dict[str, Any]:
    """Return the step's parameters beside the request."""
    return step.params or {}


def hop_of(step: Step) -> Hop:
    """Return the streams of a step."""
    return Hop(Address.parse(params(step)["from"]), Address.parse(params(step)["to"]))


def is_staging(address: Address) -> bool:
    """Check whether a stream is the staging stream of a replacement."""
    return address.stream.startswith(STAGING_PREFIX)


def is_second(step: Step, record: TransferRecord) -> bool:
    """Check whether a step belongs to the second hop: out of the staging stream."""
    return "staging" in record and is_staging(hop_of(step).origin)


def is_relocation(record: TransferRecord) -> bool:
    """Check whether the stream gets another address, so that its origin stays until the end."""
    return bool(record["origin"] != record["address"])


def is_workqueue(record: TransferRecord) -> bool:
    """Check whether the transferred stream is a work queue."""
    return bool(record["old"]["config"].get("retention") == "workqueue")


def is_drained(step: Step, record: TransferRecord) -> bool:
    """Check whether the hop consumes the messages: the mirror of a work queue does so."""
    is_first = not is_second(step, record)
    return is_first and is_workqueue(record) and bool(record["method"] == "drain")


def at(step: Step, address: Address) -> Step:
    """Return the step as one that is sent to the domain of the address."""
    return replace(step, object=str(address))


# --- the record ----------------------------------------------------------------------------------


def require_record(context: StepContext, step: Step) -> TransferRecord:
    """Return the record of the transfer that the step is a part of."""
    if (record := find_record(context, step)) is None:
        raise StepFailed("state has no record of this transfer; plan again")
    return record


def find_record(context: StepContext, step: Step) -> TransferRecord | None:
    """Return what state has under `replacements` for the step, if anything."""
    return context.state.replacements.get(params(step)["state_address"])


async def update_record(
    context: StepContext, step: Step, *, durable: bool = True, **changes: Any
) -> TransferRecord:
    """Update the record. Raises StateError.

    `durable`: wait for the disk. Without it the loss of the change only repeats work.
    """
    record = {**(find_record(context, step) or {}), **changes}
    await context.record({"replacing": record}, durable=durable)
    return record


async def record_start(context: StepContext, step: Step) -> None:
    """Record the transfer once, before anything is created, if this is its first step.

    An earlier apply may have begun it days ago. What is restored is the origin of today.
    """
    begun = params(step).get("transfer")
    if begun is None:
        return
    address = params(step)["state_address"]
    known = context.state.replacements.get(address, {})
    allowed = known.get("allowed", {}) | _allowed_hazards(context, step)
    if known.get("id") == begun["id"]:
        await update_record(context, step, old=begun["old"], allowed=allowed)
        return
    start = {"address": address, "phase": "started", "allowed": allowed}
    await context.record({"replacing": start | begun})


def _allowed_hazards(context: StepContext, step: Step) -> dict[str, int]:
    """Return the allowed hazards with their messages; a resumed apply needs no permission."""
    sides = (step.address, *map(str, hop_of(step)))
    found = (c.hazards for c in context.plan.resource_changes if c.address in sides)
    return {hazard.code: hazard.messages or 0 for hazards in found for hazard in hazards}


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


# --- the streams ---------------------------------------------------------------------------------


async def read_origin(context: StepContext, step: Step, record: TransferRecord) -> LiveObject:
    """Read the origin of the hop. Raises StepFailed where it is gone or was recreated."""
    address = hop_of(step).origin
    if is_staging(address):
        staging = await context.require(address)
        require_ours(staging, record)
        return staging
    live = await context.read(address)
    if live is None or live.created != record["old"]["created"]:
        raise StepFailed(f"{address} was deleted or recreated by another client during the apply")
    return live


async def read_copy(context: StepContext, step: Step, record: TransferRecord) -> LiveObject:
    """Read the copy of the hop. Raises StepFailed where it is gone or was recreated."""
    address = hop_of(step).copy
    live = await context.require(address)
    known = record.get("target_created")
    if is_staging(address):
        require_ours(live, record)
    elif known is not None and live.created != known:
        raise StepFailed(f"{address} was recreated by another client during the apply")
    return live


def require_ours(live: LiveObject, record: TransferRecord) -> None:
    """Raise StepFailed for an object that this transfer did not create."""
    if not belongs_to_replacement(live.raw, record["id"]):
        raise StepFailed(f"{live.address} was created by another client; nothing was written")


def require_complete(origin: LiveObject, copy: LiveObject) -> None:
    """Raise StepFailed where the copy has newer messages, so that the origin has lost its own.

    The last sequence of a stream never falls. The copy must have been read before the origin.
    """
    ours, theirs = (int(side.state.get("last_seq") or 0) for side in (copy, origin))
    if ours > theirs:
        raise MessagesLost(
            f"{origin.address} ends at sequence {theirs:,}, and its copy {copy.address} at "
            f"{ours:,}: the server of {origin.address} lost messages. Nothing was deleted. Look at "
            f"both; to end the transfer and keep both: jsplan state rm {copy.address}"
        )


async def delete_copy(
    context: StepContext, step: Step, record: TransferRecord, *, keep_mirror: bool
) -> None:
    """Delete the copy of the hop, unless (`keep_mirror`) it is a mirror that follows it.

    Raises StepFailed where it may be the only one with some messages.
    """
    copy = hop_of(step).copy
    live = await context.read(copy)
    if live is None or (keep_mirror and live.raw.get("mirror")):
        return
    require_ours(live, record)
    require_complete(await read_origin(context, step, record), live)
    await context.send_if_exists(at(step, copy), f"STREAM.DELETE.{copy.stream}")


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


async def wait_until_created(context: StepContext, address: Address) -> LiveObject:
    """Return an object that was created just now. Raises StepFailed where it is gone again."""
    live = await wait_until_ready(context, address)
    if live is None:
        raise gone_error(address, again=True)
    return live


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


async def delete_message(context: StepContext, there: Step, seq: int) -> None:
    """Delete one message of the stream of a step, where it is still there.

    It may expire meanwhile, or a worker may finish it. Raises as `StepContext.send` does.
    """
    name = there.target_address.stream
    try:
        await context.send(there, f"STREAM.MSG.DELETE.{name}", {"seq": seq})
    except ServerRefusedError:
        if await context.api(there).get_message(name, {"seq": seq}) is not None:
            raise


async def read_transfers(
    records: Iterable[Mapping[str, Any]], online: Callable[[str], bool], read: Read
) -> list[Transfer]:
    """Read the streams of all recorded transfers whose origin can be read.

    `records` are those of state. `online` says whether a domain answers. A stream whose domain
    fails meanwhile leaves its transfer out.
    """
    found = []
    for record in filter(is_transfer, records):
        known = Transfer.of_record(record)
        if not online(known.origin.domain):
            continue
        with suppress(ApiError):
            origin = await read(known.origin)
            if not online(known.target.domain):
                found.append(known.with_origin_alone(origin))
                continue
            target = await read(known.target) if known.is_relocation else origin
            staging = await read(known.staging) if known.staging is not None else None
            found.append(determine_progress(known, origin, target, staging))
    return found
