"""What a changed filter, or changed subjects, leave undelivered: questions for `facts.measure`, and what the answers mean.

Judged by the state after the whole plan: what one consumer of a work queue gives up and another one takes is not stranded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import Hazard
from jsplan.facts.interest import filters_of
from jsplan.facts.live import LiveObject
from jsplan.facts.measurement import Measurement, MeasurementRequest
from jsplan.facts.undelivered import Aspect, FilterChange, FilteredConsumer
from jsplan.planning.decide import ResourceDecision, planned_config
from jsplan.planning.model import PlanInputs
from jsplan.planning.preserve.consumer_position import position_of
from jsplan.planning.unmanaged import StreamReaders, changes_subjects
from jsplan.resources.fields import Config
from jsplan.subjects import is_covered, overlaps
from jsplan.topology.replication_graph import apply_transform

#: The first cause of an answer about a filter; the second one is its aspect.
FILTER_CAUSE: Final = "filter"


def list_filter_measurements(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> Iterable[MeasurementRequest]:
    """Questions about consumers that are there and get other filters."""
    neighbours = StreamReaders(inputs, verdicts)
    for address in sorted(verdicts):
        verdict = verdicts[address]
        stream = _surviving_stream(inputs, verdict)
        if stream is not None and _changes_filters(verdict):
            yield from _list_for_consumer(inputs, neighbours, verdict, stream)


def _surviving_stream(inputs: PlanInputs, verdict: ResourceDecision) -> LiveObject | None:
    """The stream of a consumer that stays, where it has messages."""
    parent = verdict.address.parent
    if (
        parent is None
        or verdict.live is None
        or verdict.is_removed
        or verdict.deleted_with is not None
    ):
        return None
    stream = inputs.live.get(parent)
    return stream if stream is not None and stream.state.get("messages") else None


def _changes_filters(verdict: ResourceDecision) -> bool:
    assert verdict.live is not None
    return verdict.after is not None and sorted(filters_of(verdict.live.compact)) != sorted(
        filters_of(verdict.after)
    )


def _list_for_consumer(
    inputs: PlanInputs, neighbours: StreamReaders, verdict: ResourceDecision, stream: LiveObject
) -> Iterable[MeasurementRequest]:
    address, parent, after = verdict.address, stream.address, verdict.after or {}
    retention = (
        planned_config(inputs, neighbours.decisions, inputs.topology.find_declared(parent))
        or stream.compact
    ).get("retention", "limits")
    if retention == "workqueue":
        readers = _mark_parked(list(_workqueue_readers(inputs, neighbours, parent)))
        yield MeasurementRequest(
            address, parent, filter_change=FilterChange(address.consumer, "stranded", readers)
        )
        return
    one = _single_reader(address.consumer, verdict, after)
    if verdict.loses_content or one is None:
        return
    aspects: list[Aspect] = (
        ["narrowed"] if retention == "limits" and not _covers(one.after, one.before or ()) else []
    )
    aspects += [] if _covers(one.before or (), one.after) else ["passed"]
    yield from (
        MeasurementRequest(address, parent, filter_change=FilterChange(one.name, aspect, (one,)))
        for aspect in aspects
    )


def _covers(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    """Whether all that passes the one set of filters passes the other."""
    return not wide or all(is_covered(subject, wide) for subject in narrow or (">",))


def _workqueue_readers(
    inputs: PlanInputs, neighbours: StreamReaders, stream: Address
) -> Iterable[FilteredConsumer]:
    """Every consumer that a work queue will have, and the copies that read it without being seen."""
    for address, config in neighbours.consumers(stream):
        verdict = neighbours.decisions.get(address)
        if address.consumer.startswith(INTERNAL_CONSUMER_PREFIXES):
            yield FilteredConsumer(address.consumer, None, filters_of(config))
        elif verdict is None or verdict.live is None:
            yield FilteredConsumer(
                address.consumer,
                None if verdict is not None else filters_of(config),
                filters_of(config),
            )
        elif verdict.replaces or verdict.restored_with is not None:
            yield FilteredConsumer(
                address.consumer, filters_of(verdict.live.compact), filters_of(config), resumes_at=0
            )
        else:
            yield _updated_reader(address.consumer, verdict.live, config)
    hidden = neighbours.hidden_downstream(stream, inputs.level(stream))
    yield from (
        FilteredConsumer(f"the copy {copy}", None, filters_of(origin)) for copy, origin in hidden
    )


def _mark_parked(readers: list[FilteredConsumer]) -> tuple[FilteredConsumer, ...]:
    """Mark those that wait for each other's filters: one of them steps aside first (`order`)."""
    changing = [one for one in readers if one.changes_filter]
    waits = {
        one.name: {
            o.name for o in changing if o is not one and _filters_overlap(one.after, o.before or ())
        }
        for one in changing
    }

    def circular(name: str) -> bool:
        seen, waiting = set[str](), [*waits.get(name, ())]
        while waiting:
            if (other := waiting.pop()) not in seen:
                seen.add(other)
                waiting += waits[other]
        return name in seen

    return tuple(replace(one, filter_unset_briefly=circular(one.name)) for one in readers)


def _filters_overlap(some: tuple[str, ...], others: tuple[str, ...]) -> bool:
    return any(overlaps(one, other) for one in some or (">",) for other in others or (">",))


def _single_reader(name: str, verdict: ResourceDecision, after: Config) -> FilteredConsumer | None:
    """The consumer alone; None where nobody knows its position."""
    live = verdict.live
    assert live is not None
    if not verdict.replaces and verdict.restored_with is None:
        return _updated_reader(name, live, after)
    position = position_of(live.compact, live.state)
    if position is None:
        return None
    given = int((live.state.get("delivered") or {}).get("stream_seq") or 0)
    return FilteredConsumer(
        name,
        filters_of(live.compact),
        filters_of(after),
        given,
        bool(live.state.get("num_ack_pending")),
        position,
    )


def _updated_reader(name: str, live: LiveObject, after: Config) -> FilteredConsumer:
    given = int((live.state.get("delivered") or {}).get("stream_seq") or 0)
    return FilteredConsumer(
        name,
        filters_of(live.compact),
        filters_of(after),
        given,
        bool(live.state.get("num_ack_pending")),
    )


def streams_with_new_subjects(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> set[Address]:
    """The streams that will store other subjects, themselves or by what they copy."""
    found: set[Address] = set()
    waiting = [address for address, verdict in verdicts.items() if changes_subjects(verdict)]
    while waiting:
        found.add(origin := waiting.pop())
        waiting += [
            edge.downstream
            for edge in inputs.topology.edges
            if edge.origin == origin and edge.downstream not in found
        ]
    return found


def check_starved_consumers(inputs: PlanInputs, verdict: ResourceDecision) -> Iterable[Diagnostic]:
    """Consumers that no file declares, and that the new subjects of their stream leave without messages."""
    live, after, declared = verdict.live, verdict.after or {}, inputs.declared(verdict.address)
    if (
        live is None
        or not changes_subjects(verdict)
        or any(
            config.get(name) for config in (live.compact, after) for name in ("mirror", "sources")
        )
    ):
        return
    before, stored = (
        apply_transform(c.get("subjects", ()), c.get("subject_transform"))
        for c in (live.compact, after)
    )
    for address, consumer in sorted(inputs.live.objects.items()):
        if (
            address.parent != verdict.address
            or address in inputs.workspace.resources
            or address.consumer.startswith(INTERNAL_CONSUMER_PREFIXES)
        ):
            continue
        filters = filters_of(consumer.compact)
        lost = [
            one
            for one in filters
            if any(overlaps(one, s) for s in before) and not any(overlaps(one, s) for s in stored)
        ]
        if filters and lost == list(filters):
            who = f"consumer {address.consumer}, which this workspace does not manage"
            text = f"{who}, gets no new messages: no subject matches {', '.join(lost)}"
            detail = "Tell its owner, or keep a subject that its filter matches."
            yield Diagnostic(
                "warning",
                "JS474",
                text,
                detail,
                str(verdict.address),
                declared.range if declared else None,
            )


# --- what the answers mean ---------------------------------------------------------------------------------------


def is_filter_measurement(answer: Measurement) -> bool:
    """Whether an answer counts what is not delivered, and not what is deleted."""
    return answer.causes[:1] == (FILTER_CAUSE,)


def add_stranded_messages(
    address: Address, hazards: list[Hazard], answers: Iterable[Measurement]
) -> list[Hazard]:
    """The hazards of a consumer, with the messages of a work queue that no consumer will be given: they stay for ever."""
    for answer in answers:
        if answer.causes != (FILTER_CAUSE, "stranded"):
            continue
        one, exact = answer.at_most == 1, answer.at_least == answer.at_most
        text = f"{_format_count(answer)} message{'' if one else 's'} of the work queue {'is' if one else 'are'} delivered to no consumer any more"
        text += f": no filter matches them, or the consumer has passed them (then --replace {address} delivers them)"
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


def check_undelivered(inputs: PlanInputs, verdict: ResourceDecision) -> Iterable[Diagnostic]:
    """Messages that a consumer is not given because its filter changes, though others may be."""
    declared = inputs.declared(verdict.address)
    for answer in inputs.measurements.get(verdict.address, ()):
        if not is_filter_measurement(answer) or answer.causes[-1] == "stranded":
            continue
        many = f"{_format_count(answer)} message{'' if answer.at_most == 1 else 's'}"
        if answer.causes[-1] == "narrowed":
            text = f"{many} that it still has before it will not be delivered: the new filter does not match them"
            detail = "They stay in the stream. If they matter, let the consumer finish first, or create another one for them."
        else:
            text = f"{many} that the new filter matches will not be delivered: a changed filter never goes back"
            detail = f"The consumer has passed them. To deliver them, create another consumer, or this one again: --replace {verdict.address}."
        if answer.causes[-1] == "passed" and verdict.replaces:
            text = f"{many} that the new filter matches will not be delivered: they lie before its position, which is carried over"
            detail = "If they matter, create another consumer for them, or let this one start again: lifecycle: {on_replace: recreate}."
        yield Diagnostic(
            "warning",
            "JS422",
            text,
            detail,
            str(verdict.address),
            declared.range if declared else None,
        )


def _format_count(answer: Measurement) -> str:
    least, most = answer.at_least, answer.at_most
    return (
        f"{most:,}"
        if least == most
        else f"between {least:,} and {most:,}"
        if least
        else f"up to {most:,}"
    )
