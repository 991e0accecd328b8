"""Tries what a stream is to become on one without messages, before the old stream is touched.

A server refuses for reasons that no plan can know: what is left of its memory and disk, where a cluster finds room, what a later
version demands. Up to here such an answer costs nothing.
"""

from __future__ import annotations

from jsplan.address import Address
from jsplan.applying.preserve.journal import (
    ReplacementRecord,
    delete_stream,
    params,
    require_not_stopped,
    require_ours,
    wait_until_ready,
)
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.documents.plan import Step
from jsplan.errors import ServerRefusedError


async def probe(work: StepContext, step: Step) -> None:
    """Make the probe as the new stream is made, give it what that is given last, and delete it. Raises StepFailed."""
    address, begins = Address.parse(step.address), params(step)["replacement"]
    old = await work.read(address)
    require_not_stopped(work)
    if old is None or old.created != begins["old"]["created"]:
        raise StepFailed(
            f"{address} was changed by somebody else since it was planned; nothing was written"
        )
    if work.state.replacements.get(params(step)["state_address"], {}).get("id") != begins["id"]:
        # Once: later it could be taken for the stand-in, which servers before 2.15 restore with the time of its own creation.
        known = {
            "address": params(step)["state_address"],
            "phase": "started",
            "allowed": _allowed_hazards(work, step),
        }
        await work.record(*work.seen_lines(step, old), {"replacing": known | begins})
    assert step.request is not None
    await delete_probe(work, step, step.target_address, begins)
    try:
        await work.send(
            step, f"STREAM.CREATE.{step.target_address.stream}", params(step)["initial_config"]
        )
        if await wait_until_ready(work, step.target_address) is None:
            raise StepFailed(
                f"{step.target_address} is gone again: somebody else deleted it at the same moment"
            )
        await work.send(step, step.request["api"], step.request["payload"])
    except ServerRefusedError as error:
        raise StepFailed(
            f"the server refuses what {address} is to become: {error.description} ({error.code}/{error.err_code})"
        ) from None
    await delete_probe(work, step, step.target_address, begins)


def _allowed_hazards(work: StepContext, step: Step) -> dict[str, int]:
    """The hazards of the replacement, all allowed by now, with their messages: what finishes it needs no permission a second time."""
    found = (
        change.hazards for change in work.plan.resource_changes if change.address == step.address
    )
    return {hazard.code: hazard.messages or 0 for hazards in found for hazard in hazards}


async def delete_probe(
    work: StepContext, step: Step, address: Address, record: ReplacementRecord
) -> None:
    """Delete the probe, if there is one."""
    found = await work.read(address)
    if found is not None:
        require_ours(found, record)
        await delete_stream(work, step, f"STREAM.DELETE.{address.stream}")
