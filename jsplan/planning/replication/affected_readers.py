"""Effects of an origin on the streams that read it: drained, or expired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.address import Address
from jsplan.planning.decide import planned_config
from jsplan.planning.hazard_numbers import counted
from jsplan.planning.replication.checks import find_downstream
from jsplan.planning.replication.impact import begins_to_queue, leaves_markers_sooner
from jsplan.units import count_text

if TYPE_CHECKING:
    from jsplan.planning.model import Decisions, Hazards, PlanInputs, ResourceDecision


def assess_drained(inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions) -> Hazards:
    """Yield the hazard of a stream that begins to delete what existing readers copy of it.

    That is a work queue. What an interest stream deletes is measured.
    """
    live = decision.live
    if live is None or not live.state.get("messages") or decision.loses_content:
        return
    if not decision.writes or not begins_to_queue(live.compact, decision.after):
        return
    readers = sorted({flow[0] for flow in find_downstream(inputs, decisions, decision.address)})
    if readers:
        count, names = int(live.state["messages"]), [str(reader) for reader in readers]
        text = (
            f"{', '.join(names)} may take up to {count_text(count, 'message')} out of it: "
            "a work queue loses what is copied"
        )
        yield counted("DELETES_MESSAGES", text, count, causes=names)


def assess_markers(inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions) -> Hazards:
    """Yield the hazard of streams that keep longer what a stream will let expire.

    Its markers come to them, too, and replace what they have of these subjects.
    """
    if not decision.address.is_stream or not leaves_markers_sooner(decision):
        return
    age, pending, found = int(decision.planned["max_age"]), [decision.address], dict[Address, int]()
    seen = {decision.address}
    while pending:
        for reader, _, _ in find_downstream(inputs, decisions, pending.pop()):
            if reader in seen:
                continue
            seen.add(reader)
            pending.append(reader)
            live, config = inputs.live.get(reader), planned_config(inputs, decisions, reader) or {}
            has = int(live.state.get("messages") or 0) if live is not None else 0
            history = int(config.get("max_msgs_per_subject") or 0)
            obeys = config.get("allow_rollup_hdrs") or history > 0
            if has and obeys and not 0 < int(config.get("max_age") or 0) <= age:
                found[reader] = has
    if found:
        total, names = sum(found.values()), sorted(map(str, found))
        text = (
            f"{', '.join(names)} may lose up to {count_text(total, 'message')}: the markers of "
            "expired subjects are copied, and replace what is kept there"
        )
        yield counted("DELETES_MESSAGES", text, total, causes=names)
