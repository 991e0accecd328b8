"""Streams that cannot be copied because all places of consumers are taken. Pure.

The server reads an origin with a consumer of its own. Up to 2.14 it refuses that one too where
`max_consumers` is reached, although it does not count (10026, measured). A flow that exists stops
only when it reconnects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from jsplan.config.findings import Problem
from jsplan.facts.live import account_limits
from jsplan.planning.consumer_count import consumers_by_stream, count_existing, count_stream
from jsplan.planning.decide import planned_config
from jsplan.planning.model import Decisions, ResourceDecision
from jsplan.resources.server_features import OWN_CONSUMER_LEVEL
from jsplan.resources.stream import max_consumers

if TYPE_CHECKING:
    from jsplan.address import Address
    from jsplan.planning.model import PlanInputs
    from jsplan.resources.fields import Config
    from jsplan.topology import Edge


_WHY: Final = "and before nats-server 2.15 the server needs a place to read it (10026)"


class FullOrigin(Struct, frozen=True):
    """A flow whose origin has no place left after the plan.

    `filling` are the changes that fill it, empty if it is full already.
    """

    flow: Edge
    filling: tuple[ResourceDecision, ...]


def find_full_origins(inputs: PlanInputs, decisions: Decisions) -> Iterator[FullOrigin]:
    """Yield the flows that cannot connect after the plan."""
    consumers = consumers_by_stream(inputs, decisions) if inputs.topology.edges else {}
    for flow in inputs.topology.edges:
        address, origin = flow.origin, planned_config(inputs, decisions, flow.origin)
        limit = _consumer_limit(inputs, address, origin)
        if not limit or planned_config(inputs, decisions, flow.downstream) is None:
            continue
        count = count_stream(inputs, decisions, address, consumers.get(address, []))
        if count.total >= limit:
            stream = decisions.get(address)
            filling = [*count.created[::-1], *([stream] if stream and stream.writes else [])]
            yield FullOrigin(flow, () if _is_full(inputs, address) else tuple(filling))


def find_refused_copies(
    inputs: PlanInputs, decisions: Decisions
) -> Iterator[tuple[ResourceDecision, Problem]]:
    """Yield the changes after which a flow cannot connect, and replacements that cannot copy."""
    for full in find_full_origins(inputs, decisions):
        flow = full.flow
        ends = (decisions.get(flow.origin), decisions.get(flow.downstream))
        starting = [v for v in ends if v is not None and v.writes and starts_copying(v)]
        for decision in (*full.filling, *starting)[:1]:
            text = (
                f"{flow.downstream} cannot copy {flow.origin}: its consumers reach max_consumers, "
                f"{_WHY}"
            )
            detail = "Raise max_consumers by one, or remove a consumer."
            yield decision, Problem("JS439", "max_consumers", text, detail)
    for address, decision in decisions.items():
        copies = decision.preserves and address.is_stream
        if copies and address not in inputs.interrupted.streams and _is_full(inputs, address):
            text = f"its messages cannot be copied: its consumers reach max_consumers, {_WHY}"
            detail = "Remove a consumer first, in a plan of its own."
            yield decision, Problem("JS439", "max_consumers", text, detail)


def starts_copying(decision: ResourceDecision | None) -> bool:
    """Check whether the plan creates the stream or changes its origins."""
    if decision is None or decision.replaces or decision.live is None:
        return decision is not None
    return any(change.path in ("mirror", "sources") for change in decision.fields)


def _is_full(inputs: PlanInputs, stream: Address) -> bool:
    """Check whether the stream has no place now for the server's own consumer."""
    live = inputs.live.get(stream)
    limit = _consumer_limit(inputs, stream, live.compact if live is not None else None)
    return live is not None and 0 < limit <= count_existing(inputs, live)


def _consumer_limit(inputs: PlanInputs, stream: Address, config: Config | None) -> int:
    """Return how many consumers leave no place for that of the server; 0 for any number."""
    facts = inputs.live.domains.get(stream.domain)
    if config is None or facts is None or not facts.reachable or facts.level >= OWN_CONSUMER_LEVEL:
        return 0
    account = account_limits(facts.info, int(config.get("num_replicas", 1)))
    limits = (max_consumers(config), int(account.get("max_consumers") or 0))
    return min((limit for limit in limits if limit > 0), default=0)
