"""Logging to stderr, off unless `-v` is given."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

    from jsplan.cli.settings import Settings


def configure(settings: Settings) -> None:
    """Log what jsplan and its libraries do (`-v`), with details (`-vv`); hide passwords of URLs."""
    if not settings.verbose:
        return
    import logging

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(json_lines=settings.log_format == "json"))
    logging.basicConfig(
        level=logging.DEBUG if settings.verbose > 1 else logging.INFO,
        handlers=[handler],
        force=True,
    )


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
