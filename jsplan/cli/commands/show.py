"""`jsplan show [PLANFILE|--state]`: print an existing document in another form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jsplan.cli.lazy import declare
from jsplan.cli.run import start
from jsplan.cli.types import PlanFile
from jsplan.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@declare("show", examples=["jsplan show", "jsplan show prod.plan --format markdown"])
@click.argument("planfile", required=False, type=PlanFile())
@click.option("--state", is_flag=True, help="Show the state (also without any argument).")
@click.pass_context
def command(ctx: click.Context, planfile: Path | None, state: bool) -> int:
    """Show the state, or the saved plan PLANFILE, also with --format markdown or html."""
    from jsplan.cli.views import PLAN_FORMATS, plan_result

    settings, output = start(ctx, PLAN_FORMATS if planfile is not None else ())
    if planfile is not None and state:
        raise UsageError("give a saved plan or --state, not both")
    if planfile is not None:
        from jsplan.workflows.plan import load_plan

        plan_result(output, load_plan(planfile))
        return 0
    from jsplan.render import state_text
    from jsplan.workflows.state import show as show_state

    document = show_state(settings.load_options())
    output.result(lambda: document, lambda console: state_text.render(document, console))
    return 0
