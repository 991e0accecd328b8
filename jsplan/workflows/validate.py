"""validate: the files only, never the network."""

from __future__ import annotations

from dataclasses import replace

from jsplan.config import load
from jsplan.config.model import LoadOptions, Workspace
from jsplan.errors import ConfigError
from jsplan.topology import build_topology


def validate(options: LoadOptions) -> Workspace:
    """Return the workspace if it is valid. Raises ConfigError with every finding otherwise.

    Needs no variable of the environment that `${env.X}` names.
    """
    workspace = load(replace(options, files_only=True))
    found = [*workspace.diagnostics, *build_topology(workspace).diagnostics]
    if any(d.severity == "error" for d in found):
        raise ConfigError(found)
    return workspace
