"""Every step of a plan belongs to a resource change with the same address whose actions, or a finding, explain it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.documents.plan import VERIFY

if TYPE_CHECKING:
    from jsplan.documents.plan import Plan, ResourceChange, Step

_MADE, _CHANGED, _GONE = ("create",), ("update",), ("delete",)
_RECREATED, _KEPT = ("delete", "create"), ("create", "delete")
#: The actions that explain an operation.
_BY: dict[str, set[tuple[str, ...]]] = {
    "stream.create": {_MADE, _RECREATED},
    "stream.update": {_CHANGED, _KEPT},
    "stream.delete": {_GONE, _RECREATED},
    "stream.restore": {_MADE},
    "consumer.create": {_MADE, _RECREATED, _KEPT},
    "consumer.update": {_CHANGED, _KEPT},  # where two exchange filters, one lets go of its own first
    "consumer.pause": {_CHANGED},
    "consumer.delete": {_GONE, _RECREATED},
    "consumer.replace": {_KEPT, _MADE},
    "consumer.verify": {_MADE},
    "consumer.cleanup": {_KEPT},
    "consumer.create_placeholder": {_CHANGED, _GONE, _KEPT, _RECREATED, _MADE},
    "consumer.delete_placeholder": {_CHANGED, _GONE, _KEPT, _RECREATED, _MADE},
    "origin.delete": {_RECREATED},
    "origin.create": {_RECREATED, _MADE},
    "sources.detach": {_CHANGED},
    "sources.attach": {_CHANGED},
    "state.forget": {("forget",), _GONE, _RECREATED, _KEPT},
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
_FINDINGS = {"stream.delete_staging": "JS428", "consumer.cleanup": "JS428", "consumer.delete_placeholder": "JS428", "state.forget": "JS494"}


def require_explained(plan: Plan) -> Plan:
    """The plan itself. Raises AssertionError for a step that a reader of its resource changes and findings knows nothing of."""
    changes = {change.address: change for change in plan.resource_changes}
    silent = [f"{s.op} {s.address}: {s.title}" for s in plan.steps if not _explained(s, changes.get(s.address), plan, changes)]
    assert silent == []
    return plan


def _explained(step: Step, change: ResourceChange | None, plan: Plan, changes: dict[str, ResourceChange]) -> bool:
    if step.op == VERIFY:  # reads only; the copy may be unmanaged, and then belongs to the change of its origin
        return change is not None or any(flow["origin"] in changes for flow in (step.params or {})["flows"])
    if change is None:
        return False
    if step.op == "state.import":
        return change.change.importing is not None
    if tuple(change.change.actions) in _BY[step.op]:
        return True
    code = _FINDINGS.get(step.op)
    return any(d.code == code and d.address == step.address for d in plan.diagnostics)
