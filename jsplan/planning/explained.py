"""Every step of a plan belongs to a resource change, and what the change does not explain is a finding. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import VERIFY, Change, Plan, ResourceChange
from jsplan.planning.verdict import GIVEN_UP

#: The finding about something that an interrupted apply left on a server.
ORPHAN = "JS428"
#: Steps that remove it.
_REMOVES = ("consumer.settle", "stream.clear")


def with_settled(plan: Plan) -> list[ResourceChange]:
    """The changes, with one for each resource whose only step ends what an interrupted apply left in state."""
    known = {change.address for change in plan.resource_changes}
    rest = {step.address for step in plan.steps if step.op != VERIFY and step.address not in known}
    changes = [*plan.resource_changes, *(_settled(Address.parse(text)) for text in rest)]
    return sorted(changes, key=lambda change: Address.parse(change.address)) if rest else changes


def _settled(address: Address) -> ResourceChange:
    change = Change(["no-op"], None, None)
    return ResourceChange(str(address), address.kind, address.domain, address.name, change, "settled")


def orphans(plan: Plan) -> Iterable[Diagnostic]:
    """A note for each object that this plan removes and that is no resource: an interrupted replacement left it on the server."""
    changes = plan.resource_changes
    replaced = {c.address for c in changes if len(c.change.actions) == 2 or c.action_reason == GIVEN_UP}
    for step in plan.steps:
        if step.op in _REMOVES and step.address not in replaced:
            text = f"an interrupted replacement may have left {step.touches.name} in {step.domain}; it is removed"
            yield Diagnostic("info", ORPHAN, text, "jsplan made it to replace this resource. Nothing else uses it.", step.address)
