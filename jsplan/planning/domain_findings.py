"""Findings of a plan about whole domains: offline, reinstalled, moved. Pure."""

from __future__ import annotations

from jsplan.planning.guards import check_environment, check_moves
from jsplan.planning.model import Decisions, Findings, PlanInputs
from jsplan.planning.never_answered_domains import check_never_answered
from jsplan.planning.offline_domains import check_overdue_domains
from jsplan.planning.reinstalled_domains import (
    check_reinstalled,
    find_emptied_domains,
    is_confirmed,
)
from jsplan.planning.replication.offline_retention import check_offline_retention


def check_domains(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Yield the findings about domains. A reinstalled domain is not also a wrong environment."""
    known = find_emptied_domains(inputs)
    for found in check_environment(
        inputs.entries, inputs.state, inputs.live, inputs.workspace.removed
    ):
        key = (found.address or "").partition("/")[0]
        if key not in known and not is_confirmed(inputs, key):
            yield found
    yield from check_reinstalled(inputs, decisions)
    yield from check_moves(inputs)
    yield from check_overdue_domains(inputs)
    yield from check_never_answered(inputs)
    yield from check_offline_retention(inputs, decisions)
