"""Steps without a change of their resource: closing changes and orphans."""

from __future__ import annotations

from collections.abc import Iterable

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import Change, Plan, ResourceChange
from jsplan.documents.step_kinds import VERIFY_OP
from jsplan.planning.decide import REPLACEMENT_ROLLED_BACK

#: The finding about something that an interrupted apply left on a server.
ORPHAN = "JS428"
_ORPHAN_DETAIL = "jsplan made it to replace a resource. Nothing else uses it."


def add_closing_changes(plan: Plan) -> list[ResourceChange]:
    """Return the changes, with one more for each resource whose only step closes a pending one."""
    known = {change.address for change in plan.resource_changes}
    rest = {step.address for step in plan.steps if step.op != VERIFY_OP} - known
    if not rest:
        return plan.resource_changes
    closing = (
        ResourceChange.of(address, Change(["no-op"], None, None), "pending_step_recorded")
        for address in map(Address.parse, rest)
    )
    changes = [*plan.resource_changes, *closing]
    return sorted(changes, key=lambda change: Address.parse(change.address))


def note_orphans(plan: Plan) -> Iterable[Diagnostic]:
    """Note each orphan that this plan removes."""
    changes = plan.resource_changes
    replaced = {
        c.address
        for c in changes
        if len(c.change.actions) == 2 or c.action_reason == REPLACEMENT_ROLLED_BACK
    }
    for step in plan.steps:
        left_over = step.op == "consumer.delete_placeholder" and step.object == step.address
        if left_over or (step.op == "transfer.clear" and step.address not in replaced):
            name = f"{step.target_address.name} in {step.domain}"
            text = f"an interrupted apply may have left {name}; it is removed"
            yield Diagnostic("info", ORPHAN, text, _ORPHAN_DETAIL, step.address)
