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
from jsplan.planning.inputs import Inputs
from jsplan.planning.questions import new_origins
from jsplan.planning.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Unread:
    """An origin that does not answer, why, and its retention as far as files or state know it."""

    origin: Address
    reason: str
    retention: str | None


def unread_origins(inputs: Inputs, verdict: Verdict) -> Iterator[Unread]:
    """The origins that the stream begins to copy and that nobody could read, but for those known to keep what is copied."""
    if verdict.after is None or verdict.address.kind == "consumer" or verdict.actions[-1] not in ("create", "update"):
        return
    before = verdict.live.compact if verdict.live is not None and not verdict.deletes else {}
    new = {(origin["name"], (origin.get("external") or {}).get("api")) for origin in new_origins(before, verdict.after)}
    for edge in inputs.topology.edges if new else ():
        if edge.copy == verdict.address and (edge.config["name"], (edge.config.get("external") or {}).get("api")) in new:
            reason, retention = _silent(inputs, verdict.address, edge.origin), _retention(inputs, edge.origin)
            if reason and retention != "limits":
                yield Unread(edge.origin, reason, retention)


def _silent(inputs: Inputs, copy: Address, origin: Address) -> str:
    facts = inputs.live.domains.get(origin.domain)
    away = facts.reason if facts is not None and not facts.reachable else ""
    return inputs.unread.get(copy, {}).get(origin) or away


def _retention(inputs: Inputs, origin: Address) -> str | None:
    """As it was last applied, or as the files want it; None where nobody here knows the stream."""
    entry = inputs.entries.get(origin)
    if entry is not None:
        return str(entry.config.get("retention") or "limits")
    declared = inputs.topology.bodies.get(origin)
    return str(declared.get("retention") or "limits") if declared is not None else None


def with_unread(found: Sequence[Hazard], unread: Sequence[Unread]) -> list[Hazard]:
    """The one DELETES_MESSAGES of a resource, with origins that are known to be consumed and cannot be counted."""
    known = [one for one in unread if one.retention is not None]
    if not known:
        return list(found)
    names = ", ".join(str(one.origin) for one in known)
    text = f"copying removes messages from its origin {names}; their number is unknown ({known[0].reason})"
    if not found:
        return [Hazard("DELETES_MESSAGES", text, exact=False, at_least=0, causes=["origin"])]
    first, *rest = found
    least = first.messages if first.exact else first.at_least
    causes = list(dict.fromkeys([*first.causes, "origin"]))
    both = replace(first, message=f"{first.message}; {text}", messages=None, exact=False, at_least=least, at_most=None, causes=causes)
    return [both, *rest]


def unread_findings(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> Iterator[Diagnostic]:
    """A warning for each origin of which not even the retention is known."""
    for address, verdict in sorted(verdicts.items()):
        for one in unread_origins(inputs, verdict):
            if one.retention is None:
                text = f"its origin {one.origin} cannot be read: if it is a work queue or an interest stream, this copy takes its messages"
                declared = inputs.declared(address)
                yield Diagnostic("warning", "JS448", text, one.reason, str(address), declared.range if declared else None)
