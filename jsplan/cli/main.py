"""The entry point and the table of all commands; each command is a file of its own in `commands`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from jsplan import __version__, secrets
from jsplan.cli.lazy import Entry, group
from jsplan.cli.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "jsplan"
COMPLETE = "_JSPLAN_COMPLETE"

COMMANDS = {
    "init": Entry("Make a new workspace from a template.", "init"),
    "validate": Entry("Check the files; never uses the network.", "validate"),
    "plan": Entry("Show what apply would do.", "plan"),
    "apply": Entry("Plan, show, ask, apply; or apply a saved plan.", "apply"),
    "destroy": Entry("Delete everything this workspace manages.", "destroy"),
    "drift": Entry("Show what changed behind our back. Read-only.", "drift"),
    "status": Entry("Domains, streams, consumers and flows with their lag.", "status"),
    "show": Entry("Show a saved plan, or the state.", "show"),
    "import": Entry("Adopt what exists on the server.", "import_"),
    "convert": Entry("Turn configurations of other tools into workspace files.", "convert"),
    "backup": Entry("Save configuration, data and consumers.", "backup"),
    "restore": Entry("Bring a backup back.", "restore"),
    "state": Entry("Look at the state and correct it.", "state"),
    "history": Entry("List what was applied.", "history"),
    "revert": Entry("Plan the way back from an apply.", "revert"),
    "backfill": Entry("Copy a range of one stream into another.", "backfill"),
    "access": Entry("List exports and imports that cross-account flows need.", "access"),
    "domains": Entry("Find the domains behind a connection.", "domains"),
    "graph": Entry("Draw streams, mirrors and sources.", "graph"),
    "lint": Entry("Advice on the workspace files.", "lint"),
    "explain": Entry("Explain a code of a finding, a hazard or an exit code.", "explain"),
    "schema": Entry("Print the JSON Schema of workspace files.", "schema"),
    "completion": Entry("Print the completion script of a shell.", "completion"),
    "version": Entry("Print the version.", "version"),
    "help": Entry("Show the help of a command.", "help"),
    "sandbox": Entry("Embedded nats-servers for trying things out.", "sandbox"),
}


@group(PROGRAM, COMMANDS, root=True, invoke_without_command=True)
@click.option("--version", "show_version", is_flag=True, allow_from_autoenv=False, help="Print the version.")
@click.pass_context
def root(ctx: click.Context, show_version: bool) -> int:
    """Plan and apply for NATS JetStream, across hub and leaf domains."""
    if show_version:
        click.echo(f"{PROGRAM} {__version__}")
        ctx.exit(0)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name) and return its exit code; raises nothing."""
    from jsplan.cli import outcome

    _open_closed_streams()
    secrets.clear()
    args = list(sys.argv[1:] if argv is None else argv)
    if COMPLETE in os.environ:
        root.main(args, prog_name=PROGRAM)
    settings = Settings()

    def run() -> object:
        with root.make_context(PROGRAM, args, obj=settings, auto_envvar_prefix="JSPLAN") as ctx:
            return root.invoke(ctx)

    return outcome.exit_code_of(run, settings, args)


def _open_closed_streams() -> None:
    """Started with `<&-` or `>&-`, Python has None there, and the next file we open would take the stream's number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - it stays open to the end
