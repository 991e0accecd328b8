"""Logging to stderr, off unless `-v` is given."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from jsplan.cli.settings import Settings


def configure(settings: Settings) -> Callable[[], None]:
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
