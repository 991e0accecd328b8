"""`jsplan validate`: check the files without the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jsplan.cli.lazy import declare
from jsplan.cli.run import start
from jsplan.units import count_text

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.config.model import Workspace


@declare("validate", examples=["jsplan validate", "jsplan validate -e prod"])
@click.pass_context
def command(ctx: click.Context) -> int:
    """Check the files of the workspace and print all errors. Never use the network.

    Variables of the environment that `${env.X}` names need not be set.
    """
    settings, output = start(ctx)
    from jsplan.render import diagnostics_text
    from jsplan.workflows.validate import validate as validate_workflow

    workspace = validate_workflow(settings.load_options())

    def text(console: Console) -> None:
        diagnostics_text.render(workspace.diagnostics, console, after=True)
        console.print(summary_line(workspace), style="green", soft_wrap=True)

    plain = None if workspace.diagnostics else summary_line(workspace)
    output.result(lambda: to_document(workspace), text, plain=plain)
    return 0


def summary_line(workspace: Workspace) -> str:
    """Return the last line of the text."""
    resources = count_text(len(workspace.resources), "resource")
    domains = count_text(len({a.domain for a in workspace.resources}), "domain")
    return f"The workspace is valid: {resources} in {domains}."


def to_document(workspace: Workspace) -> dict[str, Any]:
    """Return the document of `validate --json`."""
    return {
        "format_version": "1.0",
        "kind": "validate",
        "valid": True,
        "workspace": workspace.name,
        "environment": workspace.environment,
        "resources": [str(address) for address in sorted(workspace.resources)],
        "diagnostics": [d.to_json() for d in workspace.diagnostics],
    }
