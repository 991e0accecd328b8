"""Reset of a consumer in place, by CONSUMER.RESET of nats-server 2.14.

It is paused first, as for a replacement (`consumer_replacement`), with the pause in state that
identifies it. So nothing is delivered between the request and the record of its word, and a request
that is repeated after a kill changes nothing:

1. `replacements` in state: `created`, its own pause, the pause that holds it, the word;
2. the pause, the position as of now, the reset;
3. the word in the entry of the consumer;
4. its own pause again; the record is removed.
"""

from __future__ import annotations

from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.transfer.replaced_consumer import ConsumerReplacement
from jsplan.applying.transfer.wake import resume_consumers
from jsplan.documents.plan import Step
from jsplan.errors import JsplanError
from jsplan.facts.live import LiveObject
from jsplan.planning.pauses import PAUSE


async def reset_consumer(context: StepContext, step: Step) -> None:
    """Run `consumer.reset`. Raises StepFailed, StepNotStarted, ApiError and StateError."""
    live = await context.check_precondition(step)
    if live is None:
        raise StepFailed(f"{step.target_address} is gone; nothing was written")
    await context.begin(step, live)
    params, address = step.params or {}, step.target_address
    begun = context.state.replacements.get(params["state_address"])
    held = ConsumerReplacement(context, step, dict(begun or {}))
    _, position = await held.hold(live)
    try:
        answer = await context.send(
            step, f"CONSUMER.RESET.{address.stream}.{address.consumer}", {"seq": position}
        )
        now = await context.read(address)
        if now is None or now.created != live.created:
            raise StepFailed(f"{address} was deleted by another client during the apply")
    except JsplanError:
        await held.resume_old()
        raise
    own = held.record.get(PAUSE)
    await context.save_entry(step, _with_pause(now, own))
    await resume_consumers(context, step, {address: own})
    await context.record({"replaced": params["state_address"]})
    resumed = await context.read(address)
    if resumed is not None:
        context.note_result(step, resumed)
    if int(answer.get("reset_seq") or position) != position:
        raise StepFailed(f"{address} was set to sequence {answer['reset_seq']}, and not {position}")


def _with_pause(live: LiveObject, own: str | None) -> LiveObject:
    """Return the consumer with its own pause in place of the one that holds it."""
    config = {name: value for name, value in live.raw.items() if name != PAUSE}
    return live.with_raw(config | ({PAUSE: own} if own else {}))
