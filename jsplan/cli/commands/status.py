"""`jsplan status`: the health of domains, streams, consumers and flows. Read-only."""

from __future__ import annotations

import click

from jsplan.cli.lazy import declare
from jsplan.cli.plan_options import addresses_option
from jsplan.cli.run import start
from jsplan.cli.types import Duration
from jsplan.errors import UsageError


@declare(
    "status", connects=True, examples=["jsplan status", "jsplan status --target 'hub/**' --watch"]
)
@addresses_option("--target", "Show only these resources; repeatable.")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--every",
    type=Duration(),
    default="2s",
    show_default=True,
    metavar="DURATION",
    help="With --watch: the time between two looks.",
)
@click.pass_context
def command(ctx: click.Context, target: tuple[str, ...], watch: bool, every: int) -> int:
    """Show domains, streams and consumers, and whether mirrors and sources replicate.

    Watches a mirror or source that lags for some seconds to see if it catches up. Exits with 2 on
    lost or missed messages, unhealthy flows and other critical findings. Read-only.
    """
    settings, output = start(ctx)
    if every <= 0:
        raise UsageError("--every must be greater than 0s")
    from jsplan.workflows import status as workflow

    if watch:
        from jsplan.render.status_frames import Frames
        from jsplan.units import SECOND

        frames = Frames(output.out, json=settings.json, verbose=bool(settings.verbose))
        workflow.watch(settings.load_options(), frames, every / SECOND, target)
    found = workflow.status(settings.load_options(), output.progress, target)
    from jsplan.render import status_text

    output.result(
        found.to_json,
        lambda console: status_text.render(found, console, verbose=bool(settings.verbose)),
    )
    return found.exit_code
