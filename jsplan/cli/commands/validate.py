"""`jsplan validate`: check the files without the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from jsplan.cli.lazy import declare
from jsplan.cli.run import start
from jsplan.units import count_text

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.config.model import Workspace


@declare("validate", examples=["jsplan validate", "jsplan validate --server-version 2.12"])
@click.option(
    "--server-version",
    metavar="VERSION",
    help="Also report what this nats-server would refuse, fail to run, or interpret differently.",
)
@click.pass_context
def command(ctx: click.Context, server_version: str | None) -> int:
    """Check the files of the workspace and print all errors. Never use the network.

    Variables of the environment that `${env.X}` names need not be set.
    """
    settings, output = start(ctx)
    from jsplan.render import diagnostics_text
    from jsplan.workflows.validate import validate as validate_workflow

    workspace = validate_workflow(settings.load_options(), server_version)

    def text(console: Console) -> None:
        diagnostics_text.render(workspace.diagnostics, console, after=True)
        console.print(summary, style="green", soft_wrap=True)

    summary = summary_line(workspace, server_version)
    plain = None if workspace.diagnostics else summary
    output.result(lambda: to_document(workspace, server_version), text, plain=plain)
    return 0


def summary_line(workspace: Workspace, server_version: str | None = None) -> str:
    """Return the last line of the text."""
    accounts = len(workspace.accounts)
    contents = sum(address.is_content for address in workspace.resources) - accounts
    resources = count_text(len(workspace.resources) - contents, "resource")
    if contents:
        resources += f" and {count_text(contents, 'entry', 'entries')}"
    domains = count_text(len({a.domain for a in workspace.resources}), "domain")
    where = f" for nats-server {server_version}" if server_version else ""
    return f"The workspace is valid{where}: {resources} in {domains}."


def to_document(workspace: Workspace, server_version: str | None = None) -> dict[str, Any]:
    """Return the document of `validate --json`."""
    return {
        "format_version": "1.0",
        "kind": "validate",
        "valid": True,
        "workspace": workspace.name,
        "environment": workspace.environment,
        "server_version": server_version,
        "resources": [str(a) for a in sorted(workspace.resources)],
        "diagnostics": to_builtins(workspace.diagnostics),
    }
