"""`jsplan revert ID`: plan how to undo an apply, show it, ask, and undo it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jsplan.cli.lazy import declare
from jsplan.cli.plan_options import (
    addresses_option,
    adopt_option,
    approval_options,
    backup_option,
    build_plan_options,
    exclude_option,
    hazard_option,
    lock_timeout_option,
    measure_limit_option,
    offline_option,
    out_option,
    parallelism_option,
    safe_below_option,
)
from jsplan.cli.run import start
from jsplan.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.workflows.revert import RevertOptions

QUESTION = "Do you want jsplan to undo this?"


@declare("revert", connects=True, examples=["jsplan revert 22", "jsplan revert 22 -o undo.plan"])
@click.argument("number", type=click.IntRange(min=1), metavar="ID")
@out_option
@addresses_option("--target", "Undo only these resources; repeatable.")
@exclude_option
@hazard_option
@adopt_option
@safe_below_option
@measure_limit_option
@offline_option
@parallelism_option
@lock_timeout_option
@backup_option
@approval_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    number: int,
    out: Path | None,
    auto_approve: bool,
    no_input: bool,
    **planning: Any,
) -> int:
    """Show how to undo the apply ID, ask, and undo it. `jsplan history` lists the IDs.

    The files do not change: change them too, or the next apply makes the same change again.
    """
    settings, output = start(ctx)
    from jsplan.workflows.revert import RevertOptions

    options = RevertOptions(
        number, planning.pop("target"), planning.pop("exclude"), build_plan_options(planning)
    )
    if out is not None:
        if options.planning.backup is not None or auto_approve:
            raise UsageError(
                "-o only plans; it cannot be combined with --backup and --auto-approve"
            )
        return _save_plan(ctx, options, out)
    from jsplan.cli.approval import ask_and_apply
    from jsplan.workflows.revert import revert

    return ask_and_apply(
        output,
        lambda approve: revert(settings.load_options(), options, approve, output.progress),
        QUESTION,
        "revert -o FILE",
        auto_approve=auto_approve,
        no_input=no_input,
    )


def _save_plan(ctx: click.Context, options: RevertOptions, out: Path) -> int:
    settings, output = start(ctx)
    from jsplan.cli.commands.plan import exit_code_of, print_saved
    from jsplan.cli.views import plan_result
    from jsplan.workflows.plan import save_plan
    from jsplan.workflows.revert import plan_revert

    plan = plan_revert(settings.load_options(), options, output.progress)
    if not plan.errored:
        save_plan(plan, out)
    plan_result(output, plan)
    if not plan.errored:
        print_saved(output, plan, out)
    return exit_code_of(plan)
