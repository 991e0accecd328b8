"""Whether a copy has everything: by count, first and last sequence, gaps, and a look at its ends. Nothing goes before it has."""

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
from jsplan.resources.fields import Config

#: Seconds in which counts may still settle: messages whose time is over go at different moments in different streams.
COUNT_TIMEOUT: Final = 10.0


async def verify_copy(work: StepContext, step: Step) -> None:
    """Prove that the step's stream has what the other one has, and write it down. Raises StepFailed that says what is missing."""
    record, other, end = (
        require_record(work, step),
        Address.parse(params(step)["from"]),
        time.monotonic() + COUNT_TIMEOUT,
    )
    while True:
        require_not_stopped(work)
        origin, live = await work.read(other), await work.read(step.target_address)
        for address, found in ((other, origin), (step.target_address, live)):
            if found is None:
                raise StepFailed(f"{address} is gone: somebody else deleted it at the same moment")
        assert origin is not None
        assert live is not None
        require_ours(live, record)
        missing = copy_differences(
            origin.state, live.state, record, params(step)
        ) or await _compare_ends(work, step, origin, live)
        if not missing:
            break
        if time.monotonic() > end:
            kept = (
                "the old one is untouched"
                if not params(step)["into_new"]
                else f"its messages are in {other}"
            )
            raise StepFailed(f"{step.target_address} is not equal to {other}: {missing}; {kept}")
        await asyncio.sleep(0.1)
    if (more := await work.deletion_check.describe_excess(step, live)) is not None:
        raise StepFailed(f"the new {step.address} {more}")
    await update_record(work, step, phase="recompared" if params(step)["into_new"] else "compared")


def copy_differences(
    origin: Config, copy: Config, record: dict[str, Any], params: dict[str, Any]
) -> str:
    """What a copy lacks, in words; empty where it lacks nothing. Both are the `state` of INFO.

    Where messages leave the old stream without us (their own time is over, a worker acknowledges them) the copy may have more,
    but none that was not there when it was stopped.
    """
    there, got = int(origin.get("messages") or 0), int(copy.get("messages") or 0)
    if params["into_new"] and record.get("end_marker") and params["method"] == "mirror":
        there -= 1  # the mark was taken out again
    most = (
        int(record.get("quiesced_state", {}).get("messages") or 0)
        + (1 if record.get("end_marker") else 0)
        if params["may_shrink"]
        else there
    )
    if params.get("may_grow"):
        most = got
    if not there <= got <= max(most, there):
        return f"it has {got:,} messages, not {there:,}"
    if params["method"] == "source":
        return ""
    if int(copy.get("last_seq") or 0) != int(origin.get("last_seq") or 0) and not params.get(
        "may_grow"
    ):
        return f"it ends with sequence {copy.get('last_seq'):,}, not {origin.get('last_seq'):,}"
    if (
        got == there
        and int(copy.get("first_seq") or 0) != int(origin.get("first_seq") or 0)
        and got
    ):
        return f"it begins with sequence {copy.get('first_seq'):,}, not {origin.get('first_seq'):,}"
    return ""


async def _compare_ends(work: StepContext, step: Step, origin: LiveObject, copy: LiveObject) -> str:
    """The first and the last message of the copy, against the same in the other stream."""
    if (
        not origin.state.get("messages")
        or not copy.state.get("messages")
        or params(step)["may_shrink"]
        or params(step).get("may_grow")
    ):
        return ""
    for name in ("first_seq", "last_seq"):
        theirs = await _read_message(work, step, origin, int(origin.state[name]))
        ours = await _read_message(work, step, copy, int(copy.state[name]))
        if theirs is None or ours is None:
            continue
        fields = (
            ("subject", "data")
            if params(step)["method"] == "source"
            else ("subject", "data", "hdrs", "time", "seq")
        )
        if any(theirs.get(field) != ours.get(field) for field in fields):
            return f"its {name.removesuffix('_seq')} message is another one"
    return ""


async def _read_message(
    work: StepContext, step: Step, stream: LiveObject, seq: int
) -> Config | None:
    try:
        found: Config = (
            await work.api(step).request(f"STREAM.MSG.GET.{stream.address.stream}", {"seq": seq})
        )["message"]
    except ServerRefusedError:
        return None  # a gap, or a message whose time is over
    return found
