"""Warns in a plan about unchanged mirrors and sources that are provably not replicating.

`drift` and `status` take more samples and report more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jsplan.address import Address, matches, matches_any
from jsplan.diagnostics import Diagnostic

if TYPE_CHECKING:
    from jsplan.context import Session
    from jsplan.planning.model import PlanInputs, ResourceDecision
    from jsplan.replication.health import FlowHealth

NOT_REPLICATING = "JS457"
_NOT_REPLACED = (["no-op"], ["update"])


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
    from jsplan.replication.health import ReplicationChecker  # noqa: PLC0415

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
