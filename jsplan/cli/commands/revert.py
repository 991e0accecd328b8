"""`jsplan revert ID`: plan the way back from an apply, show it, ask, and carry it out; or save it with -o."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jsplan.cli.lazy import declare
from jsplan.cli.planning import approval_options, backup_option, plan_options
from jsplan.cli.run import start
from jsplan.cli.types import AbsolutePath, AddressGlob, Duration, HazardPermission
from jsplan.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.workflows.reverting import RevertOptions

QUESTION = "Do you want jsplan to undo this?"


@declare("revert", examples=["jsplan revert 22", "jsplan revert 22 -o undo.plan"])
@click.argument("number", type=click.IntRange(min=1), metavar="ID")
@click.option("-o", "--out", type=AbsolutePath(), metavar="FILE", help="Save the plan, so that apply FILE does exactly this.")
@click.option("--target", multiple=True, type=AddressGlob(), metavar="ADDRESS", help="Undo only these resources; repeatable.")
@click.option("--exclude", multiple=True, type=AddressGlob(), metavar="ADDRESS", help="Skip these resources; repeatable.")
@click.option(
    "--allow-hazard", multiple=True, type=HazardPermission(), metavar="HAZARD[:ADDRESS]", help="Allow a hazard of the plan; repeatable."
)
@click.option(
    "--safe-below", type=click.IntRange(min=0), default=0, metavar="N", help="Do not count the deletion of at most N messages as a hazard."
)
@click.option(
    "--measure-limit", type=click.IntRange(min=0), default=100_000, show_default=True, metavar="N",
    help="Read at most N messages to count the deletions of one change; report bounds beyond that.",
)  # fmt: skip
@click.option(
    "--offline",
    type=click.Choice(("defer", "fail")),
    default="defer",
    show_default=True,
    help="How to treat an offline domain: leave its changes for a later apply, or stop.",
)
@click.option(
    "--parallelism",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Send at most N requests to a domain at once.",
)
@click.option(
    "--lock-timeout", type=Duration(), default="10s", show_default=True, metavar="DURATION", help="Wait this long for the state lock."
)
@backup_option
@approval_options
@click.pass_context
def command(ctx: click.Context, /, number: int, out: Path | None, auto_approve: bool, no_input: bool, **planning: Any) -> int:
    """Show how to undo the apply ID, ask, and undo it. `jsplan history` lists the IDs.

    The files do not change: jsplan prints what to write into them.
    """
    settings, output = start(ctx)
    from jsplan.workflows.reverting import RevertOptions

    options = RevertOptions(number, planning.pop("target"), planning.pop("exclude"), plan_options(planning))
    if out is not None:
        if options.planning.backup is not None or auto_approve:
            raise UsageError("-o only plans: --backup and --auto-approve go with applying it")
        return _planned(ctx, options, out)
    from jsplan.cli.reverting import RevertApproval, revert_result
    from jsplan.workflows.reverting import revert as revert_workflow

    approval = RevertApproval(output, auto_approve=auto_approve, no_input=no_input, question=QUESTION)
    with approval.interruptible() as approve:
        plan, result = revert_workflow(settings.load_options(), options, approve, output.progress)
    output.progress.stop()
    return revert_result(output, plan, result, shown=approval.shown)


def _planned(ctx: click.Context, options: RevertOptions, out: Path) -> int:
    settings, output = start(ctx)
    from jsplan.cli.commands.plan import saved
    from jsplan.cli.reverting import planned_result
    from jsplan.workflows.plan import save
    from jsplan.workflows.reverting import plan_revert

    plan = plan_revert(settings.load_options(), options, output.progress)
    output.progress.stop()
    if not plan.errored:
        save(plan, out)
    planned_result(output, plan)
    if plan.errored:
        return ExitCode.ERROR
    saved(output, plan, out)
    return ExitCode.OK
