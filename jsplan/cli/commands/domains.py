"""`jsplan domains discover`: the domains behind a connection. Read-only."""

from __future__ import annotations

import click

from jsplan.cli.commands import CommandEntry
from jsplan.cli.lazy import declare, group
from jsplan.cli.run import start


@group(
    "domains",
    {
        "discover": CommandEntry(
            "Print the domains behind a connection as YAML.", "domains", "discover"
        )
    },
    examples=["jsplan domains discover"],
)
def command() -> None:
    """Find JetStream domains."""


@declare(
    "discover",
    connects=True,
    examples=["jsplan domains discover", "jsplan domains discover --connection main"],
)
@click.option(
    "--connection",
    metavar="NAME",
    help="Ask only over this connection.  [default: all connections of the workspace]",
)
@click.option(
    "--system-connection",
    metavar="NAME",
    help="A connection to the system account, which sees all servers.",
)
@click.pass_context
def discover(ctx: click.Context, connection: str | None, system_connection: str | None) -> int:
    """Find the JetStream domains that the servers know, and print lines for `domains:`.

    Connections come from jsplan.yaml. Without that file they come from NATS_URL, or from the
    selected context of the nats CLI.
    """
    settings, output = start(ctx)
    from jsplan.workflows.discover import discover_domains

    found = discover_domains(
        settings.load_options(), output.progress, connection=connection, system=system_connection
    )
    from jsplan.render.discover_text import render_text

    output.result_lines(found.to_json, render_text(found))
    return 0
