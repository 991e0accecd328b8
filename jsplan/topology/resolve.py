"""Resolves symbolic references between domains once, to what the server takes (`external`), and draws the edges.

The answer is handed to planning and render. Whether an origin really exists is asked in `planning`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from jsplan.address import Address, matches
from jsplan.config.model import Declared, Workspace
from jsplan.diagnostics import Diagnostic
from jsplan.resources.buckets import lower


@dataclass(frozen=True, slots=True)
class Edge:
    """`copy` mirrors or sources `origin`; both are streams or buckets. `kind` is `mirror` or `source`."""

    origin: Address
    copy: Address
    kind: str


@dataclass(slots=True)
class Topology:
    """The graph: every declared body with its references resolved and buckets lowered to streams, the flows, and who waits for whom.

    `after[a]` are the addresses that must be there before `a`: its stream, its origins, its `depends_on`.
    """

    bodies: dict[Address, dict[str, Any]] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    after: dict[Address, set[Address]] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)


def resolve(workspace: Workspace) -> Topology:
    """Resolve every reference of the workspace. Findings are collected in `diagnostics`, never raised."""
    topology = Topology()
    prefixes = {domain.api_prefix: domain.key for domain in workspace.domains.values() if domain.same_as is None}
    for address, declared in workspace.resources.items():
        topology.bodies[address] = _resolved(workspace, declared, prefixes, topology)
        topology.after[address] = _dependencies(workspace, declared, topology)
    topology.diagnostics += [*_circles(workspace, topology), *_twice(workspace)]
    for edge in topology.edges:
        topology.after[edge.copy].add(edge.origin)
    return topology


def _circles(workspace: Workspace, topology: Topology) -> list[Diagnostic]:
    """Resources that wait for each other by `depends_on` alone. Streams may copy from each other: the server does not mind."""
    try:
        TopologicalSorter({address: sorted(after) for address, after in topology.after.items()}).prepare()
    except CycleError as error:
        first, way = error.args[1][0], " waits for ".join(map(str, reversed(error.args[1])))
        detail = "Take out the depends_on of one of them."
        return [Diagnostic("error", "JS404", f"{way}: none can be the first", detail, str(first), workspace.resources[first].range)]
    return []


def _twice(workspace: Workspace) -> list[Diagnostic]:
    """One thing on a server that is declared by two ways to it: each would be owned, changed and deleted for itself."""
    found, seen = [], dict[Address, Address]()
    for address, declared in workspace.resources.items():
        real = address._replace(domain=workspace.domains[address.domain].same_as or address.domain)
        first = seen.setdefault(real, address)
        if first != address:
            text = f"{first} and {address} are the same: {address.domain} and {first.domain} are two ways to one JetStream"
            found.append(Diagnostic("error", "JS405", text, "Declare it in one of the two.", str(address), declared.range))
    return found


def _dependencies(workspace: Workspace, declared: Declared, topology: Topology) -> set[Address]:
    address = declared.address
    found: set[Address] = {address.parent} if address.parent else set()
    for text in declared.depends_on:
        named = {other for other in workspace.resources if matches(text, other) and other != address}
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


def _resolved(workspace: Workspace, declared: Declared, prefixes: Mapping[str, str], topology: Topology) -> dict[str, Any]:
    body = lower(declared.address, declared.body)
    if body.get("mirror"):
        body["mirror"] = _origin(workspace, declared, body["mirror"], "mirror", prefixes, topology)
    if body.get("sources"):
        body["sources"] = [_origin(workspace, declared, origin, "source", prefixes, topology) for origin in body["sources"]]
    return body


def _origin(
    workspace: Workspace, declared: Declared, written: Mapping[str, Any], kind: str, prefixes: Mapping[str, str], topology: Topology
) -> dict[str, Any]:
    """One mirror or source in the server's terms. A reference to the own domain is written without `external`."""
    origin = {name: value for name, value in written.items() if name not in ("domain", "deliver")}
    own = workspace.domains[declared.address.domain]
    target = written.get("domain")
    if target is not None:
        external = _external(workspace, declared, target, topology)
        if external is not None and written.get("deliver"):
            external["deliver"] = written["deliver"]
        if external is not None:
            origin["external"] = external
    api = (origin.get("external") or {}).get("api")
    key = own.key if api is None else target or prefixes.get(api)
    if key is not None:
        _add_edge(declared, Address.of_stream(key, origin["name"]), kind, topology)
    return origin


def _external(workspace: Workspace, declared: Declared, target: str, topology: Topology) -> dict[str, Any] | None:
    domain, own = workspace.domains.get(target), workspace.domains[declared.address.domain]
    if domain is None or target == own.key or (domain.api_prefix == own.api_prefix and domain.connection == own.connection):
        return None
    if domain.js_domain is None:
        topology.diagnostics.append(
            Diagnostic(
                "error", "JS402", f"{target} has no JetStream domain, so {own.key} cannot reach it as $JS.<domain>.API",
                f"The server refuses $JS.API as external. Write an imports row: {{from: {target}, into: {own.key}, api: …}}.",
                str(declared.address), declared.range,
            )
        )  # fmt: skip
        return None
    return {"api": f"$JS.{domain.js_domain}.API"}


def _add_edge(declared: Declared, origin: Address, kind: str, topology: Topology) -> None:
    if origin == declared.address:
        topology.diagnostics.append(
            Diagnostic(
                "error", "JS403", f"{origin} is a {kind} of itself", "Name another stream, or another domain.", str(origin), declared.range
            )
        )
        return
    topology.edges.append(Edge(origin, declared.address, kind))
