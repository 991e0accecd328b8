"""The graph of domains, mirrors and sources: references are resolved here, once."""

from __future__ import annotations

from jsplan.topology.replication_graph import Edge
from jsplan.topology.resolve import Topology, build_topology

__all__ = ["Edge", "Topology", "build_topology"]
