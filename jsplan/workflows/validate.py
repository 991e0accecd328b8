"""validate and graph: the files only, never the network."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from pathlib import Path

from msgspec.structs import replace

from jsplan.config import load
from jsplan.config.model import LoadOptions, Workspace
from jsplan.diagnostics import Diagnostic
from jsplan.disk import is_file
from jsplan.documents.graph import Graph
from jsplan.errors import ConfigError
from jsplan.resources.server_features import NEWEST_LEVEL, SERVER_VERSIONS, find_level
from jsplan.topology import Topology, build_topology
from jsplan.topology.graph_document import build_declared_graph, build_planned_graph
from jsplan.topology.overlaps import check_declared_subjects
from jsplan.workflows.plan import load_plan


def validate(options: LoadOptions, server_version: str | None = None) -> Workspace:
    """Return the workspace if it is valid. Raises ConfigError with every finding otherwise.

    With `server_version`, such as `2.12`, the findings about servers of that release are among its
    diagnostics. Needs no variable of the environment that `${env.X}` names.
    """
    level = None if server_version is None else require_level(server_version)
    workspace = load(dataclasses.replace(options, files_only=True))
    topology = build_topology(workspace)
    found = require_valid(workspace, topology)
    if missing := list(_check_transform_files(workspace)):
        raise ConfigError([*found, *missing])
    if server_version is None or level is None:
        return workspace
    # Loaded only here: the files alone need no planning.
    from jsplan.planning.server_version import check_server_version  # noqa: PLC0415

    found += check_server_version(workspace, topology, server_version, level)
    if any(d.severity == "error" for d in found):
        raise ConfigError(found)
    return replace(workspace, diagnostics=tuple(found))


def require_level(version: str) -> int:
    """Return the API level of a release of nats-server. Raises ConfigError for an unknown one."""
    try:
        return find_level(version)
    except ValueError:
        text = f"jsplan has no rules for nats-server {version}"
        known = f"{SERVER_VERSIONS[0]} to {SERVER_VERSIONS[NEWEST_LEVEL]}"
        detail = f"Write a release from {known}, such as 2.12 or 2.12.8."
        raise ConfigError([Diagnostic("error", "JS466", text, detail)]) from None


def _check_transform_files(workspace: Workspace) -> Iterator[Diagnostic]:
    """Find transforms whose file is missing. Where a job runs there is none: it has the text."""
    for entry in workspace.backfills.values():
        name = (entry.transform or "").rpartition(":")[0]
        if name and not is_file(workspace.root / name):
            text = f"backfill {entry.name}: `transform`: there is no file {name}"
            detail = "The path is relative to the file that names it."
            yield Diagnostic("error", "JS130", text, detail, None, entry.range)


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


def build_workspace_graph(options: LoadOptions, targets: Collection[str] = ()) -> Graph:
    """Build the graph of the files. Raises ConfigError, and UsageError for an unknown target."""
    return build_declared_graph(validate(options), targets)


def build_plan_graph(path: Path, targets: Collection[str] = ()) -> Graph:
    """Build the graph of a saved plan. Raises DocumentError, UsageError for an unknown target."""
    return build_planned_graph(load_plan(path), targets)
