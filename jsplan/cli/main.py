"""The entry point and the table of all commands."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from jsplan import __version__, secrets
from jsplan.cli.commands import CommandEntry
from jsplan.cli.lazy import sectioned_group
from jsplan.cli.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "jsplan"
COMPLETE_VARIABLE = "_JSPLAN_COMPLETE"

#: The commands as `jsplan --help` lists them.
SECTIONS = {
    "Everyday": {
        "init": CommandEntry("Create a workspace from a template.", "init"),
        "validate": CommandEntry("Check the files; never use the network.", "validate"),
        "lint": CommandEntry("Check for valid but risky configuration.", "lint"),
        "plan": CommandEntry("Show what apply would do.", "plan"),
        "apply": CommandEntry("Plan, show, ask, apply; or apply a saved plan.", "apply"),
        "destroy": CommandEntry("Delete everything that this workspace manages.", "destroy"),
        "drift": CommandEntry("Show changes made outside jsplan. Read-only.", "drift"),
        "status": CommandEntry("Show domains, streams, consumers and replication.", "status"),
    },
    "Migrate": {
        "domains": CommandEntry("Find the domains behind a connection.", "domains"),
        "import": CommandEntry("Import resources that exist on the servers.", "import_"),
        "convert": CommandEntry("Convert files of other tools to workspace files.", "convert"),
        "access": CommandEntry("List exports and imports between accounts.", "access"),
    },
    "Data": {
        "backup": CommandEntry("Save configuration, messages and consumers.", "backup"),
        "restore": CommandEntry("Restore a backup.", "restore"),
        "compare": CommandEntry("Compare two streams, message by message.", "compare"),
        "backfill": CommandEntry("Copy messages of one stream to another.", "backfill"),
    },
    "State": {
        "show": CommandEntry("Show a saved plan, or the state.", "show"),
        "state": CommandEntry("Inspect and correct the state.", "state"),
        "history": CommandEntry("List what was applied.", "history"),
        "revert": CommandEntry("Undo an apply.", "revert"),
    },
    "Tools": {
        "explain": CommandEntry("Explain a code, a hazard or an exit code.", "explain"),
        "graph": CommandEntry("Draw streams, mirrors and sources.", "graph"),
        "schema": CommandEntry("Print the JSON Schema of workspace files.", "schema"),
        "sandbox": CommandEntry("Run embedded nats-servers to try things out.", "sandbox"),
        "completion": CommandEntry("Print the completion script of a shell.", "completion"),
        "version": CommandEntry("Print the version.", "version"),
        "help": CommandEntry("Show the help of a command, or global options.", "help"),
    },
}
COMMANDS = {name: entry for table in SECTIONS.values() for name, entry in table.items()}


@sectioned_group(
    PROGRAM,
    SECTIONS,
    root=True,
    invoke_without_command=True,
    examples=["jsplan init shop", "jsplan plan", "jsplan apply"],
)
@click.option(
    "--version", "show_version", is_flag=True, allow_from_autoenv=False, help="Print the version."
)
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
    """Run one command line (without the program's name) and return its exit code; raise nothing."""
    from jsplan.cli import exit_status

    _open_closed_streams()
    secrets.clear_secrets()
    args = list(sys.argv[1:] if argv is None else argv)
    if COMPLETE_VARIABLE in os.environ:
        from click.shell_completion import add_completion_class

        from jsplan.cli.bash_completion import WholeWordBashComplete

        add_completion_class(WholeWordBashComplete)
        root.main(args, prog_name=PROGRAM, obj=Settings(), auto_envvar_prefix="JSPLAN")
    settings = Settings()

    def run() -> object:
        with root.make_context(PROGRAM, args, obj=settings, auto_envvar_prefix="JSPLAN") as ctx:
            return root.invoke(ctx)

    code = exit_status.run_to_exit_code(run, settings, args)
    if argv is None:
        exit_status.end_process(code)
    return code


def _open_closed_streams() -> None:
    """Open closed standard streams on the null device.

    Started with `<&-` or `>&-`, Python has None there, and the next opened file would take the
    stream's number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 => # noqa: PTH123, SIM115
