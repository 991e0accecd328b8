"""The graph of domains, mirrors and sources: references are resolved here, once."""

from __future__ import annotations

from jsplan.topology.flows import Edge
from jsplan.topology.resolve import Topology, resolve

__all__ = ["Edge", "Topology", "resolve"]
