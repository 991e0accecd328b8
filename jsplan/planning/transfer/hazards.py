"""Hazards and notes of a transfer: for publishers, for workers, and for what stays behind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jsplan.documents.plan import Hazard
from jsplan.facts.consumer_position import position_of
from jsplan.facts.live import LiveObject
from jsplan.flows.graph import list_origins
from jsplan.planning.hazard_numbers import counted
from jsplan.planning.model import Findings, Hazards
from jsplan.planning.replication.impact import find_interest_origins, mirrors_relocated
from jsplan.planning.transfer.consumers import (
    assess_redelivery,
    origin_consumer,
    start_in_new_stream,
    target_consumer,
)
from jsplan.planning.transfer.estimate import (
    capacity_problem,
    cutover_seconds,
    duration_text,
    sized_staging_config,
)
from jsplan.planning.transfer.methods import becomes_workqueue, find_preserve_obstacle
from jsplan.planning.transfer.progress import Transfer
from jsplan.resources.buckets import nouns_of
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key
from jsplan.units import count_text

if TYPE_CHECKING:
    from jsplan.address import Address
    from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision


def preserve_obstacle(inputs: PlanInputs, decision: ResourceDecision) -> str | None:
    """Explain why the messages cannot be kept; None if they can, or are being copied already."""
    if decision.live is None or decision.address in inputs.interrupted.streams:
        return None
    live, after, address = decision.live, decision.planned, decision.address
    consumers, same_origin = inputs.consumers_of(address), _has_same_origin(inputs, live, after)
    level = inputs.level(address)
    why = find_preserve_obstacle(live, after, level, consumers, same_origin=same_origin)
    flows = [flow for _, flow in list_origins(live.compact)]
    for origin in find_interest_origins(inputs, address, () if why else flows):
        why = f"{origin} has interest retention, and keeps nothing while it is not read"
    staging = sized_staging_config(inputs, address, live)
    return why or capacity_problem(live, after, staging, inputs.live.domains[address.domain].info)


def _has_same_origin(inputs: PlanInputs, live: LiveObject, after: Config) -> bool:
    """Check whether a mirror will read the messages that it reads now."""
    old, new = live.compact.get("mirror"), after.get("mirror")
    if not (old and new):
        return False
    keys = {origin_key(one).split("#")[0] for one in (old, new)}
    return len(keys) == 1 or mirrors_relocated(inputs, live, after)


def restored_consumers(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> list[tuple[LiveObject, Config]]:
    """Return the consumers that the new stream gets, each with its new compact configuration."""
    found = [
        (consumer, decisions.get(consumer.address))
        for consumer in inputs.consumers_of(decision.address)
    ]
    coming = ((consumer, v) for consumer, v in found if v is None or v.deleted_with is None)
    return [(c, v.after if v and v.after is not None else c.compact) for c, v in coming]


def finishing_consumers(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> list[tuple[LiveObject, int | None]]:
    """Return the consumers of a stream that becomes a work queue, which may finish messages.

    Each has its position, None if that is unknown.
    """
    if decision.live is None or not becomes_workqueue(decision.before, decision.planned):
        return []
    return [
        (c, position_of(c.compact, c.state, inputs.level(c.address)))
        for c, _ in restored_consumers(inputs, decision, decisions)
    ]


def assess_preserved(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> Hazards:
    """Yield the hazards for publishers, workers and readers."""
    live = decision.live
    assert live is not None
    coming = [consumer for consumer, _ in restored_consumers(inputs, decision, decisions)]
    interrupted = inputs.interrupted.streams.get(decision.address)
    if interrupted is None or not interrupted.rejected_subjects:
        assert decision.replacement is not None
        yield from _assess_publishers(inputs, decision.replacement, live)
    has_all = interrupted is None or interrupted.has_origin
    if interrupted is not None and (interrupted.has_moved_messages or not has_all):
        yield from _assess_finished(live, finishing_consumers(inputs, decision, decisions))
    allowed = interrupted.record.get("allowed", {}) if interrupted is not None else {}
    if has_all or "DUPLICATES_MESSAGES" in allowed:
        # A snapshot keeps all, but that of a cluster keeps only the floor of a consumer with
        # unacknowledged messages (measured on 2.15).
        loses = decision.recreates_consumers or live.is_clustered
        yield from assess_redelivery(inputs, live, coming, with_finished=loses)


def _assess_publishers(inputs: PlanInputs, transfer: Transfer, origin: LiveObject) -> Hazards:
    """Yield the hazard for publishers, from the quiescence of the origin to the activation."""
    subjects = origin.compact.get("subjects") or []
    if not subjects or origin.compact.get("sealed"):
        return
    nouns = nouns_of(transfer.origin)
    clients, writes = f"publishers to {', '.join(subjects)}", "publishers that retry"
    if nouns.object != "stream":
        clients, writes = f"clients that write to the {nouns.object}", "clients that retry"
    waits = duration_text(cutover_seconds(transfer, origin, inputs.level(transfer.origin)))
    sides = (transfer.origin.domain, transfer.target.domain)
    if len({inputs.workspace.domains[side].connection for side in sides}) > 1:
        text = (
            f"{clients} get no acknowledgement in {sides[0]} from the cut-over on. They "
            f"must write in {sides[1]}, which is another account or system. The {nouns.object} "
            f"takes {nouns.message}s there after about {waits}; {writes} there lose nothing"
        )
    elif transfer.is_relocation:
        what = "all" if transfer.method == "snapshot" else "the last"
        text = (
            f"{clients} get no acknowledgement while {what} {nouns.message}s move from "
            f"{transfer.origin} to {transfer.target}, for about {waits}; {writes} lose nothing"
        )
        if nouns.object != "stream":
            text += f"; readers and watchers must open the {nouns.object} in its new domain"
    else:
        messages = count_text(int(origin.state.get("messages") or 0), nouns.message)
        text = (
            f"{clients} get no acknowledgement while {messages} are copied, for about {waits}; "
            f"{writes} lose nothing"
        )
    yield Hazard("REMOVES_SUBJECTS", text, causes=list(subjects))


def _assess_finished(
    live: LiveObject, finishing: Iterable[tuple[LiveObject, int | None]]
) -> Hazards:
    """Yield the upper bound of what does not stay in a work queue, by positions alone."""
    total, finished = int(live.state.get("messages") or 0), 0
    for consumer, position in finishing:
        delivered = int((consumer.state.get("delivered") or {}).get("stream_seq") or 0)
        finished += position - 1 if position else delivered
    if most := min(total, finished):
        text = (
            f"up to {most:,} of {total:,} messages are acknowledged and do not stay in a work queue"
        )
        causes = ["retention"]
        yield counted("DELETES_MESSAGES", text, most, causes=causes, as_of=live.as_of)


def _check_start_overrides(inputs: PlanInputs, decision: ResourceDecision) -> Findings:
    """Note the consumers that keep their position only with another start than declared."""
    level, consumers = inputs.level(decision.address), inputs.consumers_of(decision.address)
    starts = {
        c.address.consumer: start_in_new_stream(c, c.compact, decision, level) for c in consumers
    }
    names = [name for name, start in starts.items() if start is not None]
    if names:
        text = (
            f"{', '.join(names)} will have deliver_policy by_start_sequence: "
            "this server cannot reset a consumer to its position"
        )
        detail = "That is neither drift nor a change while the files declare the same start."
        yield inputs.finding("info", "JS425", text, detail, decision.address)


def check_stream_replacement(inputs: PlanInputs, decision: ResourceDecision) -> Findings:
    """Note the effects of a stream replacement that stop nothing."""
    yield from _check_start_overrides(inputs, decision)
    if decision.live is not None:
        yield from note_new_window(inputs, decision.address, decision.live, "replacement")


def note_new_window(
    inputs: PlanInputs, address: Address, origin: LiveObject, transfer: str
) -> Findings:
    """Note that the new stream does not know the ids of messages that the old one has."""
    if not origin.compact.get("duplicate_window") or not origin.state.get("messages"):
        return
    text = (
        f"deduplication is reset: a retry of a message that was published before the {transfer} "
        "is stored twice"
    )
    detail = (
        "The server remembers only ids that were published to this very stream. "
        "It matters for as long as duplicate_window."
    )
    yield inputs.finding("info", "JS425", text, detail, address)


# --- relocations ---------------------------------------------------------------------------------


def assess_target(inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions) -> Hazards:
    """Yield the hazards for publishers and consumers, at the new address."""
    relocation = decision.relocation
    assert relocation is not None
    origin = inputs.live.get(relocation.origin)
    if origin is None:
        return
    if not relocation.is_quiesced:
        yield from _assess_publishers(inputs, relocation, origin)
    consumers = inputs.consumers_of(relocation.origin)
    found = ((c, _find_successor(inputs, relocation, c, decisions)) for c in consumers)
    coming = [c for c, new in found if new is not None and new.relocation and new.after is not None]
    yield from assess_redelivery(inputs, origin, coming)


def assess_origin(inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions) -> Hazards:
    """Yield the hazard for consumers of the origin that do not come along."""
    relocation = decision.relocation
    assert relocation is not None
    left = [
        consumer
        for consumer in inputs.consumers_of(relocation.origin)
        if _find_successor(inputs, relocation, consumer, decisions) is None
    ]
    if left:
        names = [consumer.address.consumer for consumer in left]
        pending = sum(consumer.messages_at_risk for consumer in left)
        verb = "is" if pending == 1 else "are"
        text = (
            f"{', '.join(names)}: not declared under {relocation.target}, so deleted with the "
            "origin"
        )
        if pending:
            text += f"; {count_text(pending, 'message')} {verb} not processed yet"
        code, blocking = "DELETES_CONSUMER", pending > 0
        yield counted(code, text, pending, pending, names, blocking=blocking)


def _find_successor(
    inputs: PlanInputs, relocation: Transfer, consumer: LiveObject, decisions: Decisions
) -> ResourceDecision | None:
    """Return the decision about the consumer of the target that continues one of the origin."""
    address = target_consumer(inputs.workspace, relocation, consumer.address)
    found = decisions.get(address) if address is not None else None
    return None if found is None or found.is_removed else found


def assess_lost_position(inputs: PlanInputs, decision: ResourceDecision) -> Hazard:
    """Return the hazard of a consumer whose position was lost with that of the origin."""
    stream = decision.address.parent
    assert stream is not None
    old = origin_consumer(inputs.workspace, inputs.relocations[stream], decision.address)
    text = (
        f"{old} was deleted outside jsplan before its position was read; this consumer starts as "
        f"declared (deliver_policy {decision.planned.get('deliver_policy', 'all')})"
    )
    return Hazard("LOSES_CONSUMER_POSITION", text)
