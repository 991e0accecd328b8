"""`jsplan destroy`: the apply of a plan with an empty desired side."""

from __future__ import annotations

from typing import Any

import click

from jsplan.cli.lazy import declare
from jsplan.cli.plan_options import (
    approval_options,
    backup_option,
    build_plan_options,
    destroy_options,
)
from jsplan.cli.run import start

QUESTION = "Do you really want to destroy all of this? There is no way back."


@declare(
    "destroy",
    connects=True,
    examples=["jsplan destroy", "jsplan destroy --target 'leaf/**' --backup saved"],
)
@backup_option
@approval_options
@destroy_options
@click.pass_context
def command(ctx: click.Context, /, auto_approve: bool, no_input: bool, **planning: Any) -> int:
    """Show everything that this workspace manages, ask, and delete it."""
    settings, output = start(ctx)
    options = build_plan_options(planning, destroy=True)
    from jsplan.api import Workspace
    from jsplan.cli.approval import Approval
    from jsplan.cli.views import apply_result

    approval = Approval(
        output,
        auto_approve=auto_approve,
        no_input=no_input,
        question=QUESTION,
        save="plan --destroy -o FILE",
    )
    with approval.interruptible() as approve:
        workspace = Workspace(settings.load_options(), output.progress)
        plan, result = workspace.plan_and_apply(options, approve)
    output.progress.stop()
    return apply_result(output, plan, result, shown=approval.shown)
