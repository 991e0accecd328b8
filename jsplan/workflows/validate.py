"""validate: the files only, never the network."""

from __future__ import annotations

from dataclasses import replace

from jsplan.config import load
from jsplan.config.model import LoadOptions, Workspace
from jsplan.diagnostics import Diagnostic
from jsplan.errors import ConfigError
from jsplan.topology import Topology, build_topology
from jsplan.topology.overlaps import check_declared_subjects


def validate(options: LoadOptions) -> Workspace:
    """Return the workspace if it is valid. Raises ConfigError with every finding otherwise.

    Needs no variable of the environment that `${env.X}` names.
    """
    workspace = load(replace(options, files_only=True))
    require_valid(workspace, build_topology(workspace))
    return workspace


def require_valid(workspace: Workspace, topology: Topology) -> list[Diagnostic]:
    """Return the warnings about the files. Raises ConfigError with every finding for an error."""
    found = [
        *workspace.diagnostics,
        *topology.diagnostics,
        *check_declared_subjects(workspace, topology),
    ]
    if any(d.severity == "error" for d in found):
        raise ConfigError(found)
    return found
