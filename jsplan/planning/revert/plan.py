"""Completes the plan of a revert: state records, and a warning about the files. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import Plan, Step
from jsplan.planning.decide import table_of
from jsplan.planning.diff import differing_fields
from jsplan.planning.merge import explicit_fields
from jsplan.planning.model import Findings, PlanInputs
from jsplan.planning.revert.targets import Target
from jsplan.units import count_text


def complete_plan(plan: Plan, targets: Sequence[Target]) -> None:
    """Let the steps restore the state records too, and forget what the apply had adopted."""
    plan.mode, plan.complete = "revert", False
    records = {str(target.address): target.record for target in targets}
    for step in plan.steps:
        if step.record is not None:
            step.record |= records.get(step.address, {})
    released = {str(target.address) for target in targets if target.is_released}
    for address in sorted(released & {step.address for step in plan.steps}):
        before = [step.id for step in plan.steps if step.address == address]
        number, title = len(plan.steps) + 1, f"forget {address}"
        plan.steps.append(Step(f"s{number}", address, "state.forget", title, None, {}, before))
        text = "is forgotten at the end, because the reverted apply had adopted it"
        note = Diagnostic("info", "JS494", text, "It stays on the server.", address)
        plan.diagnostics.append(note)


def warn_of_files(files: PlanInputs, targets: Iterable[Target]) -> Findings:
    """Warn about the targets that the next plan changes again, as far as the files show it.

    `files` are the inputs of what the files declare.
    """
    found = [str(each.address) for each in targets if _differs(files, each)]
    if found:
        many = count_text(len(found), "resource")
        text = f"the files still have the change of {many}: the next apply makes it again"
        lines = ["Change the files too, for example with git revert:", *sorted(found)]
        yield Diagnostic("warning", "JS492", text, "\n".join(lines))


def _differs(files: PlanInputs, target: Target) -> bool:
    """Check whether the files ask for something else than what was there before the apply."""
    address, before = target.address, target.declared
    if before is None or target.is_released:
        return address in files.workspace.resources
    if address not in files.workspace.resources:
        return True
    table, named = table_of(address), files.declared_fields(address)
    restored = table.compact(explicit_fields(before.body))
    removed = target.record.get("declared", {}).keys() - named.keys()
    return bool(differing_fields(table, restored, named) or removed & restored.keys())
