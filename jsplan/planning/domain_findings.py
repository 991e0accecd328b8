"""What a plan finds about domains as a whole: who is away for too long, who came back empty, what would not last. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.planning.decide import ResourceDecision
from jsplan.planning.guards import check_environment, check_moves
from jsplan.planning.model import PlanInputs
from jsplan.planning.never_answered_domains import check_never_answered
from jsplan.planning.offline_domains import check_overdue_domains
from jsplan.planning.reinstalled_domains import (
    check_reinstalled,
    find_emptied_domains,
    is_confirmed,
)
from jsplan.planning.replication.offline_retention import check_offline_retention


def check_domains(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> Iterable[Diagnostic]:
    """Every finding about a domain. What is said of one that was reinstalled is not also said to be the wrong environment."""
    known = find_emptied_domains(inputs)
    for found in check_environment(
        inputs.entries, inputs.state, inputs.live, inputs.workspace.removed
    ):
        key = (found.address or "").partition("/")[0]
        if key not in known and not is_confirmed(inputs, key):
            yield found
    yield from check_reinstalled(inputs, verdicts)
    yield from check_moves(inputs)
    yield from check_overdue_domains(inputs)
    yield from check_never_answered(inputs)
    yield from check_offline_retention(inputs, verdicts)
