"""Comparison of both sides by content: before, during and after the cut-over.

Reading may be slower than publishing. So most is compared before the cut-over, and during it the
newest messages, the counts and both ends. What is left is compared afterwards, before the origin is
deleted: it does not change any more. A work queue, which workers empty meanwhile, is compared as a
whole during the cut-over.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from jsplan.applying.preserve.journal import (
    params,
    require_not_stopped,
    require_record,
    update_record,
)
from jsplan.applying.relocate.journal import (
    at,
    delete_copy,
    is_workqueue,
    origin_address,
    target_address,
)
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.documents.plan import Step
from jsplan.facts.compare_streams import Comparison, compare_streams
from jsplan.facts.messages import ReadLimitExceeded
from jsplan.units import format_timestamp

#: Messages that are compared during the cut-over, and the most rounds before it.
NEWEST: Final = 500
MAX_ROUNDS: Final = 20
#: Seconds for both sides to settle: a message expires at different moments in each stream.
SETTLE_TIMEOUT: Final = 3.0


async def compare(context: StepContext, step: Step) -> None:
    """Compare what this step is for. Raises StepFailed with what differs."""
    match require_record(context, step)["phase"]:
        case "promoted":
            await _compare_newest(context, step)
        case "activating" | "activated":
            await _compare_rest(context, step)
        case _:
            await _compare_most(context, step)
            await update_record(context, step, prepared=format_timestamp())


async def _compare_most(context: StepContext, step: Step) -> None:
    """Compare while messages arrive, until few are left or it does not catch up."""
    before = None
    for _ in range(MAX_ROUNDS):
        require_not_stopped(context)
        compared = int(require_record(context, step).get("compared") or 0)
        target = await context.read(target_address(step))
        last = int(target.state.get("last_seq") or 0) if target is not None else 0
        left = last - compared
        if left <= 0 or (before is not None and left > before // 2):
            return
        try:
            await _compare_up_to(context, step, compared + 1, last)
        except StepFailed as error:
            # The origin has everything; the next apply copies it again.
            await delete_copy(context, step, require_record(context, step), keep_mirror=False)
            raise StepFailed(f"{error}. The copy was deleted; plan again to repeat it") from None
        await update_record(context, step, compared=last)
        if left <= NEWEST:
            return
        before = left


async def _compare_newest(context: StepContext, step: Step) -> None:
    """Compare the newest messages, and the counts and ends of the whole streams.

    The counts of a work queue differ by what workers finish meanwhile, so all of it is compared.
    """
    record, end = require_record(context, step), time.monotonic() + SETTLE_TIMEOUT
    last, compared = int(record["last_seq"]), int(record.get("compared") or 0)
    first = 1 if is_workqueue(record) else max(compared, last - NEWEST) + 1
    if first <= last:
        await _compare_up_to(context, step, first, last)
    while differing := await _differing_state(context, step):
        if time.monotonic() > end:
            raise StepFailed(
                f"{target_address(step)} is not equal to {origin_address(step)}: {differing}"
            )
        await asyncio.sleep(0.1)
    await update_record(context, step, durable=False, compared_from=first)


async def _compare_rest(context: StepContext, step: Step) -> None:
    """Compare what was not compared before the activation. The limits of the target act already."""
    record = require_record(context, step)
    last, compared = int(record["last_seq"]), int(record.get("compared") or 0)
    until = int(record.get("compared_from") or last + 1) - 1
    if compared < until:
        await _compare_up_to(context, step, compared + 1, until, limits_act=True)
    await update_record(context, step, compared=max(last, compared))


async def _differing_state(context: StepContext, step: Step) -> str:
    """Describe how counts and ends differ; empty where they are equal."""
    sides = (origin_address(step), target_address(step))
    origin, target = await asyncio.gather(*(context.read(address) for address in sides))
    if origin is None or target is None:
        raise StepFailed("one of both streams was deleted by another client during the apply")
    shrinks = is_workqueue(require_record(context, step))
    for name in ("last_seq",) if shrinks else ("messages", "last_seq", "first_seq"):
        theirs, ours = (int(side.state.get(name) or 0) for side in (origin, target))
        if theirs != ours and (name != "first_seq" or origin.state.get("messages")):
            return f"{name} is {ours:,}, not {theirs:,}"
    return ""


async def _compare_up_to(
    context: StepContext, step: Step, first: int, last: int, *, limits_act: bool = False
) -> None:
    """Compare a range. Messages that only the copy has are deleted later.

    `limits_act`: the copy may lack messages that its own limits deleted. That it had all of them
    was seen before.
    """
    found = await compare_range(context, step, first, last)
    some = [] if limits_act else found.missing[:100]
    missing = [seq for seq in some if await _still_missing(context, step, seq)]
    for what, seqs in (("lacks", missing), ("differs in", found.different)):
        if seqs:
            raise StepFailed(
                f"{target_address(step)} {what} sequence {seqs[0]:,} of {origin_address(step)}"
                + (f" and {len(seqs) - 1:,} more" if len(seqs) > 1 else "")
            )


async def compare_range(context: StepContext, step: Step, first: int, last: int) -> Comparison:
    """Compare a range of both sides as they are now."""
    addresses = (origin_address(step), target_address(step))
    apis = [context.api(at(step, address)) for address in addresses]
    infos = await asyncio.gather(
        *(
            api.request(f"STREAM.INFO.{address.stream}")
            for api, address in zip(apis, addresses, strict=True)
        )
    )
    levels = (int(params(step)["origin_level"]), int(params(step)["api_level"]))
    origin, target = zip(apis, infos, levels, strict=True)
    try:
        return await compare_streams(origin, target, first, last)
    except ReadLimitExceeded:
        raise StepFailed(
            f"{origin_address(step)} has too many deleted messages to be compared without "
            "allow_direct. Set allow_direct: true there, apply, and relocate it then"
        ) from None


async def _still_missing(context: StepContext, step: Step, seq: int) -> bool:
    """Check whether the origin still has a message that the copy lacks: it may have expired."""
    found: list[dict[str, Any] | None] = [
        await context.api(at(step, address)).get_message(address.stream, {"seq": seq})
        for address in (target_address(step), origin_address(step))
    ]
    return found[0] is None and found[1] is not None
