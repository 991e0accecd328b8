"""`jsplan plan`: refresh, compare, show. Takes no lock; writes only the requested file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jsplan.cli.lazy import declare
from jsplan.cli.plan_options import build_plan_options, out_option, planning_options
from jsplan.cli.run import open_workspace
from jsplan.disk import display_path
from jsplan.errors import ExitCode

if TYPE_CHECKING:
    from jsplan.cli.output import Output
    from jsplan.documents.plan import Plan


@declare("plan", connects=True, examples=["jsplan plan", "jsplan plan -e prod -o prod.plan"])
@out_option
@click.option(
    "--destroy", is_flag=True, help="Plan to delete everything that this workspace manages."
)
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 2 if there are changes.")
@planning_options
@click.pass_context
def command(
    ctx: click.Context, /, out: Path | None, destroy: bool, detailed_exitcode: bool, **planning: Any
) -> int:
    """Show what apply would do. Change nothing.

    --format markdown is for a comment in code review, --format html for a browser. The signs are +
    create, ~ update in place, - delete, -/+ replace, > import or backfill, # forget and leave on
    the server, and ! for a hazard, which apply refuses until --allow-hazard allows it.
    """
    from jsplan.cli.views import PLAN_FORMATS, plan_result

    workspace, output = open_workspace(ctx, PLAN_FORMATS, collects_garbage=False)
    plan = workspace.plan(build_plan_options(planning, destroy=destroy))
    from jsplan.workflows.plan import save_plan

    if out is not None and not plan.errored:
        save_plan(plan, out)
    plan_result(output, plan)
    if out is not None and not plan.errored:
        print_saved(output, plan, out)
    code = exit_code_of(plan)
    if code == ExitCode.OK and detailed_exitcode and plan.has_changes:
        return ExitCode.CHANGES
    return code


def exit_code_of(plan: Plan) -> ExitCode:
    """Return the exit code of a plan that is only shown: ERROR, REFUSED or OK.

    A hazard without permission is OK, since the apply can still allow it.
    """
    from jsplan.planning.refusals import find_obstacles

    if plan.errored:
        return ExitCode.ERROR
    return ExitCode.REFUSED if any(find_obstacles(plan)) else ExitCode.OK


def print_saved(output: Output, plan: Plan, out: Path) -> None:
    """Print where the plan was saved, and how to apply it or why that is not possible."""
    from jsplan.planning.refusals import (
        find_missing_permissions,
        find_obstacles,
        join_flags,
    )

    shown = display_path(out)
    if obstacles := list(find_obstacles(plan)):
        lines = [f"  - {obstacle.reason} [{obstacle.code}]" for obstacle in obstacles]
        output.note("\n".join([f"\nSaved to {shown}. It cannot be applied:", *lines]))
    elif plan.has_changes:
        command = shlex.join(["jsplan", *output.settings.workspace_args(), "apply", shown])
        flags = join_flags(find_missing_permissions(plan))
        how = "Its hazards are not allowed yet. Allow them and apply" if flags else "Apply"
        output.note(f"\nSaved to {shown}. {how} exactly this with:\n  {command} {flags}".rstrip())
    else:
        output.note(f"\nSaved to {shown}.")
