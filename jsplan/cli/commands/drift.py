"""`jsplan drift`: what changed behind our back. Sends nothing that writes."""

from __future__ import annotations

import click

from jsplan.cli import views
from jsplan.cli.lazy import Entry, group
from jsplan.cli.run import start
from jsplan.cli.types import AddressGlob, ParamType

CAUSES = ("changed", "missing", "replication", "unmanaged")


class Causes(ParamType):
    """`changed,missing`; `none` for never."""

    name = "CAUSES"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[str]:
        if isinstance(value, frozenset):
            return value
        words = {word.strip() for word in str(value).split(",") if word.strip()} - {"none"}
        if unknown := sorted(words - set(CAUSES)):
            self.fail(f'"{unknown[0]}" is not one of {", ".join(CAUSES)}', param, ctx)
        return frozenset(words)


@group("drift", {"watch": Entry("The scheduled job.")}, invoke_without_command=True)
@click.option("--target", multiple=True, type=AddressGlob(), metavar="ADDR", help="Look only at this; repeatable.")
@click.option("--exclude", multiple=True, type=AddressGlob(), metavar="ADDR", help="Look at all but this; repeatable.")
@click.option("--parallelism", type=click.IntRange(min=1), default=10, show_default=True, metavar="N", help="Calls at once, per domain.")
@click.option("--fail-on", type=Causes(), default="changed,missing,replication", show_default=True, metavar="CAUSES",
              help="What exits with 2: changed, missing, replication, unmanaged, or none.")  # fmt: skip
@click.pass_context
def command(ctx: click.Context, target: tuple[str, ...], exclude: tuple[str, ...], parallelism: int, fail_on: frozenset[str]) -> int:
    """Show what changed on the servers since the last apply, what is missing there, and what nobody manages. Read-only."""
    if ctx.invoked_subcommand is not None:
        return 0
    settings, output = start(ctx, views.DRIFT_FORMATS)
    from jsplan.workflows.drift import drift as drift_workflow
    from jsplan.workflows.options import DriftOptions

    options = DriftOptions(targets=target, excludes=exclude, parallelism=parallelism, fail_on=fail_on)
    found = drift_workflow(settings.load_options(), options, output.progress)
    output.progress.stop()
    views.drift_result(output, found, fail_on)
    return int(found.exit_code)
