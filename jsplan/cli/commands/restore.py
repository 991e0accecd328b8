"""`jsplan restore DIR`: show what a backup holds, ask, and restore its streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jsplan.cli.approval import Approval, ask_and_apply
from jsplan.cli.lazy import declare
from jsplan.cli.plan_options import (
    addresses_option,
    approval_options,
    exclude_option,
    hazard_option,
    lock_timeout_option,
    number_option,
)
from jsplan.cli.run import start
from jsplan.cli.types import AbsolutePath, AddressGlob

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from jsplan.cli.output import Output
    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan

QUESTION = "Do you want jsplan to restore this?"


@declare(
    "restore",
    connects=True,
    examples=["jsplan restore saved", "jsplan restore saved --as 'leaf/**'"],
)
@click.argument("folder", type=AbsolutePath(), metavar="DIR")
@click.option(
    "--as",
    type=AddressGlob(),
    metavar="ADDRESS",
    help="Restore to this address; DOMAIN/** restores everything to that domain.",
)
@addresses_option("--target", "Restore only these resources; repeatable.")
@exclude_option
@click.option(
    "--subjects",
    multiple=True,
    metavar="SUBJECT",
    help="Replace the subjects of the restored stream by this one; repeatable.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 5),
    metavar="N",
    help="Give each stream N replicas instead of its own.",
)
@hazard_option
@number_option("--parallelism", "Restore at most N streams of a domain at once.", 4)
@lock_timeout_option
@approval_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    folder: Path,
    target: tuple[str, ...],
    exclude: tuple[str, ...],
    subjects: tuple[str, ...],
    replicas: int | None,
    allow_hazard: tuple[str, ...],
    parallelism: int,
    lock_timeout: int,
    auto_approve: bool,
    no_input: bool,
    **given: Any,
) -> int:
    """Show what the backup in DIR holds, ask, and restore it. Nothing that exists is changed."""
    settings, output = start(ctx)
    from jsplan.workflows.restore import RestoreOptions, restore

    selected = (folder, given["as"], target, exclude, subjects, replicas)
    options = RestoreOptions(*selected, allow_hazard, parallelism, lock_timeout)
    return ask_and_apply(
        output,
        lambda approve: restore(settings.load_options(), options, approve, output.progress),
        QUESTION,
        auto_approve=auto_approve,
        no_input=no_input,
        kind=RestoreApproval,
        show=restore_result,
    )


class RestoreApproval(Approval):
    """An approval that prints what the backup holds before the plan."""

    def print(self, plan: Plan, console: Console, *, refused: bool) -> None:
        """Print what the backup holds, then the plan."""
        from jsplan.render import backup_text

        backup_text.render_saved(plan, console)
        super().print(plan, console, refused=refused)


def restore_result(output: Output, plan: Plan, result: ApplyResult, *, shown: bool) -> int:
    """Print the result of a restore; return its exit code."""

    def text(console: Console) -> None:
        from jsplan.render import apply_text, backup_text

        if not shown:
            backup_text.render_saved(plan, console)
        else:
            console.print()
        apply_text.render(result, console, backup_text.restore_line(plan, result))

    output.result(result.to_json, text)
    return int(result.exit_code)
