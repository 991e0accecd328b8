"""`jsplan destroy`: the apply of a plan with an empty desired side."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from jsplan.cli.lazy import declare
from jsplan.cli.plan_options import (
    approval_options,
    backup_option,
    build_plan_options,
    destroy_options,
)
from jsplan.cli.run import open_workspace

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
    workspace, output = open_workspace(ctx)
    options = build_plan_options(planning, destroy=True)
    from jsplan.cli.approval import ask_and_apply

    run = partial(workspace.plan_and_apply, options)
    save = "plan --destroy -o FILE"
    return ask_and_apply(output, run, QUESTION, save, auto_approve=auto_approve, no_input=no_input)
