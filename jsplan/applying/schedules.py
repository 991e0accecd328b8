"""Writes of message schedules, each only over the message that was just read."""

from __future__ import annotations

from jsplan.applying.kv_entries import content_of, publish_value, require_planned_value
from jsplan.applying.step_context import StepContext
from jsplan.documents.plan import Step
from jsplan.resources.message_schedule import EXPECTED_STREAM, build_headers, other_headers


async def write_schedule(context: StepContext, step: Step) -> None:
    """Put a schedule, if its subject is still as planned. Raises StepFailed.

    Headers that another client gave it stay: the server copies them to what it publishes.
    """
    live = await context.read(step.target_address)
    kept = other_headers(live.state["headers"]) if live is not None else {}
    stream = {EXPECTED_STREAM: step.target_address.stream}
    headers = kept | build_headers(step.expect or {}) | stream
    await publish_value(context, step, content_of(context, step), headers, plainly=True)


async def delete_schedule(context: StepContext, step: Step) -> None:
    """Purge a schedule up to the revision that was just read, so that a newer one stays.

    Raises StepFailed.
    """
    live = await context.check_precondition(step)
    require_planned_value(step, live)
    assert live is not None
    await context.begin(step)
    payload = {"filter": step.target_address.key, "seq": live.state["revision"] + 1}
    verb = f"STREAM.PURGE.{step.target_address.stream}"
    await context.write(
        step, lambda timeout: context.api(step).request(verb, payload, timeout=timeout)
    )
    await context.verify_write(step)
