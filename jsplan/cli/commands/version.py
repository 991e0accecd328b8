"""`jsplan version`: the installed versions."""

from __future__ import annotations

import click

from jsplan import __version__
from jsplan.cli.lazy import declare
from jsplan.cli.run import start


@declare("version", examples=["jsplan version", "jsplan version --json"])
@click.pass_context
def command(ctx: click.Context) -> int:
    """Print the version."""
    _, output = start(ctx)
    document = {"format_version": "1.0", "kind": "version", "jsplan_version": __version__}
    output.result_lines(lambda: document, f"jsplan {__version__}")
    return 0
