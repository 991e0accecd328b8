"""Start of every command: logging to stderr, output, and options that it does not support."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from jsplan.cli.output import Output
from jsplan.cli.settings import FORMATS, settings_of

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Collection

    import click

    from jsplan.api import Workspace
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
    ctx.call_on_close(configure_logs(settings))
    ctx.call_on_close(output.close)
    return settings, output


def open_workspace(
    ctx: click.Context, formats: Collection[str] = (), *, collects_garbage: bool = True
) -> tuple[Workspace, Output]:
    """Return the workspace that the options choose and the output of this run, like `start`."""
    from jsplan.api import Workspace

    settings, output = start(ctx, formats, collects_garbage=collects_garbage)
    return Workspace(settings.load_options(), output.progress), output


def wait_for_servers(ctx: click.Context) -> None:
    """Wait for the servers as long as `--wait` allows."""
    from jsplan.workflows.wait import wait_for_servers as wait

    settings, output = start(ctx, FORMATS)
    wait(settings.load_options(), settings.wait, output.progress)
    output.progress.stop()


def configure_logs(settings: Settings) -> Callable[[], None]:
    """Log what jsplan and its libraries do (`-v`), with details (`-vv`); hide passwords of URLs.

    Returns the function that ends it: a program that calls a command has logging of its own.
    """
    if not settings.verbose:
        return lambda: None
    import logging

    root, handler = logging.getLogger(), logging.StreamHandler(sys.stderr)
    handlers, level = root.handlers, root.level
    handler.setFormatter(_formatter(json_lines=settings.log_format == "json"))
    root.handlers = [handler]
    root.setLevel(logging.DEBUG if settings.verbose > 1 else logging.INFO)

    def end() -> None:
        root.handlers = handlers
        root.setLevel(level)

    return end


def _formatter(*, json_lines: bool) -> logging.Formatter:
    import json
    import logging
    from datetime import UTC, datetime

    from jsplan.cli.exit_status import scrub
    from jsplan.render.escape import safe
    from jsplan.units import format_timestamp

    class Formatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            message = scrub(record.getMessage())
            if not json_lines:
                return f"{record.levelname.lower()}: {record.name}: {safe(message)}"
            return json.dumps(
                {
                    "time": format_timestamp(datetime.fromtimestamp(record.created, UTC)),
                    "level": record.levelname.lower(),
                    "logger": record.name,
                    "message": message,
                }
            )

    return Formatter()
