"""Resolves symbolic references between domains once, to what the server takes (`external`), and draws the edges.

The answer is handed to planning and render. How one domain reaches another is `routes`, circles are `flows`; whether an
origin really exists is asked in `planning`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from jsplan.address import Address, is_glob, matches
from jsplan.config.model import DeclaredResource, Workspace
from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.resources.buckets import lower
from jsplan.resources.nested import origin_key
from jsplan.topology.replication_graph import Edge, find_circles
from jsplan.topology.routes import ApiRoute, DomainRoutes, NoRouteError

#: As many as a TopologicalSorter orders in some seconds.
MAX_DEPENDENCIES: Final = 2_000_000


@dataclass(slots=True)
class Topology:
    """The graph: every declared body with its references resolved and buckets lowered to streams, the flows, and who waits for whom.

    `after[a]` are the addresses that must be there before `a`: its stream, its origins, its `depends_on`.
    `names[a]` is how the files call what is really `a`: the same, but for what is declared by another way (`same_as`).
    `delivers[a]` are the delivery prefixes that an imports row gives the origins of `a` where the files write none, by
    `origin_key`; they are not in `bodies`, since an origin that exists keeps the prefix it has.
    """

    routes: DomainRoutes
    declared_names: dict[Address, Address] = field(default_factory=dict)
    bodies: dict[Address, dict[str, Any]] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    delivery_prefixes: dict[Address, dict[str, str]] = field(default_factory=dict)
    dependencies: dict[Address, set[Address]] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def find_declared(self, address: Address) -> Address:
        """How the files call what the address stands for: a stream that is declared by another way to its domain."""
        return self.declared_names.get(self.canonicalize(address), address)

    def canonicalize(self, address: Address) -> Address:
        """The address in the domain that stands for itself, where its own is another way to that (`same_as`)."""
        return address._replace(domain=self.routes.canonicalize(address.domain))


def build_topology(workspace: Workspace) -> Topology:
    """Resolve every reference of the workspace. Findings are collected in `diagnostics`, never raised."""
    topology = Topology(DomainRoutes(workspace))
    topology.declared_names = {
        topology.canonicalize(address): address for address in workspace.resources
    }
    named: dict[str, set[Address]] = {}
    total = 0
    for address, declared in workspace.resources.items():
        topology.bodies[address] = _resolve_body(workspace, declared, topology)
        total += sum(len(_match_addresses(workspace, text, named)) for text in declared.depends_on)
        topology.dependencies[address] = (
            _resolve_dependencies(declared, topology, named) if total <= MAX_DEPENDENCIES else set()
        )
    if total > MAX_DEPENDENCIES:
        text = f"`depends_on` of {len(workspace.resources):,} resources names more than {MAX_DEPENDENCIES:,} others in all"
        topology.diagnostics.append(
            Diagnostic("error", "JS148", text, "Write globs that match fewer resources.")
        )
    topology.diagnostics += [
        *_dependency_cycles(workspace, topology),
        *_duplicate_declarations(workspace, topology),
        *find_circles(topology.edges, workspace.resources),
    ]
    for edge in topology.edges:
        topology.dependencies[edge.downstream].add(edge.origin)
    return topology


def _dependency_cycles(workspace: Workspace, topology: Topology) -> list[Diagnostic]:
    """Resources that wait for each other by `depends_on` alone. Streams may copy from each other: the server does not mind."""
    try:
        TopologicalSorter(
            {address: sorted(after) for address, after in topology.dependencies.items()}
        ).prepare()
    except CycleError as error:
        first, way = error.args[1][0], " waits for ".join(map(str, reversed(error.args[1])))
        detail = "Take out the depends_on of one of them."
        return [
            Diagnostic(
                "error",
                "JS404",
                f"{way}: none can be the first",
                detail,
                str(first),
                workspace.resources[first].range,
            )
        ]
    return []


def _duplicate_declarations(workspace: Workspace, topology: Topology) -> list[Diagnostic]:
    """One thing on a server that is declared by two ways to it: each would be owned, changed and deleted for itself."""
    found, seen = [], dict[Address, Address]()
    for address, declared in workspace.resources.items():
        real = topology.canonicalize(address)
        first = seen.setdefault(real, address)
        if first != address:
            text = f"{first} and {address} are the same: {address.domain} and {first.domain} are two ways to one JetStream"
            found.append(
                Diagnostic(
                    "error",
                    "JS405",
                    text,
                    "Declare it in one of the two.",
                    str(address),
                    declared.range,
                )
            )
    return found


def _match_addresses(
    workspace: Workspace, text: str, known: dict[str, set[Address]]
) -> set[Address]:
    """The resources that an address or a glob names. Many resources have the same text, which is looked up once."""
    if text not in known:
        if is_glob(text):
            known[text] = {address for address in workspace.resources if matches(text, address)}
        else:
            known[text] = {Address.parse(text)} & workspace.resources.keys()
    return known[text]


def _resolve_dependencies(
    declared: DeclaredResource, topology: Topology, known: Mapping[str, set[Address]]
) -> set[Address]:
    address = declared.address
    found: set[Address] = {topology.find_declared(address.parent)} if address.parent else set()
    for text in declared.depends_on:
        named = known[text] - {address}
        if not named:
            topology.diagnostics.append(
                Diagnostic(
                    "error",
                    "JS401",
                    f'depends_on names "{text}", which is in no file',
                    "Take the line out, or declare it.",
                    str(address),
                    declared.range,
                )
            )
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
    """One mirror or source in the server's terms. A reference to the own domain is written without `external`."""
    origin = {name: value for name, value in written.items() if name not in ("domain", "deliver")}
    key = declared.address.domain
    target: str | None = written.get("domain")
    if target is not None and target in workspace.domains:
        way = _find_route(workspace, declared, target, kind, topology)
        if way is not None and way.api is not None:
            origin["external"] = {"api": way.api} | (
                {"deliver": written["deliver"]} if written.get("deliver") else {}
            )
            _set_delivery_prefix(declared, origin, kind, way, topology)
        leads_to = topology.routes.canonicalize(target) if way is not None else None
    else:
        leads_to = topology.routes.resolve_prefix(key, (origin.get("external") or {}).get("api"))
    if target is None and origin.get("external") and leads_to == topology.routes.canonicalize(key):
        _report_loopback(declared, origin, kind, topology)
    elif leads_to is not None:
        _add_edge(declared, Address.of_stream(leads_to, origin["name"]), kind, origin, topology)
    return origin


def _find_route(
    workspace: Workspace, declared: DeclaredResource, target: str, kind: str, topology: Topology
) -> ApiRoute | None:
    key = declared.address.domain
    try:
        way = topology.routes.find_route(key, target)
    except NoRouteError as error:
        topology.diagnostics.append(
            Diagnostic(
                "error",
                "JS402",
                str(error),
                error.detail,
                str(declared.address),
                _source_range(declared, kind),
            )
        )
        return None
    own, other = (
        workspace.connections.get(workspace.domains[topology.routes.canonicalize(k)].connection)
        for k in (key, target)
    )
    accounts = [c.account for c in (own, other) if c is not None and c.account]
    if way.api is not None and way.import_row is None and len(set(accounts)) > 1:
        text = f"{target} is in account {accounts[1]}, which account {accounts[0]} knows as {way.api} only by an import or a leafnode link"
        detail = f"Write an imports row: {{from: {target}, into: {key}, api: …, deliver: …}}."
        topology.diagnostics.append(
            Diagnostic(
                "warning",
                "JS450",
                text,
                detail,
                str(declared.address),
                _source_range(declared, kind),
            )
        )
    return way


def _set_delivery_prefix(
    declared: DeclaredResource,
    origin: Mapping[str, Any],
    kind: str,
    way: ApiRoute,
    topology: Topology,
) -> None:
    """The delivery prefix of an imports row: unique to the importing domain, stream and, for sources, origin."""
    address = declared.address
    if way.import_row is None or origin["external"].get("deliver"):
        return
    if way.deliver is None:
        text = f"{kind}: the imports row of {way.api} has no `deliver`, so {origin['name']} is delivered where no account exports it"
        detail = "Add `deliver:` to the row: the subject that the owner exports and this account imports. Without it nothing arrives."
        topology.diagnostics.append(
            Diagnostic(
                "warning", "JS451", text, detail, str(address), _source_range(declared, kind)
            )
        )
        return
    parts = [
        way.deliver,
        topology.routes.canonicalize(address.domain),
        address.stream,
        *([origin["name"]] if kind == "source" else []),
    ]
    topology.delivery_prefixes.setdefault(address, {})[origin_key(dict(origin))] = ".".join(parts)


def _report_loopback(
    declared: DeclaredResource, origin: Mapping[str, Any], kind: str, topology: Topology
) -> None:
    text = f"{kind}: {origin['external']['api']} leads back to {declared.address.domain} itself; the server accepts it and copies nothing"
    detail = "Leave `external` out, or write `domain:`."
    topology.diagnostics.append(
        Diagnostic(
            "error", "JS409", text, detail, str(declared.address), _source_range(declared, kind)
        )
    )


def _source_range(declared: DeclaredResource, kind: str) -> SourceRange:
    return declared.ranges.get("mirror" if kind == "mirror" else "sources", declared.range)


def _add_edge(
    declared: DeclaredResource,
    origin: Address,
    kind: str,
    config: Mapping[str, Any],
    topology: Topology,
) -> None:
    origin = topology.declared_names.get(origin, origin)
    if origin == declared.address:
        topology.diagnostics.append(
            Diagnostic(
                "error",
                "JS403",
                f"{origin} is a {kind} of itself",
                "Name another stream, or another domain.",
                str(origin),
                declared.range,
            )
        )
        return
    topology.edges.append(Edge(origin, declared.address, kind, config))
