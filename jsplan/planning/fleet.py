"""What a plan finds about domains as a whole: who is away for too long, who came back empty, what would not last. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.planning.away import overdue
from jsplan.planning.guards import not_moved, wrong_environment
from jsplan.planning.inputs import Inputs
from jsplan.planning.outlast import outlasting
from jsplan.planning.reinstalled import confirmed, emptied, reinstalled
from jsplan.planning.unanswered import unanswered
from jsplan.planning.verdict import Verdict


def of_domains(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> Iterable[Diagnostic]:
    """Every finding about a domain. What is said of one that was reinstalled is not also said to be the wrong environment."""
    known = emptied(inputs)
    for found in wrong_environment(inputs.entries, inputs.state, inputs.live, inputs.workspace.removed):
        key = (found.address or "").partition("/")[0]
        if key not in known and not confirmed(inputs, key):
            yield found
    yield from reinstalled(inputs, verdicts)
    yield from not_moved(inputs)
    yield from overdue(inputs)
    yield from unanswered(inputs)
    yield from outlasting(inputs, verdicts)
