"""`jsplan backfill`: messages of one stream into another, across domains, exactly once."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jsplan.cli.lazy import Entry, declare, group
from jsplan.cli.run import start
from jsplan.cli.types import AbsolutePath, AddressGlob, Duration, HazardPermission
from jsplan.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from jsplan.cli.output import Output
    from jsplan.cli.settings import Settings
    from jsplan.workflows.backfill import BackfillOptions

_TABLE = {
    "plan": Entry("Show what a backfill would copy, by what, and about how long it takes.", "backfill", "plan"),
    "run": Entry("Copy what is missing, and prove that it arrived.", "backfill", "run"),
    "verify": Entry("Compare both sides, message by message.", "backfill", "verify"),
    "status": Entry("How far each backfill is, and what it left behind.", "backfill", "status"),
}
_master = click.option("--master", metavar="URL", help="A Spark master.  [default: local[*], on this machine]")


@group("backfill", _TABLE)
def command() -> None:
    """Copy a range of one stream into another, with PySpark; needs the extra: pip install "jsplan[spark]"."""


def _ends(function: Callable[..., Any]) -> Callable[..., Any]:
    """NAME, or --from and --to."""
    function = click.option("--to", type=AddressGlob(), metavar="ADDR", help="The stream that it goes to.")(function)
    function = click.option("--from", type=AddressGlob(), metavar="ADDR", help="Without an entry: the stream to copy.")(function)
    return click.argument("name", required=False)(function)


def _ends_of(name: str | None, given: dict[str, Any]) -> tuple[str | None, str | None]:
    """`--from` and `--to`. Raises UsageError unless there is either a name or both of them."""
    origin, target = given["from"], given["to"]
    if (name is None) == (origin is None and target is None) or (origin is None) != (target is None):
        raise UsageError("name an entry of `backfills:`, or give both --from and --to", hint="See the entries: jsplan backfill status")
    return origin, target


@declare("run")
@_ends
@click.option("--fresh", is_flag=True, help="Freeze the range anew; what the target has already is not copied again.")
@click.option("--fail-on-gap", is_flag=True, help="Exit with 2 if messages were gone before they could be copied.")
@click.option("--allow-hazard", multiple=True, type=HazardPermission(), metavar="CODE[:ADDR]", help="Allow what a copy costs; repeatable.")
@click.option(
    "--lock-timeout", type=Duration(), default="10s", show_default=True, metavar="DURATION", help="How long to wait for the state lock."
)
@_master
@click.pass_context
def run(
    ctx: click.Context, /, name: str | None, fresh: bool, fail_on_gap: bool, allow_hazard: tuple[str, ...], lock_timeout: int,
    master: str | None, **ends: Any,
) -> int:  # fmt: skip
    """Copy what is missing of the entry NAME, and prove that it arrived.

    The range is frozen by the first run. However a run ends, the next one goes on from there: no message is lost, none comes twice.
    Ctrl-C stops it calmly.
    """
    settings, output = start(ctx)
    origin, target = _ends_of(name, ends)
    from jsplan.workflows import backfill

    options = backfill.BackfillOptions(name, origin, target, fresh, fail_on_gap, allow_hazard, lock_timeout, master)
    result = backfill.run(settings.load_options(), options, output.progress)
    output.progress.stop()
    from jsplan.render import backfill_text

    output.result(result.to_json, partial(backfill_text.run, result))
    return result.exit_code


@declare("plan")
@_ends
@click.option(
    "--job-file", type=AbsolutePath(), metavar="FILE", help="Freeze the range, keep it in the state, write a job for spark-submit."
)
@click.pass_context
def plan(ctx: click.Context, /, name: str | None, job_file: Path | None, **ends: Any) -> int:
    """Show what is missing of the entry NAME, how that was found, by what it would be copied and why, and about how long it takes.

    Starts no Spark, takes no lock and copies nothing. The target is looked through where it has something of the origin already.
    With --job-file the range is frozen under the lock, and written into a script that does what `run` does where spark-submit takes it.
    """
    settings, output = start(ctx)
    origin, target = _ends_of(name, ends)
    from jsplan.workflows import backfill

    found = backfill.plan(settings.load_options(), backfill.BackfillOptions(name, origin, target))
    output.progress.stop()
    from jsplan.render import backfill_outlook_text

    output.result(found.to_json, partial(backfill_outlook_text.render, found))
    if job_file is not None:
        _write_job(settings, output, backfill.BackfillOptions(name, origin, target), job_file)
    return 0


def _write_job(settings: Settings, output: Output, options: BackfillOptions, path: Path) -> None:
    from jsplan.workflows import backfill

    backfill.write_job(settings.load_options(), options, path, output.progress)
    output.progress.stop()
    here = Path.cwd()
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    output.note(f"\nThe range is frozen. Hand the job to a cluster with:\n  spark-submit --master URL {shlex.quote(str(shown))}")


@declare("verify")
@_ends
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, metavar="N", help="Name the first N differences.")
@_master
@click.pass_context
def verify(ctx: click.Context, /, name: str | None, limit: int, master: str | None, **ends: Any) -> int:
    """Compare both sides of the entry NAME by where each message comes from and by what is in it.

    Takes no lock and changes no stream; exits with 2 if both sides differ. What expired on either side is no difference.
    """
    settings, output = start(ctx)
    origin, target = _ends_of(name, ends)
    from jsplan.workflows import backfill

    found = backfill.verify(settings.load_options(), backfill.VerifyOptions(name, origin, target, limit, master), output.progress)
    output.progress.stop()
    from jsplan.render import backfill_text

    output.result(found.to_json, partial(backfill_text.verify, found))
    return found.exit_code


@declare("status")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.pass_context
def status(ctx: click.Context, names: tuple[str, ...]) -> int:
    """Show the frozen range of each entry, how far it is, what it left on the servers, and how to go on. Read-only."""
    settings, output = start(ctx)
    from jsplan.workflows import backfill

    found = backfill.status(settings.load_options(), names)
    from jsplan.render import backfill_text

    output.result(found.to_json, partial(backfill_text.status, found))
    return 0
