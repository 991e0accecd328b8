"""Each step of a plan is explained by a resource change or a finding of its address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.documents.step_kinds import VERIFY_OP

if TYPE_CHECKING:
    from jsplan.documents.plan import Plan, ResourceChange, Step

_CREATED, _CHANGED, _DELETED = ("create",), ("update",), ("delete",)
_RECREATED, _REPLACED = ("delete", "create"), ("create", "delete")
#: The actions that explain an operation.
_ACTIONS_BY_OP: dict[str, set[tuple[str, ...]]] = {
    "stream.create": {_CREATED, _RECREATED},
    "stream.update": {_CHANGED, _REPLACED},
    "stream.delete": {_DELETED, _RECREATED},
    "stream.restore": {_CREATED},
    "consumer.create": {_CREATED, _RECREATED, _REPLACED},
    # Where two consumers exchange filters, one gives up its own first.
    "consumer.update": {_CHANGED, _REPLACED},
    "consumer.pause": {_CHANGED},
    "consumer.delete": {_DELETED, _RECREATED},
    "consumer.replace": {_REPLACED, _CREATED},
    "consumer.verify": {_CREATED},
    "consumer.cleanup": {_REPLACED},
    "consumer.create_placeholder": {_CHANGED, _DELETED, _REPLACED, _RECREATED, _CREATED},
    "consumer.delete_placeholder": {_CHANGED, _DELETED, _REPLACED, _RECREATED, _CREATED},
    "origin.delete": {_RECREATED},
    "origin.create": {_RECREATED, _CREATED},
    "sources.detach": {_CHANGED},
    "sources.attach": {_CHANGED},
    "kv_entry.create": {_CREATED, _RECREATED},
    "kv_entry.update": {_CHANGED},
    "kv_entry.delete": {_DELETED},
    "object.create": {_CREATED, _RECREATED},
    "object.update": {_CHANGED},
    "object.delete": {_DELETED},
    "object.clean": {("no-op",)},
    "schedule.create": {_CREATED, _RECREATED},
    "schedule.update": {_CHANGED},
    "schedule.delete": {_DELETED},
    "account.create": {_CREATED},
    "account.update": {_CHANGED},
    "account.delete": {_DELETED},
    "state.forget": {("forget",), _DELETED, _RECREATED, _REPLACED},
    "state.update": {("no-op",)},
    "consumer.reset": {_CHANGED},
    "transfer.probe": {_REPLACED},
    "transfer.mirror": {_REPLACED, _CREATED},
    "transfer.compare": {_REPLACED, _CREATED},
    "transfer.quiesce": {_REPLACED, _CREATED},
    "transfer.promote": {_REPLACED, _CREATED},
    "transfer.copy": {_REPLACED, _CREATED},
    "transfer.retire": {_REPLACED},
    "transfer.consumers": {_REPLACED},
    "transfer.activate": {_REPLACED, _CREATED},
    "transfer.clear": {_REPLACED},
    "transfer.consumer": {_CREATED},
    "transfer.delete": {_DELETED, _RECREATED},
    "transfer.end": {_CHANGED},
    "transfer.undo": {_CHANGED},
    "transfer.release": {_CHANGED},
}
#: Findings that explain a step: an orphan is removed, a revert forgets an adopted resource.
_FINDINGS = {
    "transfer.clear": ("JS428",),
    "consumer.cleanup": ("JS424",),
    "consumer.delete_placeholder": ("JS428",),
    "state.forget": ("JS494",),
    "transfer.compare": ("JS496", "JS428"),
    "transfer.end": ("JS496",),
}


def require_explained(plan: Plan) -> Plan:
    """Return the plan; raise AssertionError for a step that nothing explains."""
    changes = {change.address: change for change in plan.resource_changes}
    unexplained = [
        f"{s.op} {s.address}: {s.title}"
        for s in plan.steps
        if not _is_explained(s, changes.get(s.address), plan, changes)
    ]
    assert unexplained == []
    return plan


def _is_explained(
    step: Step, change: ResourceChange | None, plan: Plan, changes: dict[str, ResourceChange]
) -> bool:
    # Only reads. The downstream stream may be unmanaged; then the change of its origin explains it.
    if step.op == VERIFY_OP:
        return change is not None or any(
            flow["origin"] in changes for flow in (step.params or {})["flows"]
        )
    if change is None:
        return False
    if step.op == "state.import":
        return change.change.importing is not None
    if tuple(change.change.actions) in _ACTIONS_BY_OP[step.op]:
        return True
    codes = _FINDINGS.get(step.op, ())
    return any(d.code in codes and d.address == step.address for d in plan.diagnostics)
