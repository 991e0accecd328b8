"""`jsplan apply [PLANFILE]`: plan, show, ask, apply; with a file, apply exactly that plan."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from jsplan.cli.lazy import declare
from jsplan.cli.plan_options import (
    approval_options,
    backup_option,
    build_plan_options,
    move_options,
    number_option,
    planning_options,
    refuse_plan_options,
)
from jsplan.cli.run import open_workspace
from jsplan.cli.types import PlanFile, Waves
from jsplan.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

QUESTION = "Do you want jsplan to do this?"


@declare(
    "apply",
    connects=True,
    examples=[
        "jsplan apply",
        "jsplan apply prod.plan",
        "jsplan apply --wave label:canary,10%,100%",
    ],
)
@click.argument("planfile", required=False, type=PlanFile())
@click.option(
    "--wave",
    type=Waves(),
    metavar="WAVES",
    help="Apply domain by domain, and check the replication after each wave.",
)
@number_option(
    "--max-failures",
    "Start the next wave only if at most N domains of this one failed.",
    0,
    least=0,
)
@click.option(
    "--deferred",
    is_flag=True,
    help="Apply only what an earlier apply of PLANFILE deferred, because domains were offline.",
)
@move_options
@backup_option
@approval_options
@planning_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    planfile: Path | None,
    auto_approve: bool,
    no_input: bool,
    **planning: Any,
) -> int:
    """Show the plan, ask for approval, and apply it.

    With PLANFILE, apply exactly that saved plan without a question.
    """
    planning["waves"] = planning.pop("wave") or ()
    if planning["max_failures"] and not planning["waves"]:
        raise UsageError("--max-failures requires --wave")
    if planfile is not None:
        return _apply_saved(ctx, planfile, planning)
    if planning["deferred"]:
        raise UsageError(
            "--deferred needs the plan file of an earlier apply",
            hint="Name it: jsplan apply PLANFILE --deferred",
        )
    workspace, output = open_workspace(ctx)
    options = build_plan_options(planning)
    from jsplan.cli.approval import ask_and_apply

    run = partial(workspace.plan_and_apply, options)
    return ask_and_apply(
        output, run, QUESTION, "plan -o FILE", auto_approve=auto_approve, no_input=no_input
    )


def _apply_saved(ctx: click.Context, planfile: Path, planning: dict[str, Any]) -> int:
    workspace, output = open_workspace(ctx)
    refuse_plan_options(ctx)
    options = build_plan_options(planning)
    from jsplan.cli.views import apply_result

    plan, result = workspace.apply_saved(planfile, options)
    return apply_result(output, plan, result, shown=False)
