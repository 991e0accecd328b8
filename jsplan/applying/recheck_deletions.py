"""Repeated counts of deletions just before they are applied: messages may have arrived.

A step has the counts of its deletions with their answers (`documents.deletions`). If the answers
are now more than 10 % and more than `--safe-below` above those, nothing is written. The deletion of
a whole stream or consumer is a plain count, which `preconditions` checks.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.documents.deletions import PlannedDeletion, UncopiedFlow
from jsplan.documents.plan import Plan, Step
from jsplan.facts.flow_count import count_skipped
from jsplan.facts.live import LiveObject
from jsplan.facts.measure import measure_deletion
from jsplan.facts.measurement import MEASURE_LIMIT, FlowRequest, MeasurementRequest
from jsplan.jetstream import DomainApi
from jsplan.resources.source_header import SourceName


class DeletionCheck(Struct, frozen=True):
    """Compare what the steps of one plan delete with what the plan said.

    `apis` are the domains that answer.
    """

    plan: Plan
    apis: Mapping[str, DomainApi]

    async def describe_excess(
        self, step: Step, live: LiveObject | None, *, begun: bool = True
    ) -> str | None:
        """Describe a step that would delete clearly more messages than planned. Raises ApiError.

        `live` is the object now, whose configuration is still as planned. `begun`: other steps of
        the plan may have changed consumers of its stream. What they want is known less exactly
        then, so it is only counted again if messages arrived.
        """
        if (uncopied := await self._describe_uncopied_excess(step)) is not None:
            return uncopied
        if (arriving := await self._describe_arriving_excess(step)) is not None:
            return arriving
        deleted = planned = 0
        for one in step.deletions:
            stream = Address.parse(one.stream)
            if stream.domain not in self.apis or _has_no_arrivals(one, live):
                continue
            if begun and one.request.consumers and await self._has_last(stream, one.last_seq):
                continue
            planned += one.at_most
            deleted += await self._count(Address.parse(step.address), stream, one)
        if not exceeds_plan(deleted, planned, self._safe_below):
            return None
        return f"would delete {deleted:,} messages now; the plan said {planned:,}"

    async def _count(self, address: Address, stream: Address, planned: PlannedDeletion) -> int:
        """Count the deletions of one stream now. Raises ApiError."""
        level = int((self.plan.domains.get(stream.domain) or {}).get("api_level") or 0)
        limit = int(self.plan.options.get("measure_limit", MEASURE_LIMIT))
        request = MeasurementRequest(address, stream, planned.request)
        api = self.apis[stream.domain]
        found = await measure_deletion(api, request, level, limit, count_only=True)
        return found.at_most if found is not None else 0

    async def _has_last(self, stream: Address, last_seq: int) -> bool:
        """Check whether no message has arrived in a stream since it had this last sequence."""
        info = await self.apis[stream.domain].stream_info(stream.stream)
        return info is None or info["state"]["last_seq"] == last_seq

    @property
    def _safe_below(self) -> int:
        return int(self.plan.options.get("safe_below", 0))

    async def _describe_arriving_excess(self, step: Step) -> str | None:
        """Describe a flow that would bring clearly more messages than planned. Raises ApiError."""
        for flow in step.precondition.get("new_flows", ()):
            origin, planned = Address.parse(flow["origin"]), flow["max_messages"]
            if origin.domain not in self.apis:
                continue
            info = await self.apis[origin.domain].stream_info(origin.stream)
            count = int(info["state"]["messages"]) if info is not None else 0
            if exceeds_plan(count, planned, self._safe_below):
                return f"would copy {count:,} messages of {origin}; the plan said {planned:,}"
        return None

    async def _describe_uncopied_excess(self, step: Step) -> str | None:
        """Describe a source whose removal would lose clearly more uncopied messages than planned.

        Raises ApiError.
        """
        for flow in step.uncopied:
            planned, origin = flow.at_most, Address.parse(flow.origin)
            if planned is None:
                continue
            count = await self._count_uncopied(Address.parse(step.address), origin, flow)
            if count is None or exceeds_plan(count, planned, self._safe_below):
                many = "an unknown number of" if count is None else f"{count:,}"
                kind = "mirror" if flow.mirror else "source"
                return (
                    f"would lose {many} messages of {kind} {origin.stream} "
                    f"that are not copied yet; the plan said {planned:,}"
                )
        return None

    async def _count_uncopied(
        self, downstream: Address, origin: Address, flow: UncopiedFlow
    ) -> int | None:
        """Count what is not copied yet; None if unknown. Raises ApiError."""
        there = self.apis[downstream.domain]
        name, subjects, source = flow.name, flow.subjects, SourceName(*flow.source)
        request = FlowRequest(downstream, name, origin, subjects, source, recreated=False)
        request = replace(request, mirror=flow.mirror, origin_goes=flow.origin_goes)
        origins = self.apis.get(origin.domain) or there.behind(flow.api)
        return await count_skipped(origins, there, request, MEASURE_LIMIT)


def _has_no_arrivals(planned: PlannedDeletion, live: LiveObject | None) -> bool:
    """Return True if only new messages can raise the planned count, and none arrived."""
    return (
        planned.request.counts_arrivals
        and live is not None
        and str(live.address) == planned.stream
        and live.state.get("last_seq") == planned.last_seq
    )


def exceeds_plan(count: int, planned: int, safe_below: int) -> bool:
    """Return True if that is more than 10 % and more than `safe_below` above the plan."""
    return 10 * count > 11 * planned and count - planned > safe_below
