"""The graph of domains, mirrors and sources: references are resolved here, once."""

from __future__ import annotations

from jsplan.topology.resolve import Edge, Topology, resolve

__all__ = ["Edge", "Topology", "resolve"]
