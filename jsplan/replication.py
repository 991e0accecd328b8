"""Samples flows until each one is known to follow its origin or not. Read-only.

A plan warns about unchanged mirrors and sources that are provably not replicating; `drift` and
`status` take more samples and report more.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from jsplan.address import Address, matches, matches_any
from jsplan.context import Session
from jsplan.diagnostics import Diagnostic
from jsplan.facts.live import Live
from jsplan.facts.replication.flows import Flow, list_flows
from jsplan.facts.replication.sampler import ReplicationSampler
from jsplan.facts.replication.samples import ReplicationSample, build_sample
from jsplan.health import Assessment, assess, build_replication_element, causes
from jsplan.health.assessment import is_in_sync

if TYPE_CHECKING:
    from jsplan.planning.model import PlanInputs, ResourceDecision


#: Seconds between the first two samples, between later ones, and in total.
FIRST_PAUSE, PAUSE, MAX_SAMPLING_TIME = 0.1, 0.6, 14.0
#: Samples older than so many seconds say nothing about the present.
MAX_SAMPLE_AGE: Final = 25.0

#: The samples of each flow, oldest first.
SampleHistory = dict[Flow, list[ReplicationSample]]


NOT_REPLICATING = "JS457"
_NOT_REPLACED = (["no-op"], ["update"])


class FlowHealth(Struct, frozen=True):
    """One flow, its assessment, and the newest sample."""

    flow: Flow
    assessment: Assessment
    sample: ReplicationSample | None = None

    def to_json(self) -> dict[str, Any]:
        """Return an element of `replication`."""
        return build_replication_element(self.flow, self.assessment, self.sample)


class ReplicationChecker(Struct):
    """Checks flows over open connections. `live` was read before; `history` has earlier samples."""

    session: Session
    live: Live
    history: SampleHistory = field(default_factory=dict)
    _offline_reasons: dict[str, str] = field(default_factory=dict)
    _unreadable: set[Flow] = field(default_factory=set)

    async def check_until_conclusive(
        self, downstreams: Iterable[Address], excluded_origins: Collection[Address] = ()
    ) -> list[FlowHealth]:
        """Sample flows until their cause is known, for `MAX_SAMPLING_TIME` at most."""
        flows = [
            flow for flow in self._load_flows(downstreams) if flow.origin not in excluded_origins
        ]
        return await self._sample_until_conclusive(flows, time.monotonic() + MAX_SAMPLING_TIME)

    async def check_once(
        self, downstreams: Iterable[Address], excluded_origins: Collection[Address] = ()
    ) -> list[FlowHealth]:
        """Sample the flows that are not in sync once more; return only these."""
        flows = [
            flow
            for flow in self._load_flows(downstreams)
            if flow.origin not in excluded_origins and self._offline_reason(flow) is None
        ]
        out_of_sync = [
            flow
            for flow in flows
            if not (seen := self.history.get(flow)) or not is_in_sync(flow, seen[-1])
        ]
        if out_of_sync:
            await self._take_samples(out_of_sync)
        return [self._assess_flow(flow, quick=True) for flow in out_of_sync]

    async def check_again(self, downstreams: Iterable[Address]) -> list[FlowHealth]:
        """Sample inconclusive flows once more, and assess all by this and earlier samples."""
        flows = self._load_flows(downstreams)
        if inconclusive := self._inconclusive(flows):
            await self._take_samples(inconclusive)
        return [self._assess_flow(flow) for flow in flows]

    def _load_flows(self, downstreams: Iterable[Address]) -> list[Flow]:
        """Return the flows, and add what was read already as a sample of each."""
        streams = (
            live
            for address in sorted(set(downstreams))
            if (live := self.live.get(address)) is not None
        )
        listed = list_flows(streams, self.session.context.topology)
        found = [self._without_lost_start(flow) for flow in listed]
        self._unreadable.clear()
        at = time.monotonic()
        for flow in found:
            sample = self._first_sample(flow, at)
            seen = self.history.setdefault(flow, [])
            if seen and sample is not None and sample.created != seen[-1].created:
                seen.clear()
            seen[:] = [earlier for earlier in seen if at - earlier.at <= MAX_SAMPLE_AGE]
            seen += [sample] if sample is not None else []
        return found

    def _without_lost_start(self, flow: Flow) -> Flow:
        """Return a flow without a start that jsplan set for an origin that no longer exists.

        The origin of a start that jsplan set had the sequence before it.
        """
        entry = self.session.context.state.resources.get(flow.downstream)
        origin = self.live.get(flow.origin) if flow.origin is not None else None
        start = entry.starts.get(flow.key) if entry is not None else None
        if start is None or origin is None or start != flow.start:
            return flow
        if int(origin.state.get("last_seq") or 0) >= start - 1:
            return flow
        rest = {name: value for name, value in flow.config.items() if name != "opt_start_seq"}
        return dataclasses.replace(flow, config=rest)

    def _first_sample(self, flow: Flow, at: float) -> ReplicationSample | None:
        downstream, origin = self.live.get(flow.downstream), flow.origin
        if downstream is None or origin is None or not self.live.is_reachable(origin.domain):
            return None
        found = self.live.get(origin)
        if found is None and origin in self.live.unreadable:
            return build_sample(flow, downstream, None, at, unread=self.live.unreadable[origin])
        return build_sample(flow, downstream, found, at) if found is not None else None

    async def _sample_until_conclusive(
        self, flows: Collection[Flow], end: float
    ) -> list[FlowHealth]:
        pending, pause = self._inconclusive(flows), FIRST_PAUSE
        while pending:
            await self._take_samples(pending)
            pending = self._inconclusive(pending)
            if not pending or time.monotonic() > end:
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
        sampler = ReplicationSampler(
            self.session.pool, self.session.context.workspace.domains, self._offline_domains()
        )
        samples = await sampler.take_samples(
            flows, {flow: seen[-1] for flow in flows if (seen := self.history.get(flow))}
        )
        for key, why in sampler.offline.items():
            facts = self.live.domains.get(key)
            if facts is None or facts.reachable:
                self._offline_reasons[key] = why
        for flow, sample in samples.items():
            self.history.setdefault(flow, []).append(sample)
        self._unreadable |= {flow for flow in flows if flow not in samples}

    def _offline_domains(self) -> dict[str, str]:
        return {
            key: facts.reason for key, facts in self.live.domains.items() if not facts.reachable
        } | self._offline_reasons

    def _offline_reason(self, flow: Flow) -> str | None:
        return ReplicationSampler(
            self.session.pool, self.session.context.workspace.domains, self._offline_domains()
        ).offline_domain(flow)

    def _assess_flow(self, flow: Flow, *, quick: bool = False) -> FlowHealth:
        offline, seen = self._offline_reason(flow), self.history.get(flow) or []
        if offline is not None:
            side = "downstream" if offline == flow.downstream.domain else "origin"
            return FlowHealth(flow, Assessment(None, causes.domain_offline(side, offline)))
        if flow in self._unreadable:
            return FlowHealth(
                flow, Assessment(None, causes.downstream_unreadable()), seen[-1] if seen else None
            )
        if not seen:
            return FlowHealth(flow, Assessment(None, is_conclusive=False))
        return FlowHealth(flow, assess(flow, seen, quick=quick), seen[-1])


def _needs_sample(found: FlowHealth) -> bool:
    """Return True if another sample may show more, such as for a source without a position."""
    sample = found.sample
    unsearched = (
        sample is not None
        and sample.origin is not None
        and sample.position is None
        and not sample.searched
    )
    return not found.assessment.is_conclusive or (found.assessment.healthy is True and unsearched)


async def find_replication_warnings(
    session: Session, inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> list[Diagnostic]:
    """Warn about each downstream stream that does not follow. One more round trip at most."""
    downstreams = [
        address
        for address, decision in decisions.items()
        if _is_unchanged_downstream(decision) and not _is_excluded(inputs, address)
    ]
    if not downstreams or inputs.options.destroy or inputs.options.imports:
        return []
    # Loaded only here: most plans have no downstream streams.

    changing = {
        address for address, decision in decisions.items() if decision.actions not in _NOT_REPLACED
    }
    found = await ReplicationChecker(session, inputs.live).check_once(downstreams, changing)
    return [
        _build_warning(inputs, each)
        for each in found
        if each.assessment.healthy is False and not _is_reported_by_plan(inputs, each)
    ]


def _is_unchanged_downstream(decision: ResourceDecision) -> bool:
    """Return True if it has flows before and after the plan, which does not change them."""
    has_flows = (
        decision.address.is_stream and decision.live is not None and bool(decision.live.flows)
    )
    return (
        has_flows
        and decision.actions in _NOT_REPLACED
        and not any(f.path.startswith(("mirror", "sources")) for f in decision.fields)
    )


def _is_excluded(inputs: PlanInputs, address: Address) -> bool:
    """Return True if it is interrupted, or if its drift is ignored or muted as a whole."""
    drift, day = inputs.workspace.drift, inputs.now.date().isoformat()
    ignored = matches_any(drift.ignore, address)
    muted = any(
        matches(m.address, address) and not m.fields and (m.until is None or day <= m.until)
        for m in drift.mute
    )
    return (
        ignored
        or muted
        or address in inputs.interrupted.streams
        or address in inputs.interrupted.detached_sources
    )


def _is_reported_by_plan(inputs: PlanInputs, found: FlowHealth) -> bool:
    """Return True for a declared origin that does not exist, which planning reports (JS452)."""
    from jsplan.health.causes import ORIGIN_MISSING  # noqa: PLC0415 - see above

    known = any(
        edge.origin == found.flow.origin
        for edge in inputs.topology.edges_into(found.flow.downstream)
    )
    return known and found.assessment.cause.startswith(ORIGIN_MISSING)


def _build_warning(inputs: PlanInputs, found: FlowHealth) -> Diagnostic:
    flow, declared = found.flow, inputs.declared(found.flow.downstream)
    verb = "mirror" if flow.kind == "mirror" else "source"
    text = f"its {verb} {flow.source} is not followed: {found.assessment.cause}"
    detail = (
        "The plan does not change that. See the documentation, under Status and replication."
        " jsplan drift takes more samples."
    )
    return Diagnostic(
        "warning",
        NOT_REPLICATING,
        text,
        detail,
        str(flow.downstream),
        declared.range if declared is not None else None,
    )
