"""`jsplan restore DIR`: bring streams of a backup back, after showing what that is and asking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jsplan.cli.lazy import declare
from jsplan.cli.planning import approval_options
from jsplan.cli.run import start
from jsplan.cli.types import AbsolutePath, AddressGlob, Duration, HazardPermission

if TYPE_CHECKING:
    from pathlib import Path

QUESTION = "Do you want jsplan to restore this?"


@declare("restore")
@click.argument("folder", type=AbsolutePath(), metavar="DIR")
@click.option("--as", type=AddressGlob(), metavar="ADDRESS", help="Restore it under this address; DOMAIN/** for all of it.")
@click.option("--target", multiple=True, type=AddressGlob(), metavar="ADDR", help="Only this of what was saved; repeatable.")
@click.option("--exclude", multiple=True, type=AddressGlob(), metavar="ADDR", help="All but this; repeatable.")
@click.option("--subjects", multiple=True, metavar="SUBJECT", help="Give the stream these subjects instead of its own; repeatable.")
@click.option("--allow-hazard", multiple=True, type=HazardPermission(), metavar="CODE[:ADDR]", help="Permit a hazard; repeatable.")
@click.option("--parallelism", type=click.IntRange(min=1), default=4, show_default=True, metavar="N", help="Streams at once, per domain.")
@click.option(
    "--lock-timeout", type=Duration(), default="10s", show_default=True, metavar="DURATION", help="How long to wait for the state lock."
)
@approval_options
@click.pass_context
def command(
    ctx: click.Context, /, folder: Path, target: tuple[str, ...], exclude: tuple[str, ...], subjects: tuple[str, ...],
    allow_hazard: tuple[str, ...], parallelism: int, lock_timeout: int, auto_approve: bool, no_input: bool, **given: Any,
) -> int:  # fmt: skip
    """Bring back what jsplan backup saved into DIR, with its consumers. Nothing that exists is touched."""
    settings, output = start(ctx)
    from jsplan.cli.restoring import RestoreApproval, restore_result
    from jsplan.workflows.restore import RestoreOptions
    from jsplan.workflows.restore import restore as restore_workflow

    options = RestoreOptions(folder, given["as"], target, exclude, subjects, allow_hazard, parallelism, lock_timeout)
    approval = RestoreApproval(output, auto_approve=auto_approve, no_input=no_input, question=QUESTION)
    with approval.interruptible() as approve:
        plan, result = restore_workflow(settings.load_options(), options, approve, output.progress)
    output.progress.stop()
    return restore_result(output, plan, result, shown=approval.shown)
