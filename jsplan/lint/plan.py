"""Runs the lint rules that apply to a plan: some, over the changes, so that plans stay fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jsplan.planning.stranded import streams_with_new_subjects

if TYPE_CHECKING:
    from jsplan.address import Address
    from jsplan.diagnostics import Diagnostic
    from jsplan.lint.rule import Rule
    from jsplan.planning.model import PlanInputs, ResourceDecision

_UNCHANGED = (["no-op"], ["delete"], ["forget"])
#: A consumer whose filter matches no subject of its stream. Also checked for unchanged consumers.
FILTER_MATCHES_NOTHING = "JS241"


def lint_plan(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> list[Diagnostic]:
    """Return warnings about changes, and findings anywhere that the files make errors.

    Notes are for `lint` only. So are findings that planning itself reports with numbers.
    """
    request, strict = inputs.options, "error" in inputs.workspace.lint.values()
    if request.destroy or request.refresh_only or request.imports:
        return []
    changing = {a for a, decision in decisions.items() if decision.actions not in _UNCHANGED}
    if not changing and not strict:
        return []
    from jsplan.lint.rules import RULES  # noqa: PLC0415 - not needed for a plan without changes

    everything = (
        {a for a in inputs.selected if a in inputs.workspace.resources} if strict else set()
    )
    found = _run_rules(inputs, decisions, "error", RULES, everything)
    found += _run_rules(
        inputs, decisions, "warning", [rule for rule in RULES if rule.in_plan], changing
    )
    listening = _declared_consumers(inputs, streams_with_new_subjects(inputs, decisions)) - changing
    return found + _run_rules(
        inputs,
        decisions,
        "warning",
        [rule for rule in RULES if rule.code == FILTER_MATCHES_NOTHING],
        listening,
    )


def _declared_consumers(inputs: PlanInputs, streams: set[Address]) -> set[Address]:
    """Return the declared consumers of the streams."""
    declared = (a for a in inputs.workspace.resources if a.kind == "consumer")
    return {
        address
        for address in declared
        if address.parent is not None and inputs.topology.find_declared(address.parent) in streams
    }


def _run_rules(
    inputs: PlanInputs,
    decisions: Mapping[Address, ResourceDecision],
    level: str,
    rules: Sequence[Rule],
    focus: set[Address],
) -> list[Diagnostic]:
    from jsplan.lint.engine import enabled_rules, run_rules  # noqa: PLC0415 - see above
    from jsplan.lint.view import View  # noqa: PLC0415 - see above

    known = {
        address: decision.after
        for address, decision in decisions.items()
        if decision.after is not None
    }
    deleted = {a for a, decision in decisions.items() if decision.actions == ["delete"]}
    remaining = {a: found for a, found in inputs.live.objects.items() if a not in deleted}
    view = View(inputs.workspace, inputs.topology, remaining, inputs.live.domains, known, focus)
    wanted = enabled_rules(view, rules, [level]) if focus else []
    return run_rules(view, wanted, unused=False).findings if wanted else []
