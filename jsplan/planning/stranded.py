"""Messages that a changed filter, or changed subjects, leave undelivered.

Assessed by the state after the whole plan: a filter that one consumer of a work queue gives up and
another one takes is not stranded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import Hazard
from jsplan.facts.consumer_position import position_of
from jsplan.facts.live import LiveObject
from jsplan.facts.measurement import Measurement, MeasurementRequest
from jsplan.facts.undelivered import Aspect, FilterChange, FilteredConsumer
from jsplan.planning.decide import planned_config
from jsplan.planning.model import PlanInputs, ResourceDecision
from jsplan.planning.unmanaged import StreamReaders, changes_subjects
from jsplan.resources.consumer import filters_of
from jsplan.resources.fields import Config
from jsplan.subjects import is_covered, overlaps
from jsplan.topology.replication_graph import apply_transform
from jsplan.units import bounds_text, count_text

#: The first cause of an answer about a filter. The second one is its aspect.
FILTER_CAUSE: Final = "filter"


def list_filter_measurements(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> Iterable[MeasurementRequest]:
    """List the measurements of existing consumers that get other filters."""
    readers = StreamReaders(inputs, decisions)
    for address in sorted(decisions):
        decision = decisions[address]
        stream = _surviving_stream(inputs, decision)
        if stream is not None and _changes_filters(decision):
            yield from _list_for_consumer(inputs, readers, decision, stream)


def assess_held_messages(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Mapping[Address, ResourceDecision]
) -> Iterable[Hazard]:
    """Yield the hazard of messages that workers hold while their filter goes to other consumers.

    A work queue gives an unacknowledged message to each consumer that begins to want it.
    """
    live, parent = decision.live, decision.address.parent
    held = int(live.state.get("num_ack_pending") or 0) if live is not None else 0
    if live is None or parent is None or not held or decision.actions not in _GIVE_UP:
        return
    config = planned_config(inputs, decisions, inputs.topology.find_declared(parent))
    if (config or {}).get("retention") != "workqueue" or (
        decision.actions != ["delete"] and not _changes_filters(decision)
    ):
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
        yield Hazard(
            "DUPLICATES_MESSAGES",
            text,
            messages=held,
            exact=False,
            at_least=0,
            at_most=held,
            causes=takers,
        )


_GIVE_UP: Final = (["update"], ["delete"])


def _surviving_stream(inputs: PlanInputs, decision: ResourceDecision) -> LiveObject | None:
    """Return the stream of a consumer that stays, if it has messages."""
    parent = decision.address.parent
    if (
        parent is None
        or decision.live is None
        or decision.is_removed
        or decision.deleted_with is not None
    ):
        return None
    stream = inputs.live.get(parent)
    return stream if stream is not None and stream.state.get("messages") else None


def _changes_filters(decision: ResourceDecision) -> bool:
    assert decision.live is not None
    return decision.after is not None and sorted(filters_of(decision.live.compact)) != sorted(
        filters_of(decision.after)
    )


def _list_for_consumer(
    inputs: PlanInputs, readers: StreamReaders, decision: ResourceDecision, stream: LiveObject
) -> Iterable[MeasurementRequest]:
    address, parent, after = decision.address, stream.address, decision.after or {}
    retention = (
        planned_config(inputs, readers.decisions, inputs.topology.find_declared(parent))
        or stream.compact
    ).get("retention", "limits")
    if retention == "workqueue":
        parked = _mark_parked(list(_workqueue_readers(inputs, readers, parent)))
        yield MeasurementRequest(
            address, parent, FilterChange(address.consumer, "stranded", parked)
        )
        return
    reader = _single_reader(address.consumer, decision, after, inputs.level(address))
    if decision.loses_content or reader is None:
        return
    aspects: list[Aspect] = (
        ["narrowed"]
        if retention == "limits" and not _covers(reader.after, reader.before or ())
        else []
    )
    aspects += [] if _covers(reader.before or (), reader.after) else ["passed"]
    yield from (
        MeasurementRequest(address, parent, FilterChange(reader.name, aspect, (reader,)))
        for aspect in aspects
    )


def _covers(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    """Check whether everything that passes the narrow filters passes the wide ones."""
    return not wide or all(is_covered(subject, wide) for subject in narrow or (">",))


def _workqueue_readers(
    inputs: PlanInputs, readers: StreamReaders, stream: Address
) -> Iterable[FilteredConsumer]:
    """Yield every consumer that a work queue will have, and the hidden readers of its sources."""
    for address, config in readers.consumers(stream):
        decision = readers.decisions.get(address)
        if address.consumer.startswith(INTERNAL_CONSUMER_PREFIXES):
            yield FilteredConsumer(address.consumer, None, filters_of(config))
        elif decision is None or decision.live is None:
            yield FilteredConsumer(
                address.consumer,
                None if decision is not None else filters_of(config),
                filters_of(config),
            )
        elif decision.replaces or decision.restored_with is not None:
            yield FilteredConsumer(
                address.consumer,
                filters_of(decision.live.compact),
                filters_of(config),
                resumes_at=0,
            )
        else:
            yield _updated_reader(address.consumer, decision.live, config)
    hidden = readers.hidden_downstream(stream, inputs.level(stream))
    yield from (
        FilteredConsumer(f"the downstream stream {downstream}", None, filters_of(origin))
        for downstream, origin in hidden
    )


def _mark_parked(readers: list[FilteredConsumer]) -> tuple[FilteredConsumer, ...]:
    """Mark the readers that wait for each other's filters: one of them is parked first."""
    changing = [reader for reader in readers if reader.changes_filter]
    waits = {
        reader.name: {
            other_reader.name
            for other_reader in changing
            if other_reader is not reader
            and _filters_overlap(reader.after, other_reader.before or ())
        }
        for reader in changing
    }

    def circular(name: str) -> bool:
        seen, waiting = set[str](), [*waits.get(name, ())]
        while waiting:
            if (other := waiting.pop()) not in seen:
                seen.add(other)
                waiting += waits[other]
        return name in seen

    return tuple(replace(reader, filter_unset_briefly=circular(reader.name)) for reader in readers)


def _filters_overlap(some: tuple[str, ...], others: tuple[str, ...]) -> bool:
    return any(overlaps(one, other) for one in some or (">",) for other in others or (">",))


def _single_reader(
    name: str, decision: ResourceDecision, after: Config, level: int
) -> FilteredConsumer | None:
    """Return the consumer alone; None if its position is unknown."""
    live = decision.live
    assert live is not None
    if not decision.replaces and decision.restored_with is None:
        return _updated_reader(name, live, after)
    position = position_of(live.compact, live.state, level)
    if position is None:
        return None
    delivered = int((live.state.get("delivered") or {}).get("stream_seq") or 0)
    return FilteredConsumer(
        name,
        filters_of(live.compact),
        filters_of(after),
        delivered,
        bool(live.state.get("num_ack_pending")),
        position,
    )


def _updated_reader(name: str, live: LiveObject, after: Config) -> FilteredConsumer:
    delivered = int((live.state.get("delivered") or {}).get("stream_seq") or 0)
    return FilteredConsumer(
        name,
        filters_of(live.compact),
        filters_of(after),
        delivered,
        bool(live.state.get("num_ack_pending")),
    )


def streams_with_new_subjects(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> set[Address]:
    """Return the streams that will store other subjects, directly or through their origins."""
    found: set[Address] = set()
    waiting = [address for address, decision in decisions.items() if changes_subjects(decision)]
    while waiting:
        found.add(origin := waiting.pop())
        waiting += [
            edge.downstream
            for edge in inputs.topology.edges_from(origin)
            if edge.downstream not in found
        ]
    return found


def check_starved_consumers(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Mapping[Address, ResourceDecision]
) -> Iterable[Diagnostic]:
    """Warn about consumers in no file that get nothing from the new subjects of their stream."""
    live, after, declared = decision.live, decision.after or {}, inputs.declared(decision.address)
    if (
        live is None
        or not changes_subjects(decision)
        or any(
            config.get(name) for config in (live.compact, after) for name in ("mirror", "sources")
        )
    ):
        return
    before, stored = (
        apply_transform(c.get("subjects", ()), c.get("subject_transform"))
        for c in (live.compact, after)
    )
    for consumer in inputs.consumers_of(decision.address):
        address = consumer.address
        planned = decisions.get(address)
        if (
            address in inputs.workspace.resources
            or (planned is not None and planned.deletes)
            or address.consumer.startswith(INTERNAL_CONSUMER_PREFIXES)
        ):
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
            yield Diagnostic(
                "warning",
                "JS474",
                text,
                detail,
                str(decision.address),
                declared.range if declared else None,
            )


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
        single, exact = answer.at_most == 1, answer.at_least == answer.at_most
        text = (
            f"{_format_messages(answer)} of the work queue "
            f"{'is' if single else 'are'} delivered to no consumer any more: no filter matches "
            f"them, or the consumer has passed them (then --replace {address} delivers them)"
        )
        lost = Hazard(
            "LOSES_CONSUMER_POSITION",
            text,
            messages=answer.at_most,
            exact=exact,
            at_least=None if exact else answer.at_least,
            at_most=None if exact else answer.at_most,
            causes=[FILTER_CAUSE],
            as_of=answer.as_of,
        )
        others = [hazard for hazard in hazards if hazard.code != lost.code]
        for hazard in hazards:
            if hazard.code == lost.code:
                lost.message = f"{hazard.message}; {lost.message}"
        hazards = [*others, lost]
    return hazards


def check_undelivered(inputs: PlanInputs, decision: ResourceDecision) -> Iterable[Diagnostic]:
    """Warn about messages that a consumer does not get because its filter changes."""
    declared = inputs.declared(decision.address)
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
        yield Diagnostic(
            "warning",
            "JS422",
            text,
            detail,
            str(decision.address),
            declared.range if declared else None,
        )


def check_last_deliveries(inputs: PlanInputs, decision: ResourceDecision) -> Iterable[Diagnostic]:
    """Warn about messages that workers have now and that a lower max_deliver makes final.

    It counts for them at once (measured on 2.10 to 2.15): what was delivered that often is not
    delivered again.
    """
    address, live, after = decision.address, decision.live, decision.after or {}
    most = int(after.get("max_deliver") or -1)
    if address.parent is None or live is None or decision.replaces or most <= 0:
        return
    if 0 < int(live.compact.get("max_deliver") or -1) <= most:
        return
    # each message out with a worker was delivered once, each redelivered one twice at least
    count = int(live.state.get("num_ack_pending" if most == 1 else "num_redelivered") or 0)
    if count:
        many = count_text(count, "message")
        declared = inputs.declared(address)
        yield Diagnostic(
            "warning",
            "JS422",
            f"up to {many} that workers have now will not be delivered again: "
            f"max_deliver becomes {most}",
            "A message that a worker acknowledges is done. "
            "If the others matter, let the consumer finish first.",
            str(address),
            declared.range if declared else None,
        )


def _format_messages(answer: Measurement) -> str:
    return bounds_text(answer.at_least, answer.at_most, "message")
