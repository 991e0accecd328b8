"""What of lint belongs into a plan: a few rules over what changes, so that plans stay quick and quiet. All of it is `lint`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jsplan.planning.stranded import streams_with_new_subjects

if TYPE_CHECKING:
    from jsplan.address import Address
    from jsplan.diagnostics import Diagnostic
    from jsplan.lint import Rule
    from jsplan.planning.decide import ResourceDecision
    from jsplan.planning.model import PlanInputs

_UNCHANGED = (["no-op"], ["delete"], ["forget"])
#: The rule about a consumer whose filter no subject of its stream passes. Said of one that stays as it is, too.
FILTER_MATCHES_NOTHING = "JS241"


def lint_plan(inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]) -> list[Diagnostic]:
    """What a plan says: warnings on what it creates or changes, and what the files make an error, wherever it is.

    Notes are left to `lint`, and so is what planning finds itself, with numbers.
    """
    request, strict = inputs.request, "error" in inputs.workspace.lint.values()
    if request.destroy or request.refresh_only or request.imports:
        return []
    changing = {a for a, verdict in verdicts.items() if verdict.actions not in _UNCHANGED}
    if not changing and not strict:
        return []
    from jsplan.lint import RULES  # noqa: PLC0415 - a plan without changes need not load forty rules

    everything = (
        {a for a in inputs.selected if a in inputs.workspace.resources} if strict else set()
    )
    found = _run_rules(inputs, verdicts, "error", RULES, everything)
    found += _run_rules(
        inputs, verdicts, "warning", [rule for rule in RULES if rule.in_plan], changing
    )
    listening = _declared_consumers(inputs, streams_with_new_subjects(inputs, verdicts)) - changing
    return found + _run_rules(
        inputs,
        verdicts,
        "warning",
        [rule for rule in RULES if rule.code == FILTER_MATCHES_NOTHING],
        listening,
    )


def _declared_consumers(inputs: PlanInputs, streams: set[Address]) -> set[Address]:
    """Their consumers that the files declare."""
    declared = (a for a in inputs.workspace.resources if a.parent is not None)
    return {
        address
        for address in declared
        if address.parent is not None and inputs.topology.find_declared(address.parent) in streams
    }


def _run_rules(
    inputs: PlanInputs,
    verdicts: Mapping[Address, ResourceDecision],
    level: str,
    rules: Sequence[Rule],
    focus: set[Address],
) -> list[Diagnostic]:
    from jsplan.lint import View, run_rules  # noqa: PLC0415 - see above
    from jsplan.lint.engine import enabled_rules  # noqa: PLC0415 - see above

    known = {
        address: verdict.after for address, verdict in verdicts.items() if verdict.after is not None
    }
    view = View(
        inputs.workspace, inputs.topology, inputs.live.objects, inputs.live.domains, known, focus
    )
    wanted = enabled_rules(view, rules, [level]) if focus else []
    return run_rules(view, wanted, unused=False).findings if wanted else []
