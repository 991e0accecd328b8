"""Every step of a plan belongs to a resource change with the same address whose actions, or a finding, explain it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.documents.plan import VERIFY_OP

if TYPE_CHECKING:
    from jsplan.documents.plan import Plan, ResourceChange, Step

_CREATED, _CHANGED, _DELETED = ("create",), ("update",), ("delete",)
_RECREATED, _KEPT = ("delete", "create"), ("create", "delete")
#: The actions that explain an operation.
_ACTIONS_BY_OP: dict[str, set[tuple[str, ...]]] = {
    "stream.create": {_CREATED, _RECREATED},
    "stream.update": {_CHANGED, _KEPT},
    "stream.delete": {_DELETED, _RECREATED},
    "stream.restore": {_CREATED},
    "consumer.create": {_CREATED, _RECREATED, _KEPT},
    "consumer.update": {
        _CHANGED,
        _KEPT,
    },  # where two exchange filters, one lets go of its own first
    "consumer.pause": {_CHANGED},
    "consumer.delete": {_DELETED, _RECREATED},
    "consumer.replace": {_KEPT, _CREATED},
    "consumer.verify": {_CREATED},
    "consumer.cleanup": {_KEPT},
    "consumer.create_placeholder": {_CHANGED, _DELETED, _KEPT, _RECREATED, _CREATED},
    "consumer.delete_placeholder": {_CHANGED, _DELETED, _KEPT, _RECREATED, _CREATED},
    "origin.delete": {_RECREATED},
    "origin.create": {_RECREATED, _CREATED},
    "sources.detach": {_CHANGED},
    "sources.attach": {_CHANGED},
    "state.forget": {("forget",), _DELETED, _RECREATED, _KEPT},
    "state.update": {("no-op",)},
    "stream.activate": {_KEPT, _CHANGED},
    "stream.delete_staging": {_KEPT, _CHANGED},
    "stream.probe": {_KEPT},
    "stream.quiesce": {_KEPT},
    "stream.pause_consumers": {_KEPT},
    "stream.copy": {_KEPT},
    "stream.compare": {_KEPT},
    "stream.delete_old": {_KEPT},
    "stream.resume_consumers": {_KEPT, _CHANGED},
}
#: Findings that explain a step: an orphan is removed, a revert forgets what had been adopted.
_FINDINGS = {
    "stream.delete_staging": "JS428",
    "consumer.cleanup": "JS428",
    "consumer.delete_placeholder": "JS428",
    "state.forget": "JS494",
}


def require_explained(plan: Plan) -> Plan:
    """The plan itself. Raises AssertionError for a step that a reader of its resource changes and findings knows nothing of."""
    changes = {change.address: change for change in plan.resource_changes}
    silent = [
        f"{s.op} {s.address}: {s.title}"
        for s in plan.steps
        if not _is_explained(s, changes.get(s.address), plan, changes)
    ]
    assert silent == []
    return plan


def _is_explained(
    step: Step, change: ResourceChange | None, plan: Plan, changes: dict[str, ResourceChange]
) -> bool:
    if (
        step.op == VERIFY_OP
    ):  # reads only; the copy may be unmanaged, and then belongs to the change of its origin
        return change is not None or any(
            flow["origin"] in changes for flow in (step.params or {})["flows"]
        )
    if change is None:
        return False
    if step.op == "state.import":
        return change.change.importing is not None
    if tuple(change.change.actions) in _ACTIONS_BY_OP[step.op]:
        return True
    code = _FINDINGS.get(step.op)
    return any(d.code == code and d.address == step.address for d in plan.diagnostics)
