"""Interest streams that a stream does not read any more, or not for a while.

The server deletes its consumer there, and with it the messages that no other consumer wants.
"""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.address import Address
from jsplan.flows.graph import list_origins
from jsplan.planning.model import Decisions, Findings, PlanInputs, ResourceDecision
from jsplan.planning.replication.impact import find_interest_origins
from jsplan.resources.nested import origin_key


def find_left_origins(
    inputs: PlanInputs, decisions: Decisions, decision: ResourceDecision
) -> Iterator[Address]:
    """Yield the interest streams that stay and that this stream does not read for a while."""
    live = decision.live
    if live is None or not decision.address.is_stream or not (decision.writes or decision.deletes):
        return
    staying = [] if decision.deletes else list_origins(decision.planned)
    kept = {origin_key(flow): flow for _, flow in staying}
    left = [
        f
        for _, f in list_origins(live.compact)
        if kept.get(origin_key(f)) != f or origin_key(f) in decision.sources_to_detach
    ]
    for origin in find_interest_origins(inputs, decision.address, left):
        planned = decisions.get(inputs.topology.find_declared(origin))
        if planned is None or not planned.deletes:
            yield origin


def check_left_origins(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Warn about each interest stream that a stream does not read for a while.

    It acknowledges messages that no consumer wants, and does not store them (measured on 2.15).
    """
    for address, decision in sorted(inputs.touched(decisions).items()):
        if not (decision.replaces or decision.sources_to_detach) or decision.preserves:
            continue
        for origin in sorted(set(find_left_origins(inputs, decisions, decision))):
            text = (
                f"{origin} has interest retention, and stores nothing for it until it reads again: "
                "acknowledged messages that no other consumer wants are lost meanwhile"
            )
            detail = f"Change {origin} to limits retention before, or let publishers wait."
            yield inputs.finding("warning", "JS449", text, detail, address)
