"""graph: what a workspace declares, or a saved plan changes, as data for a picture."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from jsplan.documents.graph import Graph
from jsplan.topology.graph_document import build_declared_graph, build_planned_graph
from jsplan.workflows.plan import load_plan
from jsplan.workflows.validate import validate

if TYPE_CHECKING:
    from jsplan.config.model import LoadOptions


def build_workspace_graph(options: LoadOptions, targets: Collection[str] = ()) -> Graph:
    """Build the graph of the files. Raises ConfigError, and UsageError for an unknown target."""
    return build_declared_graph(validate(options), targets)


def build_plan_graph(path: Path, targets: Collection[str] = ()) -> Graph:
    """Build the graph of a saved plan. Raises DocumentError, UsageError for an unknown target."""
    return build_planned_graph(load_plan(path), targets)
