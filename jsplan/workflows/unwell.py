"""What a plan says about mirrors and sources that stay as they are: that one does not follow its origin, where one glance proves it.

`drift` and `status` look longer and say more: see the decision "Does it follow?".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jsplan.address import Address, matches
from jsplan.diagnostics import Diagnostic

if TYPE_CHECKING:
    from jsplan.jetstream import Pool
    from jsplan.planning.inputs import Inputs
    from jsplan.planning.verdict import Verdict
    from jsplan.workflows.health import Found
    from jsplan.workflows.world import World

CODE = "JS457"
_STAYS = (["no-op"], ["update"])


async def unwell(world: World, pool: Pool, inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> list[Diagnostic]:
    """A warning for each copy that is known not to follow. At most one more round trip, and none where all sequences agree."""
    copies = [address for address, verdict in verdicts.items() if _goes_on(verdict) and not _settled(inputs, address)]
    if not copies or inputs.request.destroy or inputs.request.imports:
        return []
    from jsplan.workflows.health import Health  # noqa: PLC0415 - a plan without copies need not load it

    in_motion = {address for address, verdict in verdicts.items() if verdict.actions not in _STAYS}
    found = await Health(world, pool, inputs.live).glance(copies, in_motion)
    return [_told(inputs, one) for one in found if one.verdict.healthy is False and not _said(inputs, one)]


def _goes_on(verdict: Verdict) -> bool:
    """Whether it copies something before and after the plan, and the plan does not change what."""
    copies = verdict.address.kind != "consumer" and verdict.live is not None and bool(verdict.live.flows)
    return copies and verdict.actions in _STAYS and not any(f.path.startswith(("mirror", "sources")) for f in verdict.fields)


def _settled(inputs: Inputs, address: Address) -> bool:
    """Whether it is in the middle of something, or somebody answers for it: the files ignore its drift, or mute all of it."""
    drift, day = inputs.workspace.drift, inputs.request.now.date().isoformat()
    known = any(matches(glob, address) for glob in drift.ignore)
    muted = any(matches(m.address, address) and not m.fields and (m.until is None or day <= m.until) for m in drift.mute)
    return known or muted or address in inputs.under_way or address in inputs.taken_out


def _said(inputs: Inputs, found: Found) -> bool:
    """Planning itself tells of origins that the files name and that are not there (JS452)."""
    from jsplan.health.causes import ORIGIN_MISSING  # noqa: PLC0415 - see above

    known = any((edge.origin, edge.copy) == (found.flow.origin, found.flow.copy) for edge in inputs.topology.edges)
    return known and found.verdict.cause.startswith(ORIGIN_MISSING)


def _told(inputs: Inputs, found: Found) -> Diagnostic:
    flow, declared = found.flow, inputs.declared(found.flow.copy)
    verb = "mirror" if flow.kind == "mirror" else "source"
    text = f"its {verb} {flow.source} is not followed: {found.verdict.cause}"
    detail = "The plan leaves that as it is. What to do: the documentation, under Status and replication; jsplan drift looks for longer."
    return Diagnostic("warning", CODE, text, detail, str(flow.copy), declared.range if declared is not None else None)
