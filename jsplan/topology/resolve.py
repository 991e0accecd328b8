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
        topology.bodies[address] = _resolve_body(workspace, declared, topology)
        for text in declared.depends_on:
            total += len(_match_addresses(workspace, text, named))
        topology.dependencies[address] = (
            _resolve_dependencies(declared, topology, named) if total <= MAX_DEPENDENCIES else set()
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
        topology.dependencies[address] = _resolve_dependencies(declared, topology, named)
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
        _report(topology, "error", "JS404", text, detail, workspace.resources[first])


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
            _report(topology, "error", "JS405", text, detail, declared)


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


def _resolve_dependencies(
    declared: DeclaredResource, topology: Topology, known: Mapping[str, set[Address]]
) -> set[Address]:
    address, parent = declared.address, declared.address.parent
    found: set[Address] = {topology.find_declared(parent)} if parent is not None else set()
    for text in declared.depends_on:
        named = known[text] - {address}
        if not named:
            problem = f'depends_on names "{text}", which is in no file'
            detail = "Remove the line, or declare the resource."
            _report(topology, "error", "JS401", problem, detail, declared)
        found |= named
    return found


def _resolve_body(
    workspace: Workspace, declared: DeclaredResource, topology: Topology
) -> dict[str, Any]:
    body = lower(declared.address, declared.body)
    if body.get("mirror"):
        body["mirror"] = _resolve_origin(workspace, declared, body["mirror"], "mirror", topology)
    if body.get("sources"):
        body["sources"] = [
            _resolve_origin(workspace, declared, origin, "source", topology)
            for origin in body["sources"]
        ]
    return body


def _resolve_origin(
    workspace: Workspace,
    declared: DeclaredResource,
    written: Mapping[str, Any],
    kind: str,
    topology: Topology,
) -> dict[str, Any]:
    """Resolve one mirror or source to the server's terms.

    A reference to the own domain gets no `external`.
    """
    origin = {name: value for name, value in written.items() if name not in ("domain", "deliver")}
    key, api = declared.address.domain, (origin.get("external") or {}).get("api")
    target: str | None = written.get("domain")
    if target is not None and target in workspace.domains:
        route = _find_route(workspace, declared, target, kind, topology)
        if route is not None and route.api is not None:
            origin["external"] = {"api": route.api} | (
                {"deliver": written["deliver"]} if written.get("deliver") else {}
            )
            _set_delivery_prefix(declared, origin, kind, route, topology)
        leads_to = topology.routes.canonicalize(target) if route is not None else None
    else:
        leads_to = topology.routes.resolve_prefix(key, api)
    if target is None and api and leads_to == topology.routes.canonicalize(key):
        _report_loopback(declared, origin, kind, topology)
    elif leads_to is not None:
        _add_edge(declared, Address.of_stream(leads_to, origin["name"]), kind, origin, topology)
    return origin


def _find_route(
    workspace: Workspace, declared: DeclaredResource, target: str, kind: str, topology: Topology
) -> ApiRoute | None:
    key = declared.address.domain
    try:
        route = topology.routes.find_route(key, target)
    except NoRouteError as error:
        _report(topology, "error", "JS402", str(error), error.detail, declared, kind)
        return None
    own, other = (
        workspace.connections.get(workspace.domains[topology.routes.canonicalize(k)].connection)
        for k in (key, target)
    )
    accounts = [c.account for c in (own, other) if c is not None and c.account]
    if route.api is not None and route.import_row is None and len(set(accounts)) > 1:
        text = (
            f"{target} is in account {accounts[1]}, which account {accounts[0]} knows"
            f" as {route.api} only by an import or a leafnode link"
        )
        detail = f"Write an imports row: {{from: {target}, into: {key}, api: …, deliver: …}}."
        _report(topology, "warning", "JS450", text, detail, declared, kind)
    return route


def _set_delivery_prefix(
    declared: DeclaredResource,
    origin: Mapping[str, Any],
    kind: str,
    route: ApiRoute,
    topology: Topology,
) -> None:
    """Set the delivery prefix of an imports row.

    It is unique to the importing domain, the stream and, for sources, the origin.
    """
    address = declared.address
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
        _report(topology, "warning", "JS451", text, detail, declared, kind)
        return
    parts = [
        route.deliver,
        topology.routes.canonicalize(address.domain),
        address.stream,
        *([origin["name"]] if kind == "source" else []),
    ]
    topology.delivery_prefixes.setdefault(address, {})[origin_key(dict(origin))] = ".".join(parts)


def _report_loopback(
    declared: DeclaredResource, origin: Mapping[str, Any], kind: str, topology: Topology
) -> None:
    text = (
        f"{kind}: {origin['external']['api']} leads back to {declared.address.domain} itself;"
        " the server accepts it and copies nothing"
    )
    detail = "Remove `external`, or write `domain:`."
    _report(topology, "error", "JS409", text, detail, declared, kind)


def _report(
    topology: Topology,
    severity: Severity,
    code: str,
    text: str,
    detail: str,
    declared: DeclaredResource,
    kind: str = "",
) -> None:
    """Add a finding about a resource; with a `kind` of flow, at its mirror or sources."""
    place = declared.range
    if kind:
        place = declared.ranges.get("mirror" if kind == "mirror" else "sources", place)
    address = str(declared.address)
    topology.diagnostics.append(Diagnostic(severity, code, text, detail, address, place))


def _add_edge(
    declared: DeclaredResource,
    origin: Address,
    kind: str,
    config: Mapping[str, Any],
    topology: Topology,
) -> None:
    origin = topology.declared_names.get(origin, origin)
    if origin == declared.address:
        text, detail = f"{origin} is a {kind} of itself", "Name another stream, or another domain."
        _report(topology, "error", "JS403", text, detail, declared)
        return
    topology.edges.append(Edge(origin, declared.address, kind, config))
