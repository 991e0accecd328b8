"""A played case as text: both files, the load, the plan, expectations and findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsplan.documents.plan import Plan
    from tests.sequences.play import Outcome


def format_outcome(outcome: Outcome) -> str:
    """Everything that a reader needs to do it again by hand."""
    case = outcome.case
    parts = [f"=== {case.name}: {outcome.word}"]
    parts += ["--- before", yaml.safe_dump(case.before, sort_keys=False, width=150)]
    parts += ["--- load", *map(str, case.load)]
    parts += ["--- applied before", *map(str, case.first)] if case.first else []
    parts += ["--- second load", *map(str, case.second_load)] if case.second_load else []
    parts += ["--- edits", *map(str, case.edits)]
    parts += ["--- after", yaml.safe_dump(case.after, sort_keys=False, width=150)]
    parts += ["--- in between", *map(str, case.between)] if case.between else []
    parts += ["--- plan", *_plan(outcome.plan)] if outcome.plan else []
    parts += ["--- apply", outcome.output] if outcome.output else []
    parts += ["--- findings", *(map(str, outcome.findings) if outcome.findings else ["none"])]
    return "\n".join(parts)


def _plan(plan: Plan) -> Iterator[str]:
    for change in plan.resource_changes:
        fields = ", ".join(f"{f.path}: {f.before} -> {f.after}" for f in change.change.fields)
        if change.change.actions != ["no-op"] or change.hazards:
            yield f"{'/'.join(change.change.actions)} {change.address} {fields}"
        yield from (f"    ! {h.code}: {h.message}" for h in change.hazards)
    yield from (f"  {d.severity} {d.code} {d.address}: {d.summary}" for d in plan.diagnostics)
    yield from (f"  {s.id} {s.op} {s.object or s.address} after {s.depends_on}" for s in plan.steps)
