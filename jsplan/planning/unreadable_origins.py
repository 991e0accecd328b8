"""Origins that a new copy would consume and that cannot be read now: said, with what is known of them, never passed over.

A copy of a work queue or an interest stream takes its messages (server_semantics, section 4). How many is measured in
`facts.measure` where the origin answers; here is what is left where it does not. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import Hazard
from jsplan.planning.decide import ResourceDecision
from jsplan.planning.measurements import new_origins
from jsplan.planning.model import PlanInputs


@dataclass(frozen=True, slots=True)
class UnreadableOrigin:
    """An origin that does not answer, why, and its retention as far as files or state know it."""

    origin: Address
    reason: str
    retention: str | None


def find_unreadable_origins(
    inputs: PlanInputs, verdict: ResourceDecision
) -> Iterator[UnreadableOrigin]:
    """The origins that the stream begins to copy and that nobody could read, but for those known to keep what is copied."""
    if (
        verdict.after is None
        or verdict.address.kind == "consumer"
        or verdict.actions[-1] not in ("create", "update")
    ):
        return
    before = verdict.live.compact if verdict.live is not None and not verdict.deletes else {}
    new = {
        (origin["name"], (origin.get("external") or {}).get("api"))
        for origin in new_origins(before, verdict.after)
    }
    for edge in inputs.topology.edges if new else ():
        if (
            edge.downstream == verdict.address
            and (edge.config["name"], (edge.config.get("external") or {}).get("api")) in new
        ):
            reason, retention = (
                _unreadable_reason(inputs, verdict.address, edge.origin),
                _known_retention(inputs, edge.origin),
            )
            if reason and retention != "limits":
                yield UnreadableOrigin(edge.origin, reason, retention)


def _unreadable_reason(inputs: PlanInputs, downstream: Address, origin: Address) -> str:
    facts = inputs.live.domains.get(origin.domain)
    away = facts.reason if facts is not None and not facts.reachable else ""
    return inputs.unreadable_origins.get(downstream, {}).get(origin) or away


def _known_retention(inputs: PlanInputs, origin: Address) -> str | None:
    """As it was last applied, or as the files want it; None where nobody here knows the stream."""
    entry = inputs.entries.get(origin)
    if entry is not None:
        return str(entry.config.get("retention") or "limits")
    declared = inputs.topology.bodies.get(origin)
    return str(declared.get("retention") or "limits") if declared is not None else None


def add_unreadable_origins(
    hazards: Sequence[Hazard], origins: Sequence[UnreadableOrigin]
) -> list[Hazard]:
    """The one DELETES_MESSAGES of a resource, with origins that are known to be consumed and cannot be counted."""
    known = [one for one in origins if one.retention is not None]
    if not known:
        return list(hazards)
    names = ", ".join(str(one.origin) for one in known)
    text = f"copying removes messages from its origin {names}; their number is unknown ({known[0].reason})"
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


def check_unreadable_origins(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> Iterator[Diagnostic]:
    """A warning for each origin of which not even the retention is known."""
    for address, verdict in sorted(verdicts.items()):
        for one in find_unreadable_origins(inputs, verdict):
            if one.retention is None:
                text = f"its origin {one.origin} cannot be read: if it is a work queue or an interest stream, this copy takes its messages"
                declared = inputs.declared(address)
                yield Diagnostic(
                    "warning",
                    "JS448",
                    text,
                    one.reason,
                    str(address),
                    declared.range if declared else None,
                )
