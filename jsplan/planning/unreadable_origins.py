"""Origins that a new flow would consume and that cannot be read now.

A mirror or source of a work queue or interest stream takes its messages (server_semantics,
section 4). An origin that answers is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.documents.plan import Hazard
from jsplan.planning.measurements import new_origins
from jsplan.planning.model import Decisions, Findings, PlanInputs, ResourceDecision
from jsplan.resources.nested import origin_api


class UnreadableOrigin(Struct, frozen=True):
    """An origin that does not answer, the reason, and its retention if files or state know it."""

    origin: Address
    reason: str
    retention: str | None


def find_unreadable_origins(
    inputs: PlanInputs, decision: ResourceDecision
) -> Iterator[UnreadableOrigin]:
    """Yield the unreadable origins that the stream begins to copy and may consume."""
    writes = decision.actions[-1] in ("create", "update")
    if decision.after is None or decision.address.kind == "consumer" or not writes:
        return
    if inputs.continues_flows(decision.address):
        return
    before = decision.before if not decision.deletes else {}
    added = new_origins(before, decision.after)
    new = {(origin["name"], origin_api(origin)) for origin in added}
    for edge in inputs.topology.edges_into(decision.address) if new else ():
        if (edge.config["name"], origin_api(edge.config)) in new:
            reason = _unreadable_reason(inputs, decision.address, edge.origin)
            retention = _known_retention(inputs, edge.origin)
            if reason and retention != "limits":
                yield UnreadableOrigin(edge.origin, reason, retention)


def _unreadable_reason(inputs: PlanInputs, downstream: Address, origin: Address) -> str:
    facts = inputs.live.domains.get(origin.domain)
    offline = facts.reason if facts is not None and not facts.reachable else ""
    return inputs.measured.unreadable_origins.get(downstream, {}).get(origin) or offline


def _known_retention(inputs: PlanInputs, origin: Address) -> str | None:
    """Return the retention as last applied or as declared; None for an unknown stream."""
    entry = inputs.entries.get(origin)
    if entry is not None:
        return str(entry.config.get("retention") or "limits")
    declared = inputs.topology.bodies.get(origin)
    return str(declared.get("retention") or "limits") if declared is not None else None


def add_unreadable_origins(
    hazards: Sequence[Hazard], origins: Sequence[UnreadableOrigin]
) -> list[Hazard]:
    """Add origins that are consumed and cannot be counted to the DELETES_MESSAGES of a resource."""
    consumed = [item for item in origins if item.retention is not None]
    if not consumed:
        return list(hazards)
    names = ", ".join(str(item.origin) for item in consumed)
    text = (
        f"copying removes messages from its origin {names}; "
        f"their number is unknown ({consumed[0].reason})"
    )
    if not hazards:
        return [Hazard("DELETES_MESSAGES", text, exact=False, at_least=0, causes=["origin"])]
    first, *rest = hazards
    least = first.messages if first.exact else first.at_least
    causes = list(dict.fromkeys([*first.causes, "origin"]))
    both = replace(
        first,
        message=f"{first.message}; {text}",
        messages=None,
        exact=False,
        at_least=least,
        at_most=None,
        causes=causes,
    )
    return [both, *rest]


def check_unreadable_origins(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Warn about each origin whose retention is unknown."""
    for address, decision in sorted(decisions.items()):
        for origin in find_unreadable_origins(inputs, decision):
            if origin.retention is None:
                text = (
                    f"its origin {origin.origin} cannot be read. If it is a work queue or an "
                    "interest stream, this stream takes its messages"
                )
                yield inputs.finding("warning", "JS448", text, origin.reason, address)
