"""Unmanaged objects that a plan can conflict with: what must be read, and how rules find it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Final

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Address
from jsplan.facts.live import get_retention
from jsplan.facts.measurement import UnmanagedRequest
from jsplan.flows.graph import list_origins
from jsplan.planning.consumer_count import count_consumers
from jsplan.planning.decide import planned_config
from jsplan.planning.full_origins import find_full_origins
from jsplan.planning.lost_records import STAGED_SUBJECTS, may_lack_record
from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision
from jsplan.planning.replication.arriving_messages import planned_flows
from jsplan.planning.replication.impact import downstream_domains, origin_of
from jsplan.planning.transfer.decisions import ORIGIN_RELOCATED
from jsplan.resources.fields import Config
from jsplan.resources.server_features import VISIBLE_CONSUMERS_LEVEL
from jsplan.units import SECOND

#: The hidden consumer by which the server reads a stream for a mirror or source.
HIDDEN_CONSUMER: Final[Config] = {"inactive_threshold": 10 * SECOND}
#: The fields that decide which subjects a stream stores.
SUBJECT_FIELDS: Final = ("subjects", "subject_transform", "mirror", "sources")


def required_reads(inputs: PlanInputs, decisions: Decisions) -> list[UnmanagedRequest]:
    """Return by domain what must be read before refusals can be found."""
    subjects: dict[str, dict[str, None]] = {}
    streams: dict[str, set[Address]] = {}
    for decision in written_decisions(decisions):
        domain, parent = decision.address.domain, decision.address.parent
        if parent is None:
            subjects.setdefault(domain, {}).update(dict.fromkeys(added_subjects(decision)))
            if (
                changes_consumer_limits(decision)
                or changes_subjects(decision)
                or (decision.preserves and decision.live is not None)
            ):
                streams.setdefault(domain, set()).add(decision.address)
        elif _stays_workqueue(inputs, decisions, parent):
            streams.setdefault(domain, set()).add(parent)
    for decision in decisions.values():
        if may_lack_record(decision):
            subjects.setdefault(decision.address.domain, {})[STAGED_SUBJECTS] = None
    for count in count_consumers(inputs, decisions):
        if 0 < count.limit < count.total:
            # The list shows which of them do not count.
            streams.setdefault(count.stream.domain, set()).add(count.stream)
    for full in find_full_origins(inputs, decisions):
        streams.setdefault(full.flow.origin.domain, set()).add(full.flow.origin)
    for decision in decisions.values():
        if decision.reason == ORIGIN_RELOCATED:
            streams.setdefault(decision.address.domain, set()).add(decision.address)
    all_of = reader_domains(inputs, decisions)
    domains = {domain for domain, found in subjects.items() if found} | streams.keys() | all_of
    return [
        UnmanagedRequest(
            d, tuple(subjects.get(d, ())), tuple(sorted(streams.get(d, ()))), d in all_of
        )
        for d in sorted(domains)
    ]


def reader_domains(inputs: PlanInputs, decisions: Decisions) -> set[str]:
    """Return the domains of which every stream is read, since it may read what the plan changes."""
    if planned_flows(inputs, decisions).meeting:
        return inputs.live.reachable
    return downstream_domains(inputs, decisions)


def written_decisions(decisions: Decisions) -> list[ResourceDecision]:
    """Return the decisions that create or update."""
    return [v for v in decisions.values() if v.after is not None and v.writes]


def added_subjects(decision: ResourceDecision) -> list[str]:
    """Return the subjects that the stream did not have before."""
    before = decision.before.get("subjects", ()) if not decision.loses_content else ()
    return [subject for subject in decision.planned.get("subjects", ()) if subject not in before]


def changes_consumer_limits(decision: ResourceDecision) -> bool:
    """Check whether a stream gets other limits for consumers that it keeps.

    A preserved one gets them by its last update, when its consumers are back.
    """
    if decision.live is None or decision.after is None or decision.loses_content:
        return False
    before, planned = decision.before, decision.planned
    return bool(before.get("consumer_limits") != planned.get("consumer_limits"))


def changes_subjects(decision: ResourceDecision) -> bool:
    """Check whether a stream that stays will store other subjects than before."""
    if decision.live is None or decision.loses_content or decision.after is None:
        return False
    return decision.address.parent is None and any(
        decision.before.get(name) != decision.after.get(name) for name in SUBJECT_FIELDS
    )


def _stays_workqueue(inputs: PlanInputs, decisions: Decisions, stream: Address) -> bool:
    planned = decisions.get(stream)
    if inputs.live.get(stream) is None or (planned is not None and planned.loses_content):
        return False
    return get_retention(planned_config(inputs, decisions, stream) or {}) == "workqueue"


class StreamReaders:
    """The consumers and downstream streams of each stream, unmanaged ones included."""

    def __init__(self, inputs: PlanInputs, decisions: Decisions) -> None:
        self.inputs = inputs
        self.decisions = decisions

    @cached_property
    def _by_stream(self) -> dict[Address, list[tuple[Address, Config]]]:
        found: dict[Address, list[tuple[Address, Config]]] = {}
        known = {
            self.inputs.topology.canonicalize(address): address
            for address in (*self.inputs.live.objects, *self.decisions)
        }
        for real, address in sorted(known.items(), key=lambda item: item[1]):
            decision = self.decisions.get(address)
            if (
                real.kind != "consumer"
                or real.parent is None
                or (decision is not None and decision.is_gone)
            ):
                continue
            config = planned_config(self.inputs, self.decisions, address)
            if config is not None:
                found.setdefault(real.parent, []).append((address, config))
        return found

    @cached_property
    def _downstream(self) -> dict[Address, list[tuple[Address, Config]]]:
        """Those that read now. The consumer of one that leaves stays for some seconds."""
        found: dict[Address, list[tuple[Address, Config]]] = {}
        for downstream, live in sorted(self.inputs.live.objects.items()):
            for _, source in list_origins(live.compact) if downstream.is_stream else ():
                if (origin := origin_of(self.inputs, downstream, source)) is not None:
                    origin = self.inputs.topology.find_declared(origin)
                    found.setdefault(origin, []).append((downstream, source))
        return found

    def consumers(self, stream: Address) -> Iterable[tuple[Address, Config]]:
        """Every consumer that the stream will have, compact, in address order."""
        return self._by_stream.get(self.inputs.topology.canonicalize(stream), ())

    def earlier_queue_readers(self, consumer: Address, level: int) -> list[tuple[str, Config]]:
        """Return by name the readers that a work queue has before this consumer.

        They are consumers that come first, unmanaged ones, and hidden ones of downstream streams.
        """
        assert consumer.parent is not None
        ours = self.decisions
        found = [
            (address.consumer, config)
            for address, config in self.consumers(consumer.parent)
            if (address < consumer or address not in ours)
            and not address.consumer.startswith(INTERNAL_CONSUMER_PREFIXES)
        ]
        for downstream, origin in self.hidden_downstream(consumer.parent, level):
            name = f"the downstream stream {downstream}"
            found.append((name, {"filter_subject": origin.get("filter_subject")}))
        return found

    def hidden_downstream(self, stream: Address, level: int) -> Iterable[tuple[Address, Config]]:
        """Return the downstream streams that stay and whose consumers the server does not show."""
        if level >= VISIBLE_CONSUMERS_LEVEL:
            return []
        staying = {edge.downstream for edge in self.inputs.topology.edges_from(stream)}
        return [one for one in self._downstream.get(stream, ()) if one[0] in staying]

    def hidden_consumers(
        self, stream: Address, retention: str, level: int
    ) -> Iterable[tuple[str, Config]]:
        """Yield the hidden consumers that count for limits now: one per downstream stream."""
        if has_acknowledging_consumers(retention, level):
            return ()
        return (
            (f"of the downstream stream {downstream}", HIDDEN_CONSUMER)
            for downstream, _ in self._downstream.get(stream, ())
        )


def has_acknowledging_consumers(retention: str, level: int) -> bool:
    """Check whether the server's own consumers of such a stream acknowledge.

    They do since 2.14 where an acknowledgement deletes messages.
    """
    return level >= VISIBLE_CONSUMERS_LEVEL and retention != "limits"
