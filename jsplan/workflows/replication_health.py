"""Looks at flows until it is known of each whether it follows its origin. Reads only; the judgement is `health`'s."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from jsplan.address import Address
from jsplan.context import Context
from jsplan.facts.live import Live
from jsplan.facts.replication.flows import Flow, list_flows
from jsplan.facts.replication.sampler import ReplicationSampler
from jsplan.facts.replication.samples import ReplicationSample, build_sample
from jsplan.health import Assessment, assess, build_replication_element, causes
from jsplan.health.assessment import is_in_sync
from jsplan.jetstream import Pool

#: Seconds between the first two looks, between later ones, and after which no more are taken, whatever is known by then.
FIRST_PAUSE, PAUSE, MAX_SAMPLING_TIME = 0.1, 0.6, 14.0
#: Looks further back than so many seconds say nothing about now.
MAX_SAMPLE_AGE: Final = 25.0

#: What was seen of each flow, the oldest look first.
SampleHistory = dict[Flow, list[ReplicationSample]]


@dataclass(frozen=True, slots=True)
class FlowHealth:
    """One flow, what is known about it, and the newest look at it."""

    flow: Flow
    assessment: Assessment
    sample: ReplicationSample | None = None

    def to_json(self) -> dict[str, Any]:
        """As an element of `replication`."""
        return build_replication_element(self.flow, self.assessment, self.sample)


@dataclass(slots=True)
class ReplicationChecker:
    """The flows of one workspace over open connections. `live` is what was read before, `history` what was seen earlier."""

    context: Context
    pool: Pool
    live: Live
    history: SampleHistory = field(default_factory=dict)
    _offline_reasons: dict[str, str] = field(default_factory=dict)
    _unreadable: set[Flow] = field(default_factory=set)

    async def check_until_conclusive(
        self, copies: Iterable[Address], leaving_out: Collection[Address] = ()
    ) -> list[FlowHealth]:
        """Look again and again at what does not follow, until it is known why: as long as `MAX_SAMPLING_TIME`. Not at flows from `leaving_out`."""
        flows = [flow for flow in self._load_flows(copies) if flow.origin not in leaving_out]
        return await self._sample_until_conclusive(flows, time.monotonic() + MAX_SAMPLING_TIME)

    async def check_once(
        self, copies: Iterable[Address], leaving_out: Collection[Address] = ()
    ) -> list[FlowHealth]:
        """Look once more, if anything does not agree: what that proves, and nothing of the flows that agree."""
        flows = [
            flow
            for flow in self._load_flows(copies)
            if flow.origin not in leaving_out and self._offline_reason(flow) is None
        ]
        odd = [
            flow
            for flow in flows
            if not (seen := self.history.get(flow)) or not is_in_sync(flow, seen[-1])
        ]
        if odd:
            await self._take_samples(odd)
        return [self._assess_flow(flow, glance=True) for flow in odd]

    async def check_again(self, copies: Iterable[Address]) -> list[FlowHealth]:
        """Look once more at what does not follow, and judge by that and what was seen earlier."""
        flows = self._load_flows(copies)
        if todo := self._inconclusive(flows):
            await self._take_samples(todo)
        return [self._assess_flow(flow) for flow in flows]

    def _load_flows(self, copies: Iterable[Address]) -> list[Flow]:
        """The flows, each with what was read already as a look at it."""
        there = (
            live for address in sorted(set(copies)) if (live := self.live.get(address)) is not None
        )
        found = list_flows(there, self.context.topology)
        self._unreadable.clear()
        at = time.monotonic()
        for flow in found:
            look = self._first_sample(flow, at)
            seen = self.history.setdefault(flow, [])
            if seen and look is not None and look.created != seen[-1].created:
                seen.clear()
            seen[:] = [earlier for earlier in seen if at - earlier.at <= MAX_SAMPLE_AGE]
            seen += [look] if look is not None else []
        return found

    def _first_sample(self, flow: Flow, at: float) -> ReplicationSample | None:
        copy, origin = self.live.get(flow.downstream), flow.origin
        if copy is None or origin is None or not self.live.is_reachable(origin.domain):
            return None
        found = self.live.get(origin)
        if found is None and origin in self.live.unreadable:
            return build_sample(flow, copy, None, at, unread=self.live.unreadable[origin])
        return build_sample(flow, copy, found, at) if found is not None else None

    async def _sample_until_conclusive(
        self, flows: Collection[Flow], end: float
    ) -> list[FlowHealth]:
        todo, pause = self._inconclusive(flows), FIRST_PAUSE
        while todo:
            await self._take_samples(todo)
            todo = self._inconclusive(todo)
            if not todo or time.monotonic() > end:
                break
            await asyncio.sleep(pause)
            pause = PAUSE
        return [self._assess_flow(flow) for flow in flows]

    def _inconclusive(self, flows: Iterable[Flow]) -> list[Flow]:
        return [
            flow
            for flow in flows
            if self._offline_reason(flow) is None and _needs_sample(self._assess_flow(flow))
        ]

    async def _take_samples(self, flows: Collection[Flow]) -> None:
        reading = ReplicationSampler(
            self.pool, self.context.workspace.domains, self._offline_domains()
        )
        looks = await reading.take_samples(
            flows, {flow: seen[-1] for flow in flows if (seen := self.history.get(flow))}
        )
        for key, why in reading.offline.items():
            facts = self.live.domains.get(key)
            if facts is None or facts.reachable:
                self._offline_reasons[key] = why
        for flow, look in looks.items():
            self.history.setdefault(flow, []).append(look)
        self._unreadable |= {flow for flow in flows if flow not in looks}

    def _offline_domains(self) -> dict[str, str]:
        return {
            key: facts.reason for key, facts in self.live.domains.items() if not facts.reachable
        } | self._offline_reasons

    def _offline_reason(self, flow: Flow) -> str | None:
        return ReplicationSampler(
            self.pool, self.context.workspace.domains, self._offline_domains()
        ).offline_domain(flow)

    def _assess_flow(self, flow: Flow, *, glance: bool = False) -> FlowHealth:
        away, seen = self._offline_reason(flow), self.history.get(flow) or []
        if away is not None:
            return FlowHealth(
                flow,
                Assessment(
                    None,
                    causes.domain_offline(
                        "copy" if away == flow.downstream.domain else "origin", away
                    ),
                ),
            )
        if flow in self._unreadable:
            return FlowHealth(
                flow, Assessment(None, causes.downstream_unreadable()), seen[-1] if seen else None
            )
        if not seen:
            return FlowHealth(flow, Assessment(None, is_conclusive=False))
        return FlowHealth(flow, assess(flow, seen, quick=glance), seen[-1])


def _needs_sample(found: FlowHealth) -> bool:
    """Whether another look may tell more: of a source that is believed to follow also where it is, if nobody has searched for that."""
    look = found.sample
    unsearched = (
        look is not None and look.origin is not None and look.position is None and not look.searched
    )
    return not found.assessment.is_conclusive or (found.assessment.healthy is True and unsearched)
