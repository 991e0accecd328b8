"""The graph of domains, mirrors and sources: references are resolved here, once."""

from __future__ import annotations

from jsplan.config.model import Workspace
from jsplan.topology.replication_graph import Edge
from jsplan.topology.resolve import Topology, resolve_references

__all__ = ["Edge", "Topology", "build_topology"]


def build_topology(workspace: Workspace) -> Topology:
    """Resolve every reference of the workspace, and derive the bodies of accounts.

    Findings go to `diagnostics`, nothing is raised.
    """
    topology = resolve_references(workspace)
    if workspace.accounts:
        from jsplan.topology.account_claims import (  # noqa: PLC0415 - most workspaces have none
            resolve_account_bodies,
        )

        resolve_account_bodies(workspace, topology)
    return topology
