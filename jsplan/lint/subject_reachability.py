"""Domains that share messages.

Domains over one connection are in one account whose servers are joined, by leafnodes or as one. A
message published in one reaches all of them, unless a leafnode denies the subject, which no file of
the workspace says. An import joins nothing but what it names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from jsplan.topology.routes import is_import

if TYPE_CHECKING:
    from jsplan.config.model import Workspace
    from jsplan.topology import Topology

T = TypeVar("T")


class DisjointSets(dict[T, T]):
    """Disjoint groups of items."""

    def find(self, one: T) -> T:
        """Return the representative of the group."""
        while (up := self.get(one, one)) != one:
            one = up
        return one

    def union(self, one: T, other: T) -> None:
        """Merge two groups."""
        a, b = self.find(one), self.find(other)
        if a != b:
            self[b] = a


class ConnectedDomains:
    """Groups of domains that share messages."""

    def __init__(self, workspace: Workspace, topology: Topology) -> None:
        self._groups: DisjointSets[str] = DisjointSets()
        self._reach = topology.routes
        first: dict[str, str] = {}
        for key, domain in workspace.domains.items():
            if domain.is_own and not is_import(domain):
                self._groups.union(first.setdefault(domain.connection, key), key)
        for edge in topology.edges:
            api = (edge.config.get("external") or {}).get("api")
            if api and not topology.routes.is_imported(edge.downstream.domain, api):
                self._groups.union(
                    self.group_of(edge.downstream.domain), self.group_of(edge.origin.domain)
                )

    def group_of(self, domain: str) -> str:
        """Return the name of a domain's group."""
        return self._groups.find(self._reach.canonicalize(domain))

    def shares_interest(self, one: str, other: str) -> bool:
        """Check whether a message published in one domain reaches the other."""
        return self.group_of(one) == self.group_of(other)
