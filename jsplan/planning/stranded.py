"""Messages that a changed filter, or changed subjects, leave undelivered.

Assessed by the state after the whole plan: a filter that one consumer of a work queue gives up and
another one takes is not stranded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Address
from jsplan.documents.plan import Hazard
from jsplan.facts.consumer_position import position_of
from jsplan.facts.live import LiveObject, get_retention
from jsplan.facts.measurement import Measurement, MeasurementRequest
from jsplan.facts.undelivered import Aspect, FilterChange, FilteredConsumer
from jsplan.planning.decide import planned_config
from jsplan.planning.hazard_numbers import counted
from jsplan.planning.model import Decisions, Findings, Hazards, PlanInputs, ResourceDecision
from jsplan.planning.unmanaged import StreamReaders, changes_subjects
from jsplan.resources.consumer import filters_of
from jsplan.subjects import is_covered, overlaps
from jsplan.topology.replication_graph import apply_transform
from jsplan.units import bounds_text, count_text, format_duration

#: The first cause of an answer about a filter. The second one is its aspect.
FILTER_CAUSE: Final = "filter"


def list_filter_measurements(
    inputs: PlanInputs, decisions: Decisions
) -> Iterable[MeasurementRequest]:
    """List the measurements of existing consumers that get other filters."""
    readers = StreamReaders(inputs, decisions)
    for address in sorted(decisions):
        decision = decisions[address]
        stream = _surviving_stream(inputs, decision)
        if stream is not None and _changes_filters(decision):
            yield from _list_for_consumer(inputs, readers, decision, stream)


def assess_held_messages(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> Hazards:
    """Yield the hazard of messages that workers hold while their filter goes to other consumers.

    A work queue gives an unacknowledged message to each consumer that begins to want it.
    """
    live, parent = decision.live, decision.address.parent
    held = int(live.state.get("num_ack_pending") or 0) if live is not None else 0
    if live is None or parent is None or not held or decision.actions not in _GIVE_UP:
        return
    config = planned_config(inputs, decisions, inputs.topology.find_declared(parent)) or {}
    gives_up = decision.actions == ["delete"] or _changes_filters(decision)
    if config.get("retention") != "workqueue" or not gives_up:
        return
    readers = inputs.index(
        "stream readers", (inputs.live.objects, decisions), lambda: StreamReaders(inputs, decisions)
    )
    before = filters_of(live.compact) or (">",)
    takers = sorted(
        address.consumer
        for address, reader in readers.consumers(parent)
        if address != decision.address
        and not address.consumer.startswith(INTERNAL_CONSUMER_PREFIXES)
        and any(overlaps(one, other) for one in before for other in filters_of(reader) or (">",))
    )
    if takers:
        text = (
            f"its workers hold {count_text(held, 'message')}: up to as many are delivered "
            f"again, to workers of {', '.join(takers)}"
        )
        yield counted("DUPLICATES_MESSAGES", text, held, causes=takers)


def assess_shorter_wait(decision: ResourceDecision) -> Hazards:
    """Yield the hazard of messages that workers hold while their time becomes shorter.

    It counts for them at once (measured on 2.12 and 2.15). Nothing is to be allowed: a worker that
    is in time has them once.
    """
    live = decision.live
    held = int(live.state.get("num_ack_pending") or 0) if live is not None else 0
    if live is None or not held or decision.actions != ["update"]:
        return
    before, after = (
        int(config.get("ack_wait") or 0) for config in (live.compact, decision.planned)
    )
    if 0 < after < before:
        text = (
            f"up to {count_text(held, 'message')} that workers have now may be delivered again: "
            f"ack_wait becomes {format_duration(after)}"
        )
        yield counted("DUPLICATES_MESSAGES", text, held, blocking=False)


_GIVE_UP: Final = (["update"], ["delete"])


def _surviving_stream(inputs: PlanInputs, decision: ResourceDecision) -> LiveObject | None:
    """Return the stream of a consumer that stays, if it has messages."""
    stream = inputs.stream_of(decision.address)
    stays = not decision.is_removed and decision.deleted_with is None
    if stream is None or decision.live is None or not stays:
        return None
    return stream if stream.state.get("messages") else None


def _changes_filters(decision: ResourceDecision) -> bool:
    before, after = (sorted(filters_of(one)) for one in (decision.before, decision.planned))
    return decision.after is not None and before != after


def _list_for_consumer(
    inputs: PlanInputs, readers: StreamReaders, decision: ResourceDecision, stream: LiveObject
) -> Iterable[MeasurementRequest]:
    address, parent = decision.address, stream.address
    planned = planned_config(inputs, readers.decisions, inputs.topology.find_declared(parent))
    retention = get_retention(planned or stream.compact)
    if retention == "workqueue":
        parked = _mark_parked(list(_workqueue_readers(inputs, readers, parent)))
        change = FilterChange(address.consumer, "stranded", parked)
        yield MeasurementRequest(address, parent, change)
        return
    reader = _single_reader(decision, inputs.level(address))
    if decision.loses_content or reader is None:
        return
    before, after = reader.before or (), reader.after
    aspects: list[Aspect] = [] if _covers(before, after) else ["passed"]
    if retention == "limits" and not _covers(after, before):
        aspects.insert(0, "narrowed")
    for aspect in aspects:
        yield MeasurementRequest(address, parent, FilterChange(reader.name, aspect, (reader,)))


def _covers(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    """Check whether everything that passes the narrow filters passes the wide ones."""
    return not wide or all(is_covered(subject, wide) for subject in narrow or (">",))


def _workqueue_readers(
    inputs: PlanInputs, readers: StreamReaders, stream: Address
) -> Iterable[FilteredConsumer]:
    """Yield every consumer that a work queue will have, and the hidden readers of its sources."""
    for address, config in readers.consumers(stream):
        decision, name, after = readers.decisions.get(address), address.consumer, filters_of(config)
        if name.startswith(INTERNAL_CONSUMER_PREFIXES):
            yield FilteredConsumer(name, None, after)
        elif decision is None or decision.live is None:
            yield FilteredConsumer(name, after if decision is None else None, after)
        elif decision.replaces or decision.restored_with is not None:
            yield FilteredConsumer(name, filters_of(decision.before), after, resumes_at=0)
        else:
            yield _reader_of(decision.live, after)
    for downstream, origin in readers.hidden_downstream(stream, inputs.level(stream)):
        yield FilteredConsumer(f"the downstream stream {downstream}", None, filters_of(origin))


def _mark_parked(readers: list[FilteredConsumer]) -> tuple[FilteredConsumer, ...]:
    """Mark the readers that wait for each other's filters: one of them is parked first."""
    changing = [reader for reader in readers if reader.changes_filter]
    waits = {one.name: {o.name for o in changing if _takes_from(one, o)} for one in changing}

    def circular(name: str) -> bool:
        seen, waiting = set[str](), [*waits.get(name, ())]
        while waiting:
            if (other := waiting.pop()) not in seen:
                seen.add(other)
                waiting += waits[other]
        return name in seen

    return tuple(replace(reader, filter_unset_briefly=circular(reader.name)) for reader in readers)


def _takes_from(reader: FilteredConsumer, other: FilteredConsumer) -> bool:
    """Check whether a reader gets subjects that another one has now."""
    taken, given = reader.after or (">",), other.before or (">",)
    return reader is not other and any(overlaps(one, two) for one in taken for two in given)


def _single_reader(decision: ResourceDecision, level: int) -> FilteredConsumer | None:
    """Return the consumer alone; None if its position is unknown."""
    live = decision.live
    assert live is not None
    reader = _reader_of(live, filters_of(decision.planned))
    if not decision.replaces and decision.restored_with is None:
        return reader
    position = position_of(live.compact, live.state, level)
    return replace(reader, resumes_at=position) if position is not None else None


def _reader_of(live: LiveObject, after: tuple[str, ...]) -> FilteredConsumer:
    """Return a consumer that gets other filters."""
    delivered = int((live.state.get("delivered") or {}).get("stream_seq") or 0)
    is_pending = bool(live.state.get("num_ack_pending"))
    name, before = live.address.consumer, filters_of(live.compact)
    return FilteredConsumer(name, before, after, delivered, is_pending)


def streams_with_new_subjects(inputs: PlanInputs, decisions: Decisions) -> set[Address]:
    """Return the streams that will store other subjects, directly or through their origins."""
    found: set[Address] = set()
    waiting = [a for a, v in inputs.touched(decisions).items() if changes_subjects(v)]
    while waiting:
        found.add(origin := waiting.pop())
        waiting += [
            edge.downstream
            for edge in inputs.topology.edges_from(origin)
            if edge.downstream not in found
        ]
    return found


def check_starved_consumers(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> Findings:
    """Warn about consumers in no file that get nothing from the new subjects of their stream."""
    configs = (decision.before, decision.planned)
    copies = any(config.get(name) for config in configs for name in ("mirror", "sources"))
    if decision.live is None or not changes_subjects(decision) or copies:
        return
    before, stored = (
        apply_transform(c.get("subjects", ()), c.get("subject_transform")) for c in configs
    )
    for consumer in inputs.consumers_of(decision.address):
        address = consumer.address
        planned = decisions.get(address)
        goes = planned is not None and planned.deletes
        if goes or address in inputs.workspace.resources:
            continue
        filters = filters_of(consumer.compact)
        lost = [
            subject
            for subject in filters
            if any(overlaps(subject, s) for s in before)
            and not any(overlaps(subject, s) for s in stored)
        ]
        if filters and lost == list(filters):
            text = (
                f"consumer {address.consumer}, which is in no file, gets no new messages: "
                f"no subject matches {', '.join(lost)}"
            )
            detail = "Inform its owner, or keep a subject that its filter matches."
            yield inputs.finding("warning", "JS474", text, detail, decision.address)


# --- what the answers mean ----


def is_filter_measurement(answer: Measurement) -> bool:
    """Check whether an answer counts undelivered messages and not deleted ones."""
    return answer.causes[:1] == (FILTER_CAUSE,)


def add_stranded_messages(
    address: Address, hazards: list[Hazard], answers: Iterable[Measurement]
) -> list[Hazard]:
    """Add the messages of a work queue that no consumer will get; they stay for ever."""
    for answer in answers:
        if answer.causes != (FILTER_CAUSE, "stranded"):
            continue
        text = (
            f"{_format_messages(answer)} of the work queue "
            f"{'is' if answer.at_most == 1 else 'are'} delivered to no consumer any more: no "
            "filter matches them, or the consumer has passed them "
            f"(then --replace {address} delivers them)"
        )
        least, most, causes = answer.at_least, answer.at_most, [FILTER_CAUSE]
        lost = counted("LOSES_CONSUMER_POSITION", text, most, least, causes, answer.as_of)
        same = [hazard.message for hazard in hazards if hazard.code == lost.code]
        lost.message = "; ".join([*same, text])
        hazards = [*(hazard for hazard in hazards if hazard.code != lost.code), lost]
    return hazards


def check_undelivered(inputs: PlanInputs, decision: ResourceDecision) -> Findings:
    """Warn about messages that a consumer does not get because its filter changes."""
    for answer in inputs.measured.counts(decision.address):
        if not is_filter_measurement(answer) or answer.causes[-1] == "stranded":
            continue
        many = _format_messages(answer)
        if answer.causes[-1] == "narrowed":
            text = (
                f"{many} pending for it will not be delivered: the new filter does not match them"
            )
            detail = (
                "They stay in the stream. If they matter, let the consumer finish first, "
                "or create another one for them."
            )
        else:
            text = (
                f"{many} that the new filter matches will not be delivered: "
                "a changed filter never goes back"
            )
            detail = (
                "The consumer has passed them. To deliver them, create another consumer, "
                f"or recreate this one: --replace {decision.address}."
            )
        if answer.causes[-1] == "passed" and decision.replaces:
            text = (
                f"{many} that the new filter matches will not be delivered: "
                "they lie before its position, which is kept"
            )
            detail = (
                "If they matter, create another consumer for them, "
                "or let this one start again: lifecycle: {on_replace: recreate}."
            )
        yield inputs.finding("warning", "JS422", text, detail, decision.address)


def check_last_deliveries(inputs: PlanInputs, decision: ResourceDecision) -> Findings:
    """Warn about messages that workers have now and that a lower max_deliver makes final.

    It counts for them at once (measured on 2.10 to 2.15): what was delivered that often is not
    delivered again.
    """
    address, live = decision.address, decision.live
    most = int(decision.planned.get("max_deliver") or -1)
    if address.parent is None or live is None or decision.replaces or most <= 0:
        return
    if 0 < int(live.compact.get("max_deliver") or -1) <= most:
        return
    # each message out with a worker was delivered once, each redelivered one twice at least
    count = int(live.state.get("num_ack_pending" if most == 1 else "num_redelivered") or 0)
    if count:
        many = count_text(count, "message")
        text = (
            f"up to {many} that workers have now will not be delivered again: "
            f"max_deliver becomes {most}"
        )
        detail = (
            "A message that a worker acknowledges is done. If the others matter, let the consumer "
            "finish first."
        )
        yield inputs.finding("warning", "JS422", text, detail, address)


def _format_messages(answer: Measurement) -> str:
    return bounds_text(answer.at_least, answer.at_most, "message")
