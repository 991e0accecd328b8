"""The commands, one module each, imported when the command is called."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command of the command line. `module` is below `jsplan.cli.commands`."""

    help: str
    module: str
    attribute: str = "command"
