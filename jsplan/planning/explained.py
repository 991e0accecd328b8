"""Every step belongs to a resource change; what that does not explain is a finding. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import VERIFY, Change, Plan, ResourceChange
from jsplan.planning.verdict import GIVEN_UP

#: The finding about something that an interrupted apply left on a server.
ORPHAN = "JS428"
_ORPHAN_OF = "jsplan made it to replace a resource. Nothing else uses it."
#: Steps that remove it.
_REMOVES = ("consumer.cleanup", "stream.delete_staging")


def with_settled(plan: Plan) -> list[ResourceChange]:
    """The changes, and one for each resource whose only step ends a pending one in state."""
    known = {change.address for change in plan.resource_changes}
    rest = {step.address for step in plan.steps if step.op != VERIFY and step.address not in known}
    changes = [*plan.resource_changes, *(_settled(Address.parse(text)) for text in rest)]
    return sorted(changes, key=lambda change: Address.parse(change.address)) if rest else changes


def _settled(address: Address) -> ResourceChange:
    change = Change(["no-op"], None, None)
    return ResourceChange(str(address), address.kind, address.domain, address.name, change, "pending_step_recorded")


def orphans(plan: Plan) -> Iterable[Diagnostic]:
    """A note for each orphan that this plan removes: an interrupted replacement left it."""
    changes = plan.resource_changes
    replaced = {c.address for c in changes if len(c.change.actions) == 2 or c.action_reason == GIVEN_UP}
    for step in plan.steps:
        left_over = step.op == "consumer.delete_placeholder" and step.object == step.address
        if left_over or (step.op in _REMOVES and step.address not in replaced):
            left = f"{step.touches.name} in {step.domain}"
            text = f"an interrupted apply may have left {left}; it is removed"
            yield Diagnostic("info", ORPHAN, text, _ORPHAN_OF, step.address)
