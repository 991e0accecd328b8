"""--rehearse: try a plan on embedded servers first, configured as the real ones are, and write into it what they refuse.

The real servers are only read. A rehearsal that cannot be carried out raises; it never pretends.
"""

from __future__ import annotations

from collections.abc import Iterable

from jsplan.config.model import Workspace
from jsplan.documents.plan import Plan, Rehearsal
from jsplan.errors import ApiError, SandboxError
from jsplan.facts.live import Live
from jsplan.jetstream import Pool
from jsplan.options import Observer
from jsplan.rehearsal.findings import list_servers, not_rehearsed_warning, server_warnings
from jsplan.rehearsal.layout import build_rehearsal_layout
from jsplan.rehearsal.live_snapshot import read_jetstreams
from jsplan.rehearsal.round import RoundOutcome, rehearse_round, select_steps
from jsplan.rehearsal.steps import list_writing_steps
from jsplan.sandbox.versions import list_available


async def rehearse(
    plan: Plan,
    workspace: Workspace,
    live: Live,
    pool: Pool,
    observer: Observer,
    parallelism: int = 10,
) -> None:
    """Carry the plan out on embedded servers, without data, and put the outcome into it; a refusal makes the plan errored.

    Raises SandboxError that says so when the rehearsal itself fails: no nats-server at hand, one that does not start.
    """
    steps = list_writing_steps(plan)
    if plan.errored or not steps:
        return
    try:
        programs = list_available()
        observer.phase("Reading what the rehearsal needs")
        ones = await read_jetstreams(pool, workspace, live, steps)
        shape = build_rehearsal_layout(
            [one for one in ones if one.failure is None], steps, programs
        )
        observer.phase(
            f"Rehearsing {len(steps):,} step{'' if len(steps) == 1 else 's'} on embedded servers"
        )
        positions = {address: declared.range for address, declared in workspace.resources.items()}
        outcomes = [
            await rehearse_round(plan, shape, turn, positions, parallelism) for turn in shape.rounds
        ]
    except (SandboxError, ApiError) as error:
        hint = error.hint or "Plan without --rehearse, which tries nothing."
        raise SandboxError(f"the rehearsal could not be carried out: {error}", hint=hint) from None
    unread = [one for one in ones if one.failure is not None]
    outcomes += [
        RoundOutcome(
            left_out=len(select_steps(plan, one.keys)),
            diagnostics=[not_rehearsed_warning(f"{one.key}/**", one.failure or "")],
        )
        for one in unread
    ]
    plan.diagnostics += server_warnings(shape)
    _record_outcomes(plan, Rehearsal(list_servers(shape.targets), len(steps)), outcomes)


def _record_outcomes(plan: Plan, rehearsal: Rehearsal, outcomes: Iterable[RoundOutcome]) -> None:
    """The outcome in the plan. As with every error, a plan with a refusal has no steps."""
    for outcome in outcomes:
        plan.diagnostics += outcome.diagnostics
        rehearsal.refused += outcome.refused
        rehearsal.behind += outcome.behind
        rehearsal.left_out += outcome.left_out
    plan.rehearsal = rehearsal
    if rehearsal.refused:
        plan.errored, plan.applyable, plan.steps = True, False, []
