"""`jsplan history [ID]`: list applies with user and result. Reads only the state."""

from __future__ import annotations

import click

from jsplan.cli.lazy import declare
from jsplan.cli.run import start


@declare("history", connects=True, examples=["jsplan history", "jsplan history 22"])
@click.argument("number", required=False, type=click.IntRange(min=1), metavar="[ID]")
@click.pass_context
def command(ctx: click.Context, number: int | None) -> int:
    """List what was applied, newest first. With ID, show what that apply changed."""
    settings, output = start(ctx)
    from jsplan.render import state_text
    from jsplan.workflows.history import history as workflow

    document = workflow(settings.load_options(), number)
    output.result(
        lambda: document,
        lambda console: state_text.render_history(document, console, one=number is not None),
    )
    return 0
