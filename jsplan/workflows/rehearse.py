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
from jsplan.rehearsal.findings import about_servers, not_rehearsed, servers
from jsplan.rehearsal.script import writing
from jsplan.rehearsal.shape import shape_of
from jsplan.rehearsal.surroundings import surroundings
from jsplan.rehearsal.turn import Outcome, rehearse_turn, steps_of
from jsplan.sandbox.versions import at_hand
from jsplan.workflows.options import Observer


async def rehearse(plan: Plan, workspace: Workspace, live: Live, pool: Pool, observer: Observer, parallelism: int = 10) -> None:
    """Carry the plan out on embedded servers, without data, and put the outcome into it; a refusal makes the plan errored.

    Raises SandboxError that says so when the rehearsal itself fails: no nats-server at hand, one that does not start.
    """
    steps = writing(plan)
    if plan.errored or not steps:
        return
    try:
        programs = at_hand()
        observer.phase("Reading what the rehearsal needs")
        ones = await surroundings(pool, workspace, live, steps)
        shape = shape_of([one for one in ones if one.unreadable is None], steps, programs)
        observer.phase(f"Rehearsing {len(steps):,} step{'' if len(steps) == 1 else 's'} on embedded servers")
        positions = {address: declared.range for address, declared in workspace.resources.items()}
        outcomes = [await rehearse_turn(plan, shape, turn, positions, parallelism) for turn in shape.turns]
    except (SandboxError, ApiError) as error:
        hint = error.hint or "Plan without --rehearse, which tries nothing."
        raise SandboxError(f"the rehearsal could not be carried out: {error}", hint=hint) from None
    unread = [one for one in ones if one.unreadable is not None]
    outcomes += [
        Outcome(left_out=len(steps_of(plan, one.keys)), diagnostics=[not_rehearsed(f"{one.key}/**", one.unreadable or "")])
        for one in unread
    ]  # fmt: skip
    plan.diagnostics += about_servers(shape)
    _write_down(plan, Rehearsal(servers(shape.places), len(steps)), outcomes)


def _write_down(plan: Plan, rehearsal: Rehearsal, outcomes: Iterable[Outcome]) -> None:
    """The outcome in the plan. As with every error, a plan with a refusal has no steps."""
    for outcome in outcomes:
        plan.diagnostics += outcome.diagnostics
        rehearsal.refused += outcome.refused
        rehearsal.behind += outcome.behind
        rehearsal.left_out += outcome.left_out
    plan.rehearsal = rehearsal
    if rehearsal.refused:
        plan.errored, plan.applyable, plan.steps = True, False, []
