"""What a plan runs into without managing it: which of it must be read, and how refusals find it again. Pure.

Reading is left to `facts.neighbours`, the rules to `refusals`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Address
from jsplan.facts.measurement import UnmanagedRequest
from jsplan.planning.consumer_count import count_consumers
from jsplan.planning.decide import ResourceDecision, planned_config
from jsplan.planning.model import PlanInputs
from jsplan.planning.replication.impact import downstream_domains
from jsplan.resources.fields import Config
from jsplan.units import SECOND

#: How the server itself reads a stream for its copies: by a consumer that it does not show, with this threshold.
HIDDEN_CONSUMER: Final[Config] = {"inactive_threshold": 10 * SECOND}
#: The fields that decide which subjects a stream stores.
SUBJECT_FIELDS: Final = ("subjects", "subject_transform", "mirror", "sources")
#: From this level (2.14) on work queues and interest streams are read by a consumer that is shown (`JS_SRC_…`).
VISIBLE_CONSUMERS_LEVEL: Final = 4


def required_reads(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> list[UnmanagedRequest]:
    """What must be read before refusals can be found, for each domain that has any of it."""
    subjects: dict[str, dict[str, None]] = {}
    streams: dict[str, set[Address]] = {}
    for verdict in written_decisions(verdicts):
        domain, parent = verdict.address.domain, verdict.address.parent
        if parent is None:
            subjects.setdefault(domain, {}).update(dict.fromkeys(added_subjects(verdict)))
            if (
                changes_consumer_limits(verdict)
                or changes_subjects(verdict)
                or (verdict.preserves and verdict.live is not None)
            ):
                streams.setdefault(domain, set()).add(verdict.address)
        elif _stays_workqueue(inputs, verdicts, parent):
            streams.setdefault(domain, set()).add(parent)
    for count in count_consumers(inputs, verdicts):
        if 0 < count.limit < count.total:
            streams.setdefault(count.stream.domain, set()).add(
                count.stream
            )  # which of them need no place is seen in the list
    all_of = downstream_domains(inputs, verdicts)
    domains = sorted(
        {domain for domain, found in subjects.items() if found} | streams.keys() | all_of
    )
    return [
        UnmanagedRequest(
            d, tuple(subjects.get(d, ())), tuple(sorted(streams.get(d, ()))), d in all_of
        )
        for d in domains
    ]


def written_decisions(verdicts: Mapping[Address, ResourceDecision]) -> list[ResourceDecision]:
    """What is made or updated."""
    return [v for v in verdicts.values() if v.after is not None and v.writes]


def added_subjects(verdict: ResourceDecision) -> list[str]:
    """Subjects that the stream did not have before."""
    before = (
        verdict.live.compact.get("subjects", ())
        if verdict.live and not verdict.loses_content
        else ()
    )
    return [
        subject for subject in (verdict.after or {}).get("subjects", ()) if subject not in before
    ]


def changes_consumer_limits(verdict: ResourceDecision) -> bool:
    """Whether a stream that stays gets other limits for its consumers."""
    if verdict.live is None or verdict.deletes or verdict.after is None:
        return False
    return verdict.live.compact.get("consumer_limits") != verdict.after.get("consumer_limits")


def changes_subjects(verdict: ResourceDecision) -> bool:
    """Whether a stream that stays will store other subjects than before."""
    if (
        verdict.live is None
        or verdict.loses_content
        or verdict.after is None
        or verdict.address.parent is not None
    ):
        return False
    return any(verdict.live.compact.get(name) != verdict.after.get(name) for name in SUBJECT_FIELDS)


def _stays_workqueue(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision], stream: Address
) -> bool:
    stays = inputs.live.get(stream) is not None and not (
        stream in verdicts and verdicts[stream].loses_content
    )
    return (
        stays and (planned_config(inputs, verdicts, stream) or {}).get("retention") == "workqueue"
    )


class StreamReaders:
    """The consumers and the copies of each stream, other people's included, laid out once for a whole plan."""

    def __init__(self, inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]) -> None:
        self.inputs = inputs
        self.decisions = verdicts

    @cached_property
    def _by_stream(self) -> dict[Address, list[tuple[Address, Config]]]:
        found: dict[Address, list[tuple[Address, Config]]] = {}
        planned = {self._real_address(address): address for address in self.decisions}
        known = {
            self._real_address(address): address for address in self.inputs.live.objects
        } | planned
        for real, address in sorted(known.items(), key=lambda item: item[1]):
            verdict = self.decisions.get(address)
            if real.parent is None or (verdict is not None and verdict.is_removed):
                continue
            config = planned_config(self.inputs, self.decisions, address)
            if config is not None:
                found.setdefault(real.parent, []).append((address, config))
        return found

    def _real_address(self, address: Address) -> Address:
        """What was declared by another way to its domain (`same_as`) is the same as what is found in that."""
        return (
            self.inputs.topology.canonicalize(address)
            if address.domain in self.inputs.workspace.domains
            else address
        )

    @cached_property
    def _downstream(self) -> dict[Address, list[tuple[Address, Config]]]:
        found: dict[Address, list[tuple[Address, Config]]] = {}
        for edge in self.inputs.topology.edges:
            live = self.inputs.live.get(edge.downstream)
            origins = (
                [live.compact.get("mirror"), *(live.compact.get("sources") or ())] if live else []
            )
            found.setdefault(edge.origin, []).extend(
                (edge.downstream, o) for o in origins if o and o["name"] == edge.origin.stream
            )
        return found

    def consumers(self, stream: Address) -> Iterable[tuple[Address, Config]]:
        """Every consumer that the stream will have, compact, in address order."""
        return self._by_stream.get(self._real_address(stream), ())

    def earlier_queue_readers(self, consumer: Address, level: int) -> list[tuple[str, Config]]:
        """By name, who is in a work queue already: consumers that come first, other people's, copies that read it unseen."""
        assert consumer.parent is not None
        ours = self.decisions
        found = [
            (address.consumer, config)
            for address, config in self.consumers(consumer.parent)
            if (address < consumer or address not in ours)
            and not address.consumer.startswith(INTERNAL_CONSUMER_PREFIXES)
        ]
        hidden = self.hidden_downstream(consumer.parent, level)
        return found + [
            (f"the copy {copy}", {"filter_subject": origin.get("filter_subject")})
            for copy, origin in hidden
        ]

    def hidden_downstream(self, stream: Address, level: int) -> Iterable[tuple[Address, Config]]:
        """Copies that read a work queue or an interest stream by consumers that the server does not show."""
        return self._downstream.get(stream, ()) if level < VISIBLE_CONSUMERS_LEVEL else ()

    def hidden_consumers(
        self, stream: Address, retention: str, level: int
    ) -> Iterable[tuple[str, Config]]:
        """Consumers that the server does not show but holds against the limits for consumers: one for each copy."""
        if has_acknowledging_consumers(retention, level):
            return ()
        return (
            (f"of the copy {copy}", HIDDEN_CONSUMER) for copy, _ in self._downstream.get(stream, ())
        )


def has_acknowledging_consumers(retention: str, level: int) -> bool:
    """Check whether the server's own consumers of such a stream acknowledge, as they do since 2.14 where that frees messages."""
    return level >= VISIBLE_CONSUMERS_LEVEL and retention != "limits"
