"""Comparison of a copy with its origin by content: before, during and after the cut-over.

Reading may be slower than publishing. So most is compared while publishers write, where a mirror
copies. While they wait the newest messages, the counts and both ends are compared, and all that is
left where the origin is deleted next. What is left of a copy whose origin stays is compared
afterwards, before that is deleted: it does not change any more.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.transfer.record import (
    TransferRecord,
    at,
    delete_copy,
    hop_of,
    is_drained,
    is_relocation,
    is_second,
    is_workqueue,
    params,
    read_copy,
    read_origin,
    require_not_stopped,
    require_ours,
    require_record,
    update_record,
)
from jsplan.diagnostics import quote_shell
from jsplan.documents.plan import Step
from jsplan.facts.compare_streams import Comparison, IncomparableError, compare_streams
from jsplan.jetstream.api import has_header
from jsplan.units import format_timestamp

#: Messages that are compared during the cut-over, and the most rounds before it.
NEWEST: Final = 500
MAX_ROUNDS: Final = 20
#: Seconds for both sides to settle: a message expires at different moments in each stream.
SETTLE_TIMEOUT: Final = 3.0


async def compare(context: StepContext, step: Step) -> None:
    """Compare what this step is for. Raises StepFailed with what differs."""
    match require_record(context, step)["phase"]:
        case "copied" | "refilled":
            await _compare_cut_over(context, step)
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
        record = require_record(context, step)
        compared = int(record.get("compared") or 0)
        copy = await context.read(hop_of(step).copy)
        last = int(copy.state.get("last_seq") or 0) if copy is not None else 0
        left = last - compared
        if left <= 0 or (before is not None and left * 10 > before * 9):
            return
        try:
            await _compare_up_to(context, step, compared + 1, last)
        except StepFailed as error:
            if record.get("promotes"):
                raise
            # The origin has everything; the next apply copies it again.
            await delete_copy(context, step, record, keep_mirror=False)
            raise StepFailed(f"{error}. The copy was deleted; plan again to repeat it") from None
        await update_record(context, step, compared=last)
        if left <= NEWEST:
            return
        before = left


async def _compare_cut_over(context: StepContext, step: Step) -> None:
    """Compare counts and ends, and as many messages as must be before the next step.

    A work queue of which workers finish messages meanwhile is compared as a whole, since its counts
    differ. So is what has no other copy afterwards. A drained queue has nothing left to compare.
    """
    record = require_record(context, step)
    second = is_second(step, record)
    last, compared = int(record["last_seq"]), int(record.get("compared") or 0)
    is_whole = is_workqueue(record) if is_relocation(record) else not second
    first = (compared if is_whole else max(compared, last - NEWEST)) + 1
    if first <= last and not is_drained(step, record):
        await _compare_up_to(context, step, first, last)
    end = time.monotonic() + SETTLE_TIMEOUT
    while differing := await _differing_state(context, step, record):
        if time.monotonic() > end:
            hop = hop_of(step)
            raise StepFailed(
                f"{hop.copy} is not equal to {hop.origin}: {differing}; "
                + (f"its messages are in {hop.origin}" if second else "the origin has everything")
            )
        await asyncio.sleep(0.1)
    if not is_relocation(record):
        copy = await read_copy(context, step, record)
        require_ours(copy, record)
        if (excess := await context.deletion_check.describe_excess(step, copy)) is not None:
            raise StepFailed(f"the new {step.address} {excess}")
    phase = "recompared" if second else "compared"
    await update_record(
        context, step, durable=not is_relocation(record), phase=phase, compared_from=first
    )


async def _compare_rest(context: StepContext, step: Step) -> None:
    """Compare what was not compared before the activation. The limits of the copy act already."""
    record = require_record(context, step)
    last, compared = int(record["last_seq"]), int(record.get("compared") or 0)
    until = int(record.get("compared_from") or last + 1) - 1
    if compared < until:
        await _compare_up_to(context, step, compared + 1, until, limits_act=True)
    await update_record(context, step, compared=max(last, compared))


async def _differing_state(context: StepContext, step: Step, record: TransferRecord) -> str:
    """Describe how counts and ends differ; empty where they are equal."""
    origin, copy = await asyncio.gather(
        read_origin(context, step, record), read_copy(context, step, record)
    )
    theirs, ours = (int(side.state.get("messages") or 0) for side in (origin, copy))
    if record.get("promotes"):  # it may have what its origin has deleted
        if theirs > ours:
            return f"messages is {ours:,}, not {theirs:,}"
        theirs, ours = (int(side.state.get("last_seq") or 0) for side in (origin, copy))
        return f"last_seq is {ours:,}, not {theirs:,}" if theirs != ours else ""
    if is_second(step, record) and copy.raw.get("mirror"):  # it receives more already
        return f"messages is {ours:,}, not {theirs:,}" if ours < theirs else ""
    shrinks = not is_second(step, record) and (
        is_workqueue(record) or bool(record["old"]["config"].get("allow_msg_ttl"))
    )
    if shrinks:
        most = (record.get("quiesced_state") or {}).get("messages", ours)
        if not theirs <= ours <= max(int(most), theirs):
            return f"messages is {ours:,}, not {theirs:,}"
    for name in ("last_seq",) if shrinks else ("messages", "last_seq", "first_seq"):
        theirs, ours = (int(side.state.get(name) or 0) for side in (origin, copy))
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
    hop = hop_of(step)
    found = await compare_range(context, step, first, last)
    if not limits_act:
        for seq in found.missing:
            if await _still_missing(context, step, seq):
                why = await _describe_deletion(context, step, seq)
                raise StepFailed(f"{hop.copy} lacks sequence {seq:,} of {hop.origin}{why}")
    if (first_different := found.different.first) is not None:
        more = f" and {found.different.count - 1:,} more" if found.different.count > 1 else ""
        raise StepFailed(
            f"{hop.copy} differs in sequence {first_different:,} of {hop.origin}{more}"
        )


async def compare_range(context: StepContext, step: Step, first: int, last: int) -> Comparison:
    """Compare a range of both sides as they are now."""
    hop = hop_of(step)
    apis = [context.api(at(step, address)) for address in hop]
    pairs = zip(apis, hop, strict=True)
    infos = await asyncio.gather(*(api.request(f"STREAM.INFO.{a.stream}") for api, a in pairs))
    levels = (int(params(step)["origin_level"]), int(params(step)["api_level"]))
    origin, copy = zip(apis, infos, levels, strict=True)
    try:
        return await compare_streams(origin, copy, first, last)
    except IncomparableError as error:
        advice = "Set allow_direct: true there, apply, and plan this again then"
        raise StepFailed(f"{hop.origin} has {error}. {advice}") from None


async def _describe_deletion(context: StepContext, step: Step, seq: int) -> str:
    """Say why the copy alone has deleted a message, and what to do; empty where that is unknown.

    A stream may have a rollup from a source, from when it allowed none. In a mirror it acts. Up to
    2.12 a lowered `max_msgs_per_subject` deletes with the next message of the subject; in a mirror
    at once.
    """
    hop = hop_of(step)
    origin, copy = (context.api(at(step, address)) for address in hop)
    lost = await origin.get_message(hop.origin.stream, {"seq": seq})
    if lost is None:
        return ""
    subject, stream = str(lost["subject"]), hop.origin.stream
    info = await origin.request(f"STREAM.INFO.{stream}", {"subjects_filter": subject})
    limit = int(info["config"].get("max_msgs_per_subject") or 0)
    many = int((info["state"].get("subjects") or {}).get(subject) or 0)
    if 0 < limit < many:
        keep = f"nats stream purge {quote_shell(stream)} --subject {quote_shell(subject)}"
        return (
            f": it has {many:,} messages of {subject}, and max_msgs_per_subject is {limit:,}. This"
            f" server deletes the others with the next one. Delete them first: {keep} --keep"
            f" {limit}"
        )
    for among in (subject, ">"):
        found = await copy.get_message(hop.copy.stream, {"seq": seq, "next_by_subj": among})
        if found is not None and has_header(found, "Nats-Rollup"):
            return (
                f": message {int(found['seq']):,} has Nats-Rollup. It deleted nothing in"
                f" {hop.origin}, and does in a mirror that allows rollups. Apply"
                f" allow_rollup_hdrs: false to {hop.origin} first, and allow them again afterwards"
            )
    return ""


async def _still_missing(context: StepContext, step: Step, seq: int) -> bool:
    """Check whether the origin still has a message that the copy lacks: it may have expired."""
    hop = hop_of(step)
    is_copied, is_there = [  # the copy first: what expires in between is not missing
        await context.api(at(step, address)).get_message(address.stream, {"seq": seq}) is not None
        for address in (hop.copy, hop.origin)
    ]
    return is_there and not is_copied
