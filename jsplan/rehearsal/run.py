"""--rehearse: try a plan on embedded servers that are configured like the real ones.

The real servers are only read. A rehearsal that fails raises an error.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

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
from jsplan.sandbox.versions import find_release, list_available
from jsplan.units import count_text


async def rehearse(
    plan: Plan,
    workspace: Workspace,
    live: Live,
    pool: Pool,
    observer: Observer,
    parallelism: int = 10,
    server_version: str | None = None,
) -> None:
    """Execute the plan on embedded servers, without data, and add the findings to the plan.

    The servers are of the release nearest to the real one, or of `server_version`, which is
    downloaded if need be. A refusal makes the plan errored. Raises SandboxError when the rehearsal
    itself fails, such as without a nats-server.
    """
    steps = list_writing_steps(plan)
    if plan.errored or not steps:
        return
    try:
        programs = list_available() if server_version is None else find_release(server_version)
        observer.phase("Reading what the rehearsal needs")
        jetstreams = await read_jetstreams(pool, workspace, live, steps)
        if server_version is not None:
            jetstreams = [replace(each, version=next(iter(programs))) for each in jetstreams]
        layout = build_rehearsal_layout(
            [each for each in jetstreams if each.failure is None], steps, programs
        )
        observer.phase(f"Rehearsing {count_text(len(steps), 'step')} on embedded servers")
        positions = {address: declared.range for address, declared in workspace.resources.items()}
        outcomes = [
            await rehearse_round(plan, layout, sites, positions, parallelism)
            for sites in layout.rounds
        ]
    except (SandboxError, ApiError) as error:
        hint = error.hint or "Plan without --rehearse, which tries nothing."
        raise SandboxError(f"the rehearsal failed: {error}", hint=hint) from None
    unread = [each for each in jetstreams if each.failure is not None]
    outcomes += [
        RoundOutcome(
            not_tried=len(select_steps(plan, each.keys)),
            diagnostics=[not_rehearsed_warning(f"{each.key}/**", each.failure or "")],
        )
        for each in unread
    ]
    plan.diagnostics += server_warnings(layout)
    _record_outcomes(plan, Rehearsal(list_servers(layout.targets), len(steps)), outcomes)


def _record_outcomes(plan: Plan, rehearsal: Rehearsal, outcomes: Iterable[RoundOutcome]) -> None:
    """Add the outcomes to the plan. As with every error, a plan with a refusal has no steps."""
    for outcome in outcomes:
        plan.diagnostics += outcome.diagnostics
        rehearsal.refused += outcome.refused
        rehearsal.blocked += outcome.blocked
        rehearsal.not_tried += outcome.not_tried
    plan.rehearsal = rehearsal
    if rehearsal.refused:
        plan.errored, plan.applyable, plan.steps = True, False, []
