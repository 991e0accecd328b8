"""`jsplan backfill`: copy messages of one stream into another, across domains, exactly once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from jsplan.cli.commands import CommandEntry
from jsplan.cli.lazy import declare, group
from jsplan.cli.plan_options import lock_timeout_option, number_option
from jsplan.cli.run import open_workspace
from jsplan.cli.types import AddressGlob, HazardPermission, Until
from jsplan.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from jsplan.planning.backfill.model import Deadline

_TABLE = {
    "plan": CommandEntry("Show what would be copied, and how long it takes.", "backfill", "plan"),
    "run": CommandEntry("Copy the pending messages, then verify them.", "backfill", "run"),
    "verify": CommandEntry("Compare both streams, message by message.", "backfill", "verify"),
    "status": CommandEntry("Show the progress of each backfill.", "backfill", "status"),
}
_master_option = click.option(
    "--master",
    metavar="URL",
    help="Run on this Spark master.  [default: local[*], on this machine]",
)


@group("backfill", _TABLE, examples=["jsplan backfill plan orders", "jsplan backfill run orders"])
def command() -> None:
    """Copy messages of one stream to another.

    Needs the extra `spark`; a command says how to install it. NAME is an entry of `backfills:`.
    """


def _endpoint_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose a backfill: NAME, or --from and --to."""
    function = click.option(
        "--to", type=AddressGlob(), metavar="ADDRESS", help="With --from: the stream to copy to."
    )(function)
    function = click.option(
        "--from",
        type=AddressGlob(),
        metavar="ADDRESS",
        help="Copy this stream, instead of an entry NAME.",
    )(function)
    return click.argument("name", required=False)(function)


def _parse_endpoints(name: str | None, given: dict[str, Any]) -> tuple[str | None, str | None]:
    """Parse `--from` and `--to`; raise UsageError unless there is either a name or both of them."""
    origin, target = given["from"], given["to"]
    if (name is None) == (origin is None and target is None) or (origin is None) != (
        target is None
    ):
        raise UsageError(
            "name an entry of `backfills:`, or give both --from and --to",
            hint="See the entries: jsplan backfill status",
        )
    return origin, target


@declare(
    "run",
    connects=True,
    examples=[
        "jsplan backfill run orders",
        "jsplan backfill run --from leaf/stream/A --to hub/stream/A",
    ],
)
@_endpoint_options
@click.option(
    "--reset-range",
    is_flag=True,
    help="Pin a new range; messages that the target already has are not copied again.",
)
@click.option(
    "--fail-on-gap",
    is_flag=True,
    help="Exit with 2 if messages were deleted before they could be copied.",
)
@click.option(
    "--allow-hazard",
    multiple=True,
    type=HazardPermission(),
    metavar="HAZARD[:ADDRESS]",
    help="Allow a hazard of the copy; repeatable.",
)
@click.option(
    "--until",
    type=Until(),
    metavar="TIME",
    help="Stop copying at this time, such as 05:00 or an RFC 3339 time; the next run resumes.",
)
@lock_timeout_option
@_master_option
@click.pass_context
def run(
    ctx: click.Context,
    /,
    name: str | None,
    reset_range: bool,
    fail_on_gap: bool,
    allow_hazard: tuple[str, ...],
    until: Deadline | None,
    lock_timeout: int,
    master: str | None,
    **ends: Any,
) -> int:
    """Copy the pending messages of backfill NAME, then verify them.

    The first run pins the range. An interrupted run is resumed by the next one; no message is lost
    or copied twice. Ctrl-C stops it cleanly. A run that stops at TIME exits with 6.
    """
    workspace, output = open_workspace(ctx)
    origin, target = _parse_endpoints(name, ends)
    from jsplan.api import BackfillOptions
    from jsplan.render.backfill_text import render_run

    options = BackfillOptions(
        name, origin, target, master, reset_range, fail_on_gap, allow_hazard, lock_timeout, until
    )
    result = workspace.backfill(options)
    output.result(result.to_json, partial(render_run, result))
    return result.exit_code


@declare("plan", connects=True, examples=["jsplan backfill plan orders"])
@_endpoint_options
@click.pass_context
def plan(ctx: click.Context, /, name: str | None, **ends: Any) -> int:
    """Show what backfill NAME would copy, the strategy with its reason, and an estimate.

    Starts no Spark, takes no lock and copies nothing.
    """
    workspace, output = open_workspace(ctx)
    origin, target = _parse_endpoints(name, ends)
    from jsplan.api import BackfillOptions
    from jsplan.render.backfill_text import render

    found = workspace.preview_backfill(BackfillOptions(name, origin, target))
    output.result(found.to_json, partial(render, found))
    return 0


@declare("verify", connects=True, examples=["jsplan backfill verify orders"])
@_endpoint_options
@number_option("--limit", "Print the first N differences.", 20, least=0)
@_master_option
@click.pass_context
def verify(
    ctx: click.Context, /, name: str | None, limit: int, master: str | None, **ends: Any
) -> int:
    """Compare both streams of backfill NAME by the origin and the content of each message.

    Takes no lock and changes no stream. Exits with 2 if they differ; expired messages do not count.
    """
    workspace, output = open_workspace(ctx)
    origin, target = _parse_endpoints(name, ends)
    from jsplan.api import VerifyOptions
    from jsplan.render.backfill_text import render_verification

    found = workspace.verify_backfill(VerifyOptions(name, origin, target, master, limit))
    output.result(found.to_json, partial(render_verification, found))
    return found.exit_code


@declare("status", connects=True, examples=["jsplan backfill status"])
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.pass_context
def status(ctx: click.Context, names: tuple[str, ...]) -> int:
    """Show range, progress and orphans of each backfill, and how to resume it. Read-only."""
    workspace, output = open_workspace(ctx)
    from jsplan.render.backfill_text import render_status

    found = workspace.backfill_status(*names)
    output.result(found.to_json, partial(render_status, found))
    return 0
