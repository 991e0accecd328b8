"""Start of every command: output, logging, and options that this release does not support."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from jsplan.cli import logs
from jsplan.cli.output import Output
from jsplan.cli.settings import FORMATS, settings_of

if TYPE_CHECKING:
    from collections.abc import Collection

    import click

    from jsplan.cli.settings import Settings


def start(
    ctx: click.Context, formats: Collection[str] = (), *, collects_garbage: bool = True
) -> tuple[Settings, Output]:
    """Return the settings and the output of this run.

    Without `collects_garbage` the process keeps cycles of objects to its end: for commands that
    read everything once. Raises UsageError for a format other than text, json and `formats`.
    """
    # A plan of 20,000 resources makes millions of small objects and hardly a cycle. With the
    # default threshold, a quarter of its time goes into garbage collection that finds nothing;
    # with this one still a tenth.
    gc.set_threshold(500_000, 20, 100)
    if not collects_garbage:
        gc.disable()
    settings = settings_of(ctx)
    output = Output(settings)
    output.check_options(formats)
    ctx.call_on_close(logs.configure(settings))
    ctx.call_on_close(output.close)
    return settings, output


def wait_for_servers(ctx: click.Context) -> None:
    """Wait for the servers as long as `--wait` allows."""
    from jsplan.workflows.wait import wait_for_servers as wait

    settings, output = start(ctx, FORMATS)
    wait(settings.load_options(), settings.wait, output.progress)
    output.progress.stop()
