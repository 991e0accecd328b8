"""Resets of consumers by `position` in the files: back or forward, once for each word.

A server since 2.14 resets the consumer in place. It is paused meanwhile, so that a request that is
repeated after a kill repeats no message. Where that cannot be, the consumer is replaced.

The sequence is fixed in the plan, also for a time and for `new`. So what the plan counts is what
the apply does, however much later that runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from jsplan.address import Address
from jsplan.diagnostics import quote_shell
from jsplan.facts.consumer_position import RESET_CAUSE, ResetCount, ResetKind, position_of
from jsplan.facts.live import get_retention
from jsplan.facts.measurement import Measurement, MeasurementRequest
from jsplan.planning.hazard_numbers import counted
from jsplan.planning.model import Findings, Hazards
from jsplan.planning.transfer.consumer_position import (
    PositionReset,
    can_reset_in_place,
    choose_position_method,
)
from jsplan.resources.consumer import filters_of
from jsplan.state.document import Entry
from jsplan.units import bounds_text

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision

#: The code of a position that cannot be set now.
RESET_REFUSED: Final = "JS499"


def is_reset_pending(inputs: PlanInputs, address: Address, entry: Entry | None) -> bool:
    """Check whether the files have a word that state does not.

    A replacement that was interrupted with its new consumer in place is finished first.
    """
    declared = inputs.declared(address)
    if declared is None or declared.position is None or address in inputs.interrupted.unready:
        return False
    return declared.position.once != (entry.position_once if entry is not None else "")


def find_reset(
    inputs: PlanInputs, address: Address, live: LiveObject | None, entry: Entry | None
) -> PositionReset | None:
    """Return the reset that the plan makes; None if there is none."""
    declared = inputs.declared(address)
    if not is_reset_pending(inputs, address, entry) or declared is None:
        return None
    wanted = declared.position
    assert wanted is not None
    stream = inputs.stream_of(address)
    seq: int | None = 1
    if wanted.seq is not None:
        seq = wanted.seq
    elif stream is not None and wanted.time is not None:
        seq = inputs.measured.seqs_by_time.get((stream.address, wanted.time))
    elif stream is not None:
        seq = int(stream.state.get("last_seq") or 0) + 1
    if live is None:
        return PositionReset(wanted.once, seq)
    level = inputs.level(address)
    in_place = seq is not None and can_reset_in_place(seq, live.compact, level)
    position = position_of(live.compact, live.state, level)
    return PositionReset(wanted.once, seq, position, in_place=in_place)


def list_reset_times(inputs: PlanInputs) -> set[tuple[Address, str]]:
    """List the times whose sequences the resets of this plan need, each with its stream."""
    return {
        (address.parent, declared.position.time)
        for address in inputs.selected
        if (declared := inputs.declared(address)) is not None
        and declared.position is not None
        and declared.position.time is not None
        and address.parent is not None
        and is_reset_pending(inputs, address, inputs.entries.get(address))
    }


def start_of_new(
    inputs: PlanInputs, address: Address, body: Mapping[str, Any], reset: PositionReset | None
) -> int | None:
    """Return the sequence at which a new consumer starts in place of what its body says."""
    if reset is None or reset.seq is None:
        return None
    stream = inputs.stream_of(address)
    first = int(stream.state.get("first_seq") or 0) if stream is not None else 0
    method = choose_position_method(reset.seq, body, 0, retention="limits", first_seq=first)
    return reset.seq if method == "start" else None


# --- what it costs ----


def reset_measurements(
    decision: ResourceDecision, stream: LiveObject
) -> Iterable[MeasurementRequest]:
    """Request the counts of the messages that come again, and of those that are skipped."""
    live, reset = decision.live, decision.reset
    if live is None or reset is None or reset.seq is None:
        return
    delivered = int((live.state.get("delivered") or {}).get("stream_seq") or 0)
    kinds: list[ResetKind] = ["again"] if reset.seq <= delivered else []
    if reset.direction != "back":
        kinds.append("skipped")
    pending, config = int(live.state.get("num_ack_pending") or 0), decision.after or live.compact
    for kind in kinds:
        position = reset.position
        count = ResetCount(kind, reset.seq, position, delivered, pending, filters_of(config))
        yield MeasurementRequest(decision.address, stream.address, count)


def is_reset_measurement(answer: Measurement) -> bool:
    """Check whether an answer counts for a reset, and not deleted messages."""
    return answer.causes[:1] == (RESET_CAUSE,)


def assess_reset(decision: ResourceDecision, answers: Iterable[Measurement]) -> Hazards:
    """Yield the hazards of a reset: messages that come again, and messages that are skipped."""
    reset = decision.reset
    for answer in answers:
        if reset is None or reset.seq is None or not is_reset_measurement(answer):
            continue
        many = bounds_text(answer.at_least, answer.at_most, "message")
        verb = "is" if answer.at_most == 1 else "are"
        again = answer.causes[-1] == "again"
        where = f"the position is set to sequence {reset.seq:,}"
        text = (
            f"{where}: {many} that the consumer has passed {verb} delivered again"
            if again
            else f"{where}: {many} that {verb} not processed yet {verb} skipped"
        )
        code = "DUPLICATES_MESSAGES" if again else "LOSES_CONSUMER_POSITION"
        yield counted(code, text, answer.at_most, answer.at_least, as_of=answer.as_of)


# --- what is refused ----


def check_resets(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Yield an error for each position that cannot be set now."""
    for decision in decisions.values():
        if decision.reset is None:
            continue
        problem = _find_problem(inputs, decision, decision.reset, decisions)
        if problem is not None:
            text, at = f"its position cannot be set: {problem[0]}", decision.address
            yield inputs.finding("error", RESET_REFUSED, text, problem[1], at, "position")


def _find_problem(
    inputs: PlanInputs, decision: ResourceDecision, reset: PositionReset, decisions: Decisions
) -> tuple[str, str] | None:
    """Return why a position cannot be set, and what to do; None if it can."""
    parent = decision.address.parent
    assert parent is not None
    stream, planned = inputs.live.get(parent), decisions.get(inputs.topology.find_declared(parent))
    changed = planned is not None and (planned.deletes or planned.relocation is not None)
    if changed or decision.relocation is not None or parent in inputs.interrupted.streams:
        return (
            "its stream is replaced or relocated by this plan",
            "Remove `position`, apply that first, then write it again.",
        )
    if any(found.at_most for found in inputs.measured.counts(parent)):
        command = f"jsplan apply --exclude {quote_shell(decision.address)}"
        return (
            "its stream deletes messages in this plan, and a server acknowledges those",
            f"Apply the stream first: {command}. Then set the position.",
        )
    configs = [stream.compact if stream else {}, planned.planned if planned else {}]
    retentions = {get_retention(config) for config in configs}
    if kept := sorted(retentions - {"limits"}):
        return (
            f"the stream has {kept[0]} retention, and deletes what its consumers have processed",
            "Remove `position`. To process messages again, publish them again or restore a backup.",
        )
    if reset.seq is None:
        return (
            "the first message at that time was not found within the limit of reads",
            "Write the sequence: position: {seq: N, once: WORD}.",
        )
    last = int(stream.state.get("last_seq") or 0) if stream is not None else None
    if last is not None and reset.seq > last + 1:
        return (
            f"sequence {reset.seq:,} is beyond the end of the stream, whose last is {last:,}",
            "Correct the sequence, or write `new: true` for the messages that come from now on.",
        )
    return None
