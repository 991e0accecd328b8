"""Resolves references between domains to what the server takes (`external`).

The result is the graph of flows, for planning and render. `routes` finds how one domain reaches
another, `replication_graph` finds circles. `planning` checks that an origin exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import Address, is_glob, matches
from jsplan.config.model import DeclaredResource, Workspace
from jsplan.diagnostics import Diagnostic, Severity
from jsplan.resources.buckets import lower
from jsplan.resources.nested import origin_key
from jsplan.topology.replication_graph import Edge, find_circles
from jsplan.topology.routes import ApiRoute, DomainRoutes, NoRouteError

#: The number that a TopologicalSorter orders in some seconds.
MAX_DEPENDENCIES: Final = 2_000_000


class Topology(Struct):
    """The graph: bodies with resolved references and lowered buckets, flows and dependencies.

    `dependencies[a]` are the addresses that must exist before `a`: its stream, its origins, its
    `depends_on`. `declared_names[a]` is the address in the files of the real address `a`; it
    differs for domains with `same_as`. `delivery_prefixes[a]` are the delivery prefixes that an
    imports row gives the origins of `a` if the files have none, by `origin_key`; they are not in
    `bodies`, since an existing origin keeps its prefix.
    """

    routes: DomainRoutes
    declared_names: dict[Address, Address] = field(default_factory=dict)
    bodies: dict[Address, dict[str, Any]] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    delivery_prefixes: dict[Address, dict[str, str]] = field(default_factory=dict)
    dependencies: dict[Address, set[Address]] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    _edges_from: dict[Address, list[Edge]] = field(default_factory=dict)
    _edges_into: dict[Address, list[Edge]] = field(default_factory=dict)

    def edges_from(self, origin: Address) -> Sequence[Edge]:
        """Return the edges that begin at a stream, once all edges are found."""
        self._index_edges()
        return self._edges_from.get(origin, ())

    def edges_into(self, downstream: Address) -> Sequence[Edge]:
        """Return the edges that end at a stream, once all edges are found."""
        self._index_edges()
        return self._edges_into.get(downstream, ())

    def _index_edges(self) -> None:
        if not self._edges_from:
            for edge in self.edges:
                self._edges_from.setdefault(edge.origin, []).append(edge)
                self._edges_into.setdefault(edge.downstream, []).append(edge)

    def delivery_prefix(self, edge: Edge) -> str:
        """Return the delivery prefix of a flow, as far as the files have it."""
        external = edge.config.get("external") or {}
        if not external or external.get("deliver"):
            return str(external.get("deliver") or "")
        known = self.delivery_prefixes.get(edge.downstream, {})
        return known.get(origin_key(dict(edge.config)), "")

    def dependency_names(self, address: Address) -> list[str]:
        """Return what must exist before the resource, as text and sorted."""
        found = self.dependencies.get(address)
        return sorted(map(str, found)) if found else []

    def find_declared(self, address: Address) -> Address:
        """Return the address in the files: its domain may have another key there."""
        return self.declared_names.get(self.canonicalize(address), address)

    def canonicalize(self, address: Address) -> Address:
        """Return the address with the key of the real domain instead of a `same_as` key."""
        domain = self.routes.canonicalize(address.domain)
        return address if domain == address.domain else address._replace(domain=domain)


def resolve_references(workspace: Workspace) -> Topology:
    """Resolve every reference of the workspace. Findings go to `diagnostics`, nothing is raised."""
    topology = Topology(DomainRoutes(workspace))
    contents = {a: declared for a, declared in workspace.resources.items() if a.is_content}
    if contents:  # they copy from nothing, and wait for their bucket alone
        others = {a: found for a, found in workspace.resources.items() if a not in contents}
        workspace = replace(workspace, resources=others)
    topology.declared_names = {
        topology.canonicalize(address): address for address in workspace.resources
    }
    named: dict[str, set[Address]] = {}
    total = 0
    for address, declared in workspace.resources.items():
        resolver = _Resolver(workspace, topology, declared)
        topology.bodies[address] = resolver.resolve_body()
        for text in declared.depends_on:
            total += len(_match_addresses(workspace, text, named))
        topology.dependencies[address] = (
            resolver.resolve_dependencies(named) if total <= MAX_DEPENDENCIES else set()
        )
    if total > MAX_DEPENDENCIES:
        text = (
            f"`depends_on` of {len(workspace.resources):,} resources names more than"
            f" {MAX_DEPENDENCIES:,} others in all"
        )
        topology.diagnostics.append(
            Diagnostic("error", "JS148", text, "Write globs that match fewer resources.")
        )
    _report_dependency_cycles(workspace, topology)
    _report_duplicates(workspace, topology)
    topology.diagnostics += find_circles(topology.edges, workspace.resources)
    for edge in topology.edges:
        topology.dependencies[edge.downstream].add(edge.origin)
    for address, declared in contents.items():
        topology.bodies[address] = dict(declared.body)
        resolver = _Resolver(workspace, topology, declared)
        topology.dependencies[address] = resolver.resolve_dependencies(named)
    return topology


def _report_dependency_cycles(workspace: Workspace, topology: Topology) -> None:
    """Report resources that wait for each other by `depends_on` alone.

    Streams may copy from each other: the server accepts that.
    """
    if not any(declared.depends_on for declared in workspace.resources.values()):
        return  # a consumer waits for its stream, which waits for nothing
    try:
        TopologicalSorter(
            {address: sorted(after) for address, after in topology.dependencies.items()}
        ).prepare()
    except CycleError as error:
        first, chain = error.args[1][0], " waits for ".join(map(str, reversed(error.args[1])))
        text, detail = f"{chain}: none can be the first", "Take out the depends_on of one of them."
        _Resolver(workspace, topology, workspace.resources[first]).report(
            "error", "JS404", text, detail
        )


def _report_duplicates(workspace: Workspace, topology: Topology) -> None:
    """Report a resource that is declared through two domains of one JetStream.

    Each declaration would be owned, changed and deleted by itself.
    """
    if len(topology.declared_names) == len(workspace.resources):
        return
    seen: dict[Address, Address] = {}
    for address, declared in workspace.resources.items():
        real = topology.canonicalize(address)
        first = seen.setdefault(real, address)
        if first != address:
            text = (
                f"{first} and {address} are the same resource:"
                f" {address.domain} and {first.domain} are one JetStream"
            )
            detail = "Declare it in one of the two domains."
            _Resolver(workspace, topology, declared).report("error", "JS405", text, detail)


def _match_addresses(
    workspace: Workspace, text: str, known: dict[str, set[Address]]
) -> set[Address]:
    """Return the resources that an address or a glob names.

    Many resources have the same text, which is looked up once.
    """
    if text not in known:
        if is_glob(text):
            known[text] = {address for address in workspace.resources if matches(text, address)}
        else:
            known[text] = {Address.parse(text)} & workspace.resources.keys()
    return known[text]


class _Resolver(Struct):
    """Resolves one resource of a workspace."""

    workspace: Workspace
    topology: Topology
    declared: DeclaredResource

    def report(self, severity: Severity, code: str, text: str, detail: str, kind: str = "") -> None:
        """Add a finding about the resource; with a `kind` of flow, at its mirror or sources."""
        place = self.declared.range
        if kind:
            place = self.declared.ranges.get("mirror" if kind == "mirror" else "sources", place)
        address = str(self.declared.address)
        found = Diagnostic(severity, code, text, detail, address, place)
        self.topology.diagnostics.append(found)

    def resolve_dependencies(self, known: Mapping[str, set[Address]]) -> set[Address]:
        """Return what must exist before it. `known` are the resources by each text."""
        address, parent = self.declared.address, self.declared.address.parent
        found = {self.topology.find_declared(parent)} if parent is not None else set[Address]()
        for text in self.declared.depends_on:
            named = known[text] - {address}
            if not named:
                problem = f'depends_on names "{text}", which is in no file'
                detail = "Remove the line, or declare the resource."
                self.report("error", "JS401", problem, detail)
            found |= named
        return found

    def resolve_body(self) -> dict[str, Any]:
        """Return its body as the server takes it, and add its flows."""
        body = lower(self.declared.address, self.declared.body)
        if body.get("mirror"):
            body["mirror"] = self._resolve_origin(body["mirror"], "mirror")
        if body.get("sources"):
            body["sources"] = [self._resolve_origin(origin, "source") for origin in body["sources"]]
        return body

    def _resolve_origin(self, written: Mapping[str, Any], kind: str) -> dict[str, Any]:
        """Resolve one mirror or source to the server's terms.

        A reference to the own domain gets no `external`.
        """
        routes, key = self.topology.routes, self.declared.address.domain
        origin = {
            name: value for name, value in written.items() if name not in ("domain", "deliver")
        }
        api, target = (origin.get("external") or {}).get("api"), written.get("domain")
        if target is not None and target in self.workspace.domains:
            route = self._find_route(target, kind)
            if route is not None and route.api is not None:
                origin["external"] = {"api": route.api}
                if written.get("deliver"):
                    origin["external"]["deliver"] = written["deliver"]
                self._set_delivery_prefix(origin, kind, route)
            leads_to = routes.canonicalize(target) if route is not None else None
        else:
            leads_to = routes.resolve_prefix(key, api)
        if target is None and api and leads_to == routes.canonicalize(key):
            text = (
                f"{kind}: {api} leads back to {key} itself;"
                " the server accepts it and copies nothing"
            )
            self.report("error", "JS409", text, "Remove `external`, or write `domain:`.", kind)
        elif leads_to is not None:
            self._add_edge(Address.of_stream(leads_to, origin["name"]), kind, origin)
        return origin

    def _find_route(self, target: str, kind: str) -> ApiRoute | None:
        workspace, routes = self.workspace, self.topology.routes
        key = self.declared.address.domain
        try:
            route = routes.find_route(key, target)
        except NoRouteError as error:
            self.report("error", "JS402", str(error), error.detail, kind)
            return None
        own, other = (
            workspace.connections.get(workspace.domains[routes.canonicalize(k)].connection)
            for k in (key, target)
        )
        accounts = [c.account for c in (own, other) if c is not None and c.account]
        if route.api is not None and route.import_row is None and len(set(accounts)) > 1:
            text = (
                f"{target} is in account {accounts[1]}, which account {accounts[0]} knows"
                f" as {route.api} only by an import or a leafnode link"
            )
            detail = f"Write an imports row: {{from: {target}, into: {key}, api: …, deliver: …}}."
            self.report("warning", "JS450", text, detail, kind)
        return route

    def _set_delivery_prefix(self, origin: Mapping[str, Any], kind: str, route: ApiRoute) -> None:
        """Set the delivery prefix of an imports row.

        It is unique to the importing domain, the stream and, for sources, the origin.
        """
        address, topology = self.declared.address, self.topology
        if route.import_row is None or origin["external"].get("deliver"):
            return
        if route.deliver is None:
            text = (
                f"{kind}: the imports row of {route.api} has no `deliver`,"
                f" so {origin['name']} is delivered where no account exports it"
            )
            detail = (
                "Add `deliver:` to the row: the subject that the owner exports and this account"
                " imports. Without it no message arrives."
            )
            self.report("warning", "JS451", text, detail, kind)
            return
        parts = [
            route.deliver,
            topology.routes.canonicalize(address.domain),
            address.stream,
            *([origin["name"]] if kind == "source" else []),
        ]
        prefixes = topology.delivery_prefixes.setdefault(address, {})
        prefixes[origin_key(dict(origin))] = ".".join(parts)

    def _add_edge(self, origin: Address, kind: str, config: Mapping[str, Any]) -> None:
        address = self.declared.address
        origin = self.topology.declared_names.get(origin, origin)
        if origin == address:
            text = f"{origin} is a {kind} of itself"
            self.report("error", "JS403", text, "Name another stream, or another domain.")
            return
        self.topology.edges.append(Edge(origin, address, kind, config))
