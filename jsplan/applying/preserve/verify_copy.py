"""Verification of a copy before the old stream is deleted: counts, sequences and both ends."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from jsplan.address import Address
from jsplan.applying.preserve.journal import (
    params,
    require_not_stopped,
    require_ours,
    require_record,
    update_record,
)
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.documents.plan import Step
from jsplan.errors import ServerRefusedError
from jsplan.facts.live import LiveObject
from jsplan.jetstream.api import message_headers
from jsplan.resources.fields import Config

#: Seconds for counts to settle: expired messages disappear at different moments in each stream.
COUNT_TIMEOUT: Final = 10.0


async def verify_copy(context: StepContext, step: Step) -> None:
    """Verify that the step's stream is a complete copy and record it.

    Raises StepFailed with what is missing.
    """
    record, other = require_record(context, step), Address.parse(params(step)["from"])
    end = time.monotonic() + COUNT_TIMEOUT
    while True:
        require_not_stopped(context)
        origin, live = await context.read(other), await context.read(step.target_address)
        for address, found in ((other, origin), (step.target_address, live)):
            if found is None:
                raise StepFailed(f"{address} is gone: another client deleted it during the apply")
        assert origin is not None
        assert live is not None
        require_ours(live, record)
        missing = copy_differences(
            origin.state, live.state, record, params(step)
        ) or await _compare_ends(context, step, origin, live)
        if not missing:
            break
        if time.monotonic() > end:
            remedy = (
                "the old stream is untouched"
                if not params(step)["into_new"]
                else f"its messages are in {other}"
            )
            raise StepFailed(f"{step.target_address} is not equal to {other}: {missing}; {remedy}")
        await asyncio.sleep(0.1)
    if (excess := await context.deletion_check.describe_excess(step, live)) is not None:
        raise StepFailed(f"the new {step.address} {excess}")
    await update_record(
        context, step, phase="recompared" if params(step)["into_new"] else "compared"
    )


def copy_differences(
    origin: Config, copy: Config, record: dict[str, Any], params: dict[str, Any]
) -> str:
    """Describe what a copy lacks; empty where it is complete. Both are the `state` of INFO.

    Where messages leave the old stream without us (they expire, a worker acknowledges them) the
    copy may have more, but none that was not there when it was quiesced.
    """
    expected, copied = int(origin.get("messages") or 0), int(copy.get("messages") or 0)
    if params["into_new"] and record.get("end_marker") and params["method"] == "mirror":
        expected -= 1  # the end marker was deleted again
    most = (
        int(record.get("quiesced_state", {}).get("messages") or 0)
        + (1 if record.get("end_marker") else 0)
        if params["may_shrink"]
        else expected
    )
    if params.get("may_grow"):
        most = copied
    if not expected <= copied <= max(most, expected):
        return f"it has {copied:,} messages, not {expected:,}"
    if int(copy.get("last_seq") or 0) != int(origin.get("last_seq") or 0) and not params.get(
        "may_grow"
    ):
        return f"it ends with sequence {copy.get('last_seq'):,}, not {origin.get('last_seq'):,}"
    if (
        copied == expected
        and int(copy.get("first_seq") or 0) != int(origin.get("first_seq") or 0)
        and copied
    ):
        return f"it begins with sequence {copy.get('first_seq'):,}, not {origin.get('first_seq'):,}"
    return ""


async def _compare_ends(
    context: StepContext, step: Step, origin: LiveObject, copy: LiveObject
) -> str:
    """Compare the first and the last message of the copy with those of the other stream."""
    if (
        not origin.state.get("messages")
        or not copy.state.get("messages")
        or params(step)["may_shrink"]
        or params(step).get("may_grow")
    ):
        return ""
    for name in ("first_seq", "last_seq"):
        theirs = await _read_message(context, step, origin, int(origin.state[name]))
        ours = await _read_message(context, step, copy, int(copy.state[name]))
        if theirs is None or ours is None:
            continue
        fields = ("subject", "data", "hdrs", "time", "seq")
        if any(_comparable(theirs, field) != _comparable(ours, field) for field in fields):
            return f"its {name.removesuffix('_seq')} message differs"
    return ""


def _comparable(message: Config, field: str) -> Any:
    """Return a field of a message without the conditions of its publish.

    Servers before 2.15 remove these headers from what a mirror copies (measured on 2.12 and 2.14).
    """
    value = message.get(field)
    if field != "hdrs" or not value:
        return value
    lines = message_headers(message).split(b"\r\n")
    kept = [line for line in lines[1:] if line and not line.startswith(b"Nats-Expected-")]
    return kept or None


async def _read_message(
    context: StepContext, step: Step, stream: LiveObject, seq: int
) -> Config | None:
    try:
        return await context.api(step).get_message(stream.address.stream, {"seq": seq})
    except ServerRefusedError:
        return None  # an expired message, or sequence 0 of an empty stream
