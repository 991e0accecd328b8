"""Completes the plan of a restore: hints, state records, and what the backup holds. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jsplan.address import Address
from jsplan.documents.plan import Plan
from jsplan.planning.model import PlanInputs
from jsplan.planning.restore.decisions import AS_SAVED
from jsplan.planning.restore.obstacles import with_restore_hints
from jsplan.planning.restore.selection import Backup


def complete_plan(plan: Plan, backup: Backup, folder: Path, files: PlanInputs) -> None:
    """Let state record what the files declare, and show what the backup in `folder` holds.

    `files` are the inputs of the workspace itself. What no file declares comes back unmanaged; of
    the rest state has the declared fields with their restored values, so that the next plan shows
    the differences.
    """
    plan.mode, plan.deferred = "restore", []
    plan.diagnostics = with_restore_hints(plan.diagnostics)
    for step in plan.steps:
        step.record = _record(files, Address.parse(step.address), step.record or {})
    there = {c.address for c in plan.resource_changes if c.action_reason == AS_SAVED}
    plan.options["folder"] = str(folder)
    plan.options["restore"] = [
        {
            "address": str(address),
            "from": target.saved.address,
            "messages": target.saved.messages,
            "bytes": int(target.saved.before["bytes"]),
            "consumers": len(target.saved.consumers),
            "taken_at": target.saved.taken_at,
            "exists": str(address) in there,
        }
        for address, target in sorted(backup.items())
    ]


def _record(files: PlanInputs, address: Address, restored: dict[str, Any]) -> dict[str, Any] | None:
    declared, entry = files.workspace.resources.get(address), files.entries.get(address)
    if declared is None:
        return None
    values = restored["declared"]
    # It stands where it stood: no `position` that was set before is set again.
    word = declared.position.once if declared.position is not None else ""
    word = word if entry is None else entry.position_once
    return restored | {
        "declared": {name: values.get(name) for name in files.declared_fields(address)},
        "depends_on": files.topology.dependency_names(address),
        **({"position_once": word} if word else {}),
    }
