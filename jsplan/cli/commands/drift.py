"""`jsplan drift`: show changes made outside jsplan. Read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jsplan.cli import views
from jsplan.cli.commands import CommandEntry
from jsplan.cli.lazy import declare, group
from jsplan.cli.plan_options import addresses_option, exclude_option, parallelism_option
from jsplan.cli.run import open_workspace, start
from jsplan.cli.types import Crontab, Duration, HostPort, ParamType
from jsplan.documents.drift_causes import CAUSES, FAILING_CAUSES
from jsplan.errors import UsageError

if TYPE_CHECKING:
    from jsplan.cli.output import Output
    from jsplan.documents.alert import AlertEvent
    from jsplan.documents.plan import ResourceChange
    from jsplan.drift.service.options import Schedule

#: The causes that the scheduled job can report besides: domains and failed checks.
KINDS = (*CAUSES, "offline", "check")


class CauseList(ParamType):
    """`changed,missing`; `none` for never."""

    name = "CAUSES"

    def __init__(self, known: tuple[str, ...] = CAUSES) -> None:
        self._known = known

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[str]:
        if isinstance(value, frozenset):
            return value
        words = {word.strip() for word in str(value).split(",") if word.strip()} - {"none"}
        if unknown := sorted(words - set(self._known)):
            self.fail(f'"{unknown[0]}" is not one of {", ".join(self._known)}', param, ctx)
        return frozenset(words)


@group(
    "drift",
    {"watch": CommandEntry("Watch continuously and report drift.", "drift", "watch")},
    connects=True,
    invoke_without_command=True,
    examples=["jsplan drift", "jsplan drift --fail-on changed,missing,unmanaged"],
)
@addresses_option("--target", "Check only these resources; repeatable.")
@exclude_option
@parallelism_option
@click.option("--fail-on", type=CauseList(), default=",".join(FAILING_CAUSES),
              show_default=True, metavar="CAUSES",
              help="Exit with 2 on drift of these kinds.")  # fmt: skip
@click.pass_context
def command(
    ctx: click.Context,
    target: tuple[str, ...],
    exclude: tuple[str, ...],
    parallelism: int,
    fail_on: frozenset[str],
) -> int:
    """Show what was changed, deleted or created on the servers outside jsplan. Read-only.

    --format is also markdown, html, junit or github.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    workspace, output = open_workspace(ctx, views.DRIFT_FORMATS, collects_garbage=False)
    from jsplan.api import DriftOptions

    options = DriftOptions(
        targets=target, excludes=exclude, parallelism=parallelism, fail_on=fail_on
    )
    found = workspace.drift(options)
    views.drift_result(output, found, fail_on)
    return int(found.exit_code)


@declare(
    "watch",
    connects=True,
    examples=[
        "jsplan drift watch --every 5m",
        "jsplan drift watch --cron '*/10 * * * *' --metrics :9464",
    ],
)
@click.option(
    "--every",
    type=Duration(),
    metavar="DURATION",
    help="Check everything this often.  [default: 5m]",
)
@click.option(
    "--cron",
    type=Crontab(),
    metavar="CRON",
    help="Check everything at the times of a crontab line, in UTC; instead of --every.",
)
@click.option(
    "--jitter",
    type=Duration(),
    default="0s",
    show_default=True,
    metavar="DURATION",
    help="Delay each check by a random time up to this.",
)
@click.option(
    "--notify",
    type=CauseList(KINDS),
    default=",".join(KINDS),
    show_default="all",
    metavar="KINDS",
    help="Report only these kinds of findings; none for no reports.",
)
@click.option("--grace", type=Duration(), default="30s", show_default=True, metavar="DURATION",
              help="Report an offline domain or a failed check only after this time.")  # fmt: skip
@click.option(
    "--metrics",
    type=HostPort(),
    metavar="[HOST]:PORT",
    help=(
        "Serve /metrics, /healthz and /readyz, such as on 127.0.0.1:9464; :9464 is every interface."
    ),
)
@click.pass_context
def watch(
    ctx: click.Context,
    every: int | None,
    cron: str | None,
    jitter: int,
    notify: frozenset[str],
    grace: int,
    metrics: str | None,
) -> int:
    """Report drift as it happens, and check everything on a schedule. Read-only.

    Each alert is one line; with --format json, one JSON document.
    """
    settings, output = start(ctx)
    from jsplan.drift.service.options import WatchOptions
    from jsplan.workflows import drift_service

    options = WatchOptions(_schedule(every, cron, jitter), notify, grace, metrics)
    return int(
        drift_service.watch(
            settings.load_options(),
            options,
            AlertPrinter(output),
            output.progress,
            describe_changes,
        )
    )


def _schedule(every: int | None, cron: str | None, jitter: int) -> Schedule:
    from jsplan.drift.service.options import Cron, Interval
    from jsplan.units import SECOND

    if every is not None and cron is not None:
        raise UsageError("--every and --cron exclude each other")
    if every is not None and every < SECOND:
        raise UsageError(
            "--every is at least 1s",
            hint="Changes are reported as they happen. The full check finds what was not received.",
        )
    return Cron(cron, jitter) if cron is not None else Interval(every or 300 * SECOND, jitter)


class AlertPrinter:
    """A printer of notifications on stdout: a line each, or a JSON document per line."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def notice(self, notice: AlertEvent) -> None:
        """Print one notification."""
        from jsplan.documents.base import dumps
        from jsplan.render.escape import safe

        if self._output.settings.json:
            self._output.line(dumps(notice.to_json(), pretty=False).decode())
        else:
            self._output.line(f"{notice.timestamp} {notice.event}: {safe(notice.text)}")


def describe_changes(resource: ResourceChange) -> tuple[str, ...]:
    """Return the changed fields of a resource as text for people."""
    from jsplan.render.drift_rows import details

    return details(resource)
