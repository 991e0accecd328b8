"""Sources that read their origin through a consumer. They copy what that has not delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.address import Address
from jsplan.documents.plan import Hazard
from jsplan.planning.hazard_numbers import counted
from jsplan.planning.replication.checks import find_downstream
from jsplan.planning.replication.impact import origin_of
from jsplan.resources.consumer import filters_of
from jsplan.units import count_text

if TYPE_CHECKING:
    from jsplan.planning.model import Decisions, Hazards, PlanInputs, ResourceDecision


def assess_read_through(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> Hazards:
    """Yield the hazard of streams that read their origin through this consumer.

    They copy nothing without it, and only what its filters take.
    """
    parent, live = decision.address.parent, decision.live
    if decision.address.kind != "consumer" or parent is None or live is None:
        return
    filters = [sorted(filters_of(config)) for config in (live.compact, decision.planned)]
    if not decision.deletes and filters[0] == filters[1]:
        return
    readers = sorted(
        str(reader)
        for reader, _, flow in find_downstream(inputs, decisions, parent)
        if (flow.get("consumer") or {}).get("name") == decision.address.consumer
    )
    if readers:
        verb = "reads" if len(readers) == 1 else "read"
        text = f"{', '.join(readers)} {verb} {parent} through this consumer"
        yield Hazard("BREAKS_REPLICATION", text, causes=readers)


def assess_unfilled(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> Hazards:
    """Yield the hazard of a lost or recreated stream that its sources do not fill again.

    A server begins such a source where the consumer is (measured on 2.14 and 2.15).
    """
    is_lost = decision.reason == "create_because_missing"
    if not decision.address.is_stream or not (is_lost or decision.loses_content):
        return
    for source in decision.planned.get("sources") or ():
        name = (source.get("consumer") or {}).get("name")
        origin = origin_of(inputs, decision.address, source) if name else None
        if origin is None:
            continue
        consumer = Address(origin.domain, "consumer", f"{origin.stream}/{name}")
        stream, reader = inputs.live.get(origin), inputs.live.get(consumer)
        known = [decisions[a] for a in (origin, consumer) if a in decisions]
        if stream is None or any(v.loses_content or v.live is None for v in known):
            continue  # the consumer begins at its start
        pending = int(reader.state.get("num_pending") or 0) if reader is not None else 0
        if most := max(0, int(stream.state.get("messages") or 0) - pending):
            text = (
                f"up to {count_text(most, 'message')} of {origin} do not come again: consumer "
                f"{name} has delivered them. Set its position first"
            )
            yield counted("BREAKS_REPLICATION", text, most, causes=[str(origin)])
