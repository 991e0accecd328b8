"""The record of a relocation in state, and the streams of both sides.

`{address, relocates, id, strategy, old: {config, created}, phase, allowed, prepared,
target_created, made_seen, compared,
compared_from, end_marker, last_seq, consumers, record, expect}`: `address` is the target and
`relocates` the origin. `compared` is the last sequence that was compared from the start on,
`compared_from` the first one that was compared during the cut-over, and `last_seq` the last one of
the quiesced origin. `record` and `expect` are those of the step that activates the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.applying.preserve.journal import (
    params,
    require_ours,
    require_record,
    update_record,
)
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.documents.plan import Step
from jsplan.facts.live import LiveObject
from jsplan.planning.preserve.staging import belongs_to_replacement
from jsplan.planning.relocation.progress import RELOCATES


class MessagesLost(StepFailed):
    """The server of one side lost messages that the other side has."""


def is_workqueue(record: Mapping[str, Any]) -> bool:
    """Check whether the relocated stream is a work queue."""
    return bool(record["old"]["config"].get("retention") == "workqueue")


def origin_address(step: Step) -> Address:
    """Return the address of the origin."""
    return Address.parse(params(step)["relocated"])


def target_address(step: Step) -> Address:
    """Return the address of the target."""
    return Address.parse(params(step)["target"])


def at(step: Step, address: Address) -> Step:
    """Return the step as one that is sent to the domain of the address."""
    return replace(step, object=str(address))


async def read_origin(context: StepContext, step: Step, record: dict[str, Any]) -> LiveObject:
    """Read the origin. Raises StepFailed where it is gone or was recreated."""
    live = await context.read(origin_address(step))
    if live is None or live.created != record["old"]["created"]:
        raise StepFailed(
            f"{origin_address(step)} was deleted or recreated by another client during the apply"
        )
    return live


def require_complete(origin: LiveObject, copy: LiveObject) -> None:
    """Raise StepFailed where the copy has newer messages, so that the origin has lost its own.

    The last sequence of a stream never falls. The copy must have been read before the origin.
    """
    ours, theirs = (int(side.state.get("last_seq") or 0) for side in (copy, origin))
    if ours > theirs:
        raise MessagesLost(
            f"{origin.address} ends at sequence {theirs:,}, and its copy {copy.address} at "
            f"{ours:,}: the server of {origin.address} lost messages. Nothing was deleted. Look at "
            f"both; to end the relocation and keep both: jsplan state rm {copy.address}"
        )


async def record_start(context: StepContext, step: Step) -> None:
    """Record the relocation once, before anything is created."""
    relocation = params(step)["relocation"]
    known = context.state.replacements.get(params(step)["state_address"], {})
    allowed = _allowed_hazards(context, step)
    if known.get("id") == relocation["id"]:
        # The copy may have been prepared days ago. What is restored is the origin of today.
        await update_record(
            context, step, old=relocation["old"], allowed=known.get("allowed", {}) | allowed
        )
        return
    start = {
        "address": params(step)["state_address"],
        RELOCATES: params(step)["relocated"],
        "phase": "started",
        "allowed": allowed,
    }
    await context.record({"replacing": start | relocation})


def _allowed_hazards(context: StepContext, step: Step) -> dict[str, int]:
    """Return the allowed hazards with their messages; a resumed apply needs no permission."""
    sides = (params(step)["relocated"], params(step)["target"])
    found = (c.hazards for c in context.plan.resource_changes if c.address in sides)
    return {hazard.code: hazard.messages or 0 for hazards in found for hazard in hazards}


async def require_activated(context: StepContext, step: Step, target: LiveObject) -> None:
    """Raise StepFailed unless the target is activated; record it where that is not recorded."""
    record = require_record(context, step)
    ours = belongs_to_replacement(target.raw, record["id"])
    if record["phase"] not in ("activating", "activated") or ours or target.raw.get("mirror"):
        raise StepFailed(f"{target.address} is not activated; nothing was written")
    if record["phase"] == "activating":
        await update_record(context, step, phase="activated")


async def delete_copy(
    context: StepContext, step: Step, record: dict[str, Any], *, keep_mirror: bool
) -> None:
    """Delete the copy, unless it still follows the origin as a mirror (`keep_mirror`).

    Raises StepFailed where it may be the only one with some messages.
    """
    target = target_address(step)
    live = await context.read(target)
    if live is None or (keep_mirror and live.raw.get("mirror")):
        return
    require_ours(live, record)
    require_complete(await read_origin(context, step, record), live)
    await context.send_if_exists(at(step, target), f"STREAM.DELETE.{target.stream}")


async def read_target(context: StepContext, step: Step, record: dict[str, Any]) -> LiveObject:
    """Read the target. Raises StepFailed where it is gone or was recreated."""
    live = await context.read(target_address(step))
    known = record.get("target_created")
    if live is None or (known is not None and live.created != known):
        raise StepFailed(
            f"{target_address(step)} was deleted or recreated by another client during the apply"
        )
    return live
