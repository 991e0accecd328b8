"""A consumer of a relocated stream: created at the position of the one that it continues."""

from __future__ import annotations

from jsplan.address import Address
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.transfer.consumers import Placement, place_consumers
from jsplan.applying.transfer.cutover import require_activated
from jsplan.applying.transfer.finished import delete_finished
from jsplan.applying.transfer.hold import Recorded, hold
from jsplan.applying.transfer.record import (
    params,
    read_copy,
    read_origin,
    require_not_stopped,
    require_record,
    update_record,
    wait_until_ready,
)
from jsplan.documents.plan import Step
from jsplan.facts.live import LiveObject
from jsplan.planning.pauses import is_held


async def relocate_consumer(context: StepContext, step: Step) -> None:
    """Run `transfer.consumer`: hold the old consumer, and place the new one.

    The old one is not read again once the new one may have delivered something. A work queue loses
    what workers have finished until now. Without an origin only a recorded position counts. Raises
    as `place_consumers` does.
    """
    require_not_stopped(context)
    record, old = require_record(context, step), Address.parse(params(step)["continues"])
    stream = await read_copy(context, step, record)
    await require_activated(context, step, stream)
    found = await context.read(step.target_address)
    _require_unfinished(context, step, found)
    if "origin_lost" not in params(step):
        if found is None or old.consumer not in record.get("consumers", {}):
            await _hold_old(context, step, old)
        await delete_finished(context, step)
    before = require_record(context, step).get("consumers", {}).get(old.consumer)
    if before is None:
        raise StepFailed(
            f"{old} was deleted by another client before its position was read; "
            f"{step.target_address} was not created. The next plan says where it starts"
        )
    assert step.request is not None
    config = step.request["payload"]["config"]
    placement = Placement(step.target_address, before, config, stream, step)
    await place_consumers(context, step, [placement])


def _require_unfinished(context: StepContext, step: Step, found: LiveObject | None) -> None:
    """Raise StepFailed for a consumer at the new address that is neither ours nor half created."""
    entry = context.state.resources.get(step.target_address)
    if found is None or (entry is not None and entry.created == found.created):
        return
    if not is_held(found.raw):
        raise StepFailed(
            f"{found.address} was created by another client during the apply; nothing was written"
        )


async def _hold_old(context: StepContext, step: Step, address: Address) -> None:
    """Hold a consumer of the origin, if it exists."""
    await read_origin(context, step, require_record(context, step))
    old = await wait_until_ready(context, address)
    if old is None:
        return

    def known() -> dict[str, Recorded]:
        """Return the recorded consumers; other steps add theirs meanwhile."""
        found: dict[str, Recorded] = require_record(context, step).get("consumers", {})
        return found

    async def save(found: dict[str, Recorded]) -> None:
        new = {name: {**one, "target": str(step.target_address)} for name, one in found.items()}
        await update_record(context, step, consumers=known() | new)

    async def read() -> list[LiveObject]:
        return [await wait_until_ready(context, address) or old]

    await hold(context, step, [old], known(), save, read)
