"""The new stream: set its subjects and limits, and delete the staging stream."""

from __future__ import annotations

from jsplan.address import Address
from jsplan.applying.preserve.journal import (
    delete_end_marker,
    params,
    require_not_stopped,
    require_ours,
    require_record,
    update_record,
)
from jsplan.applying.preserve.probe import delete_probe
from jsplan.applying.replicated_streams import resume_positions_by_scan, with_resume_positions
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.verify_write import describe_unkept, unkept_fields
from jsplan.documents.plan import Step
from jsplan.planning.preserve.staging import probe_address
from jsplan.resources.nested import origin_key
from jsplan.resources.server_features import ORIGIN_IDENTITY_LEVEL


async def activate(context: StepContext, step: Step) -> None:
    """Set the stream's own configuration: subjects, limits, retention. Record the result."""
    before, record = await context.check_precondition(step), require_record(context, step)
    require_not_stopped(context)
    assert step.request is not None
    if starts := await _read_source_starts(context, step):
        step = with_resume_positions(step, starts)
    assert step.request is not None
    if before is not None and before.created == record["old"]["created"]:
        await delete_end_marker(context, step, record, step.target_address)
    await context.send(step, step.request["api"], step.request["payload"])
    live = await context.read(step.target_address)
    if live is None:
        raise StepFailed(
            f"{step.target_address} is gone: another client deleted it during the apply"
        )
    context.note_result(step, live)
    lost = unkept_fields(step, live)
    await context.save_entry(step, live, lost)
    if lost:
        raise StepFailed(
            f"{step.target_address}: the server did not keep {describe_unkept(step, live, lost)}"
        )
    await update_record(context, step, phase="activated")


async def _read_source_starts(context: StepContext, step: Step) -> dict[str, int]:
    """Return the starts of sources that the messages of the stream do not show.

    Their origin was recreated, so that old messages name another one, or the stream has deleted
    their newest message. Without a start nats-server 2.15 would copy those again (measured).
    """
    assert step.request is not None
    record = require_record(context, step)
    if int(params(step)["api_level"]) < ORIGIN_IDENTITY_LEVEL:
        return {}
    entry = context.state.resources.get(Address.parse(params(step)["state_address"]))
    before = entry.starts if entry is not None else {}
    copied: dict[str, int] = record.get("copied", {})
    known = {key: max(before.get(key, 0), copied.get(key, 0)) for key in (*before, *copied)}
    sources = [s for s in step.request["payload"].get("sources") or () if origin_key(s) in known]
    found = await resume_positions_by_scan(context, step, sources)
    return {
        key: max(found.get(key, 0), known[key])
        for key in map(origin_key, sources)
        if key in before or found.get(key, 0) < known[key]
    }


async def delete_staging(context: StepContext, step: Step) -> None:
    """Delete the staging stream, a probe that an earlier apply left, and the record."""
    require_not_stopped(context)
    record = context.state.replacements.get(params(step)["state_address"])
    if record is None:
        return
    found = await context.read(step.target_address)
    if found is not None:
        require_ours(found, record)
        assert step.request is not None
        await context.send_if_exists(step, step.request["api"])
    await delete_probe(context, step, probe_address(step.target_address), record)
    await context.record({"replaced": params(step)["state_address"], "end": step.address})
