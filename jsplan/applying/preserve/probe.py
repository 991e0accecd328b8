"""Test of the new configuration on an empty stream, before the old stream changes.

A server refuses for reasons that no plan knows: free memory and disk, placement in the cluster,
rules of a later version. At this point a refusal costs nothing.
"""

from __future__ import annotations

from jsplan.address import Address
from jsplan.applying.preserve.journal import (
    ReplacementRecord,
    params,
    require_not_stopped,
    require_ours,
    wait_until_ready,
)
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.documents.plan import Step
from jsplan.errors import ServerRefusedError


async def probe(context: StepContext, step: Step) -> None:
    """Create the probe like the new stream, give it the final configuration, and delete it.

    Raises StepFailed.
    """
    address, replacement = Address.parse(step.address), params(step)["replacement"]
    old = await context.read(address)
    require_not_stopped(context)
    if old is None or old.created != replacement["old"]["created"]:
        raise StepFailed(
            f"{address} was changed by another client since it was planned; nothing was written"
        )
    recorded = context.state.replacements.get(params(step)["state_address"], {})
    if recorded.get("id") != replacement["id"]:
        # Record it once, or it could be mistaken for the staging stream,
        # which servers before 2.15 restore with the time of its own creation.
        known = {
            "address": params(step)["state_address"],
            "phase": "started",
            "allowed": _allowed_hazards(context, step),
        }
        await context.record(*context.seen_lines(step, old), {"replacing": known | replacement})
    assert step.request is not None
    await delete_probe(context, step, step.target_address, replacement)
    try:
        await context.send(
            step, f"STREAM.CREATE.{step.target_address.stream}", params(step)["initial_config"]
        )
        if await wait_until_ready(context, step.target_address) is None:
            raise StepFailed(
                f"{step.target_address} is gone again: another client deleted it during the apply"
            )
        await context.send(step, step.request["api"], step.request["payload"])
    except ServerRefusedError as error:
        raise StepFailed(
            f"the server refuses the new configuration of {address}: "
            f"{error.description} ({error.code}/{error.err_code})"
        ) from None
    await delete_probe(context, step, step.target_address, replacement)


def _allowed_hazards(context: StepContext, step: Step) -> dict[str, int]:
    """Return the allowed hazards with their messages; a resumed apply needs no permission."""
    found = (
        change.hazards for change in context.plan.resource_changes if change.address == step.address
    )
    return {hazard.code: hazard.messages or 0 for hazards in found for hazard in hazards}


async def delete_probe(
    context: StepContext, step: Step, address: Address, record: ReplacementRecord
) -> None:
    """Delete the probe, if there is one."""
    found = await context.read(address)
    if found is not None:
        require_ours(found, record)
        await context.send_if_exists(step, f"STREAM.DELETE.{address.stream}")
