"""`jsplan drift`: what changed behind our back. Sends nothing that writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jsplan.cli import views
from jsplan.cli.lazy import Entry, declare, group
from jsplan.cli.run import start
from jsplan.cli.types import AbsolutePath, AddressGlob, Crontab, Duration, ParamType, Place
from jsplan.errors import UsageError

if TYPE_CHECKING:
    from jsplan.drift.schedule import Schedule

CAUSES = ("changed", "missing", "replication", "unmanaged")


#: What the scheduled job may tell besides: domains and checks that fail.
KINDS = (*CAUSES, "away", "check")


class Causes(ParamType):
    """`changed,missing`; `none` for never."""

    name = "CAUSES"

    def __init__(self, known: tuple[str, ...] = CAUSES) -> None:
        self._known = known

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[str]:
        if isinstance(value, frozenset):
            return value
        words = {word.strip() for word in str(value).split(",") if word.strip()} - {"none"}
        if unknown := sorted(words - set(self._known)):
            self.fail(f'"{unknown[0]}" is not one of {", ".join(self._known)}', param, ctx)
        return frozenset(words)


@group("drift", {"watch": Entry("The scheduled job.", "drift", "watch")}, invoke_without_command=True)
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


@declare("watch")
@click.option("--every", type=Duration(), metavar="DURATION", help="How often to check everything.  [default: 5m]")
@click.option("--cron", type=Crontab(), metavar="CRON", help="Check everything when a crontab line says so, in UTC; instead of --every.")
@click.option(
    "--jitter",
    type=Duration(),
    default="0s",
    show_default=True,
    metavar="DURATION",
    help="Delay each check at random, by this much at most.",
)
@click.option("--notify", type=Causes(KINDS), default=",".join(KINDS), show_default=True, metavar="KINDS", help="What to tell of, or none.")
@click.option("--grace", type=Duration(), default="30s", show_default=True, metavar="DURATION",
              help="How long a domain, or the check itself, may fail before that is told.")  # fmt: skip
@click.option(
    "--metrics",
    type=Place(),
    metavar="[HOST]:PORT",
    help="Serve /metrics, /healthz and /readyz, as on 127.0.0.1:9464; :9464 is every interface.",
)
@click.option("--metrics-file", type=AbsolutePath(), metavar="FILE", help="Write the metrics for a text file collector.")
@click.option("--report", type=AbsolutePath(), metavar="FILE", help="Keep a report of how things are: .html, .md, .json, .xml or text.")
@click.pass_context
def watch(
    ctx: click.Context, every: int | None, cron: str | None, jitter: int, notify: frozenset[str], grace: int, metrics: str | None,
    metrics_file: Path | None, report: Path | None,
) -> int:  # fmt: skip
    """Tell of drift as it happens, and look at everything by schedule. Read-only; one line per notice, with --format json one document."""
    settings, output = start(ctx)
    from jsplan.cli.watching import Printed, describe
    from jsplan.workflows import drift_watch
    from jsplan.workflows.options import WatchOptions

    options = WatchOptions(_schedule(every, cron, jitter), notify, grace, metrics, metrics_file, report)
    return int(drift_watch.watch(settings.load_options(), options, Printed(output), output.progress, describe))


def _schedule(every: int | None, cron: str | None, jitter: int) -> Schedule:
    from jsplan.drift.schedule import Cron, Every
    from jsplan.units import SECOND

    if every is not None and cron is not None:
        raise UsageError("--every and --cron exclude each other")
    if every is not None and every < SECOND:
        raise UsageError("--every is at least 1s", hint="Changes are told as they happen; the full check is for what was not heard.")
    return Cron(cron, jitter) if cron is not None else Every(every or 300 * SECOND, jitter)
