"""What a plan says about mirrors and sources that stay as they are: that one does not follow its origin, where one glance proves it.

`drift` and `status` look longer and say more: see the decision "Does it follow?".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jsplan.address import Address, matches
from jsplan.diagnostics import Diagnostic

if TYPE_CHECKING:
    from jsplan.context import Context
    from jsplan.jetstream import Pool
    from jsplan.planning.decide import ResourceDecision
    from jsplan.planning.model import PlanInputs
    from jsplan.workflows.replication_health import FlowHealth

NOT_REPLICATING = "JS457"
_NOT_REPLACED = (["no-op"], ["update"])


async def find_replication_warnings(
    world: Context, pool: Pool, inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> list[Diagnostic]:
    """A warning for each copy that is known not to follow. At most one more round trip, and none where all sequences agree."""
    copies = [
        address
        for address, verdict in verdicts.items()
        if _is_unchanged_downstream(verdict) and not _is_excluded(inputs, address)
    ]
    if not copies or inputs.request.destroy or inputs.request.imports:
        return []
    from jsplan.workflows.replication_health import ReplicationChecker  # noqa: PLC0415 - a plan without copies need not load it

    in_motion = {
        address for address, verdict in verdicts.items() if verdict.actions not in _NOT_REPLACED
    }
    found = await ReplicationChecker(world, pool, inputs.live).check_once(copies, in_motion)
    return [
        _build_warning(inputs, one)
        for one in found
        if one.assessment.healthy is False and not _is_reported_by_plan(inputs, one)
    ]


def _is_unchanged_downstream(verdict: ResourceDecision) -> bool:
    """Whether it copies something before and after the plan, and the plan does not change what."""
    copies = (
        verdict.address.kind != "consumer" and verdict.live is not None and bool(verdict.live.flows)
    )
    return (
        copies
        and verdict.actions in _NOT_REPLACED
        and not any(f.path.startswith(("mirror", "sources")) for f in verdict.fields)
    )


def _is_excluded(inputs: PlanInputs, address: Address) -> bool:
    """Whether it is in the middle of something, or somebody answers for it: the files ignore its drift, or mute all of it."""
    drift, day = inputs.workspace.drift, inputs.request.now.date().isoformat()
    known = any(matches(glob, address) for glob in drift.ignore)
    muted = any(
        matches(m.address, address) and not m.fields and (m.until is None or day <= m.until)
        for m in drift.mute
    )
    return known or muted or address in inputs.interrupted or address in inputs.detached_sources


def _is_reported_by_plan(inputs: PlanInputs, found: FlowHealth) -> bool:
    """Planning itself tells of origins that the files name and that are not there (JS452)."""
    from jsplan.health.causes import ORIGIN_MISSING  # noqa: PLC0415 - see above

    known = any(
        (edge.origin, edge.downstream) == (found.flow.origin, found.flow.downstream)
        for edge in inputs.topology.edges
    )
    return known and found.assessment.cause.startswith(ORIGIN_MISSING)


def _build_warning(inputs: PlanInputs, found: FlowHealth) -> Diagnostic:
    flow, declared = found.flow, inputs.declared(found.flow.downstream)
    verb = "mirror" if flow.kind == "mirror" else "source"
    text = f"its {verb} {flow.source} is not followed: {found.assessment.cause}"
    detail = "The plan leaves that as it is. What to do: the documentation, under Status and replication; jsplan drift looks for longer."
    return Diagnostic(
        "warning",
        NOT_REPLICATING,
        text,
        detail,
        str(flow.downstream),
        declared.range if declared is not None else None,
    )
