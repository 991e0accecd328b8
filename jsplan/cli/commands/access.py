"""`jsplan access`: exports and imports that flows between accounts need. Changes nothing."""

from __future__ import annotations

import click

from jsplan.cli.lazy import declare
from jsplan.cli.run import start
from jsplan.errors import ExitCode, UsageError


@declare(
    "access", connects="check", examples=["jsplan access", "jsplan access --check --style nsc"]
)
@click.option(
    "--check",
    is_flag=True,
    help="Test on the servers which of them exist; exit with 1 if one is missing or unknown.",
)
@click.option(
    "--system-connection",
    metavar="NAME",
    help="With --check: a connection to the system account, to see which account lacks its part.",
)
@click.option("--style", type=click.Choice(("both", "config", "nsc")), default="both",
              show_default=True,
              help="Print the server's configuration, the nsc commands, or both.")  # fmt: skip
@click.pass_context
def command(ctx: click.Context, check: bool, system_connection: str | None, style: str) -> int:
    """Print the exports and imports that mirrors, sources and consumers between accounts need.

    Connections name their account (`account:`, or a creds file). Consumers that clients of another
    account use are named in the imports row: `consumers: [STREAM/CONSUMER]`.
    """
    settings, output = start(ctx)
    if system_connection and not check:
        raise UsageError("--system-connection requires --check")
    from jsplan.workflows.access import access as access_workflow

    found = access_workflow(
        settings.load_options(), output.progress, ask=check, system=system_connection
    )
    output.progress.stop()
    from jsplan.render import access_text

    output.result(found.to_json, lambda console: access_text.render(found, console, style=style))
    proven = not found.checked or len(found.with_status("ok")) == len(found.required)
    return int(ExitCode.OK if proven else ExitCode.ERROR)
