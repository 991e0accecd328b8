"""Builds the Graph document: what a workspace declares, or what a plan changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import Address, matches_any
from jsplan.documents.graph import ConsumerNode, DomainGroup, Graph, Link, Node, PlannedAction
from jsplan.errors import UsageError
from jsplan.resources.nested import origin_key
from jsplan.topology import build_topology
from jsplan.topology.replication_graph import subject_mappings
from jsplan.units import format_duration, format_size

if TYPE_CHECKING:
    from jsplan.config.model import Workspace
    from jsplan.documents.plan import Plan


#: Resolves an API prefix, as seen from a domain, to a domain; without a prefix to itself.
ResolvePrefix = Callable[[str, "str | None"], "str | None"]
_ACTION_BY_CHANGES: Mapping[tuple[str, ...], PlannedAction] = {
    ("create",): "create", ("update",): "update", ("delete",): "delete", ("forget",): "forget",
    ("delete", "create"): "replace", ("create", "delete"): "replace",
}  # fmt: skip


class _GraphInput(Struct):
    """Declared or planned resources by address, with the server's configuration.

    `before` is the old configuration of updated resources, whose flows may change.
    """

    title: str
    resolve_prefix: ResolvePrefix
    planned: bool = False
    resources: dict[Address, tuple[Mapping[str, Any], PlannedAction]] = field(default_factory=dict)
    before: dict[Address, Mapping[str, Any]] = field(default_factory=dict)


def build_declared_graph(workspace: Workspace, targets: Collection[str] = ()) -> Graph:
    """Build the graph of the files. Raises UsageError for an unknown target."""
    topology = build_topology(workspace)
    graph_input = _GraphInput(workspace.state_name, topology.routes.resolve_prefix)
    for address, body in topology.bodies.items():
        graph_input.resources[topology.canonicalize(address)] = (body, None)
    return _select_targets(_build_graph(graph_input), targets)


def build_planned_graph(plan: Plan, targets: Collection[str] = ()) -> Graph:
    """Build the graph of a plan. Raises UsageError for an unknown target."""
    graph_input = _GraphInput(_plan_title(plan), _plan_prefix_resolver(plan), planned=True)
    for change in plan.resource_changes:
        config = change.change.after if change.change.after is not None else change.change.before
        action: PlannedAction = _ACTION_BY_CHANGES.get(tuple(change.change.actions))
        graph_input.resources[Address.parse(change.address)] = (
            config or {},
            action or ("import" if change.change.importing else None),
        )
        if action == "update":
            graph_input.before[Address.parse(change.address)] = change.change.before or {}
    for deferred in plan.deferred:
        graph_input.resources.setdefault(Address.parse(deferred.address), ({}, "deferred"))
    return _select_targets(_build_graph(graph_input), targets)


def _plan_title(plan: Plan) -> str:
    return f"{plan.workspace}.{plan.environment}" if plan.environment else plan.workspace


def _plan_prefix_resolver(plan: Plan) -> ResolvePrefix:
    """Return a resolver by the prefixes and imports of each domain in the plan."""

    def resolve(domain: str, api: str | None) -> str | None:
        imported = plan.domains.get(domain, {}).get("imports", {})
        if api is None or api in imported:
            return domain if api is None else str(imported[api])
        candidates = [key for key, facts in plan.domains.items() if facts.get("api_prefix") == api]
        own = plan.domains.get(domain, {}).get("connection")
        near = [key for key in candidates if plan.domains[key].get("connection") == own]
        return next(iter([*near, *candidates]), None)

    return resolve


def _build_graph(graph_input: _GraphInput) -> Graph:
    nodes: dict[Address, Node] = {}
    for address, (config, action) in graph_input.resources.items():
        if address.kind != "consumer" and not address.is_content:
            nodes[address] = _build_node(address, config, action)
    for address, (config, action) in sorted(graph_input.resources.items()):
        if address.kind == "consumer":
            parent = address.parent
            assert parent is not None
            known = nodes.setdefault(parent, _external_node(parent))
            nodes[parent] = replace(
                known,
                consumers=(
                    *known.consumers,
                    ConsumerNode(address.consumer, _describe_consumer(config), action),
                ),
            )
    links = list(_build_links(graph_input, nodes))
    clusters = [
        DomainGroup(key, key) for key in dict.fromkeys(node.domain for node in nodes.values())
    ]
    return Graph(graph_input.title, graph_input.planned, clusters, list(nodes.values()), links)


def _build_node(address: Address, config: Mapping[str, Any], action: PlannedAction) -> Node:
    assert address.kind != "consumer"
    assert address.kind != "kv_entry"
    assert address.kind != "object"
    assert address.kind != "schedule"
    assert address.kind != "account"
    has_origins = config.get("mirror") or config.get("sources")
    plain = address.kind == "stream"
    subjects = tuple(
        config.get("subjects") or (() if has_origins or not (plain and config) else (address.name,))
    )
    return Node(
        str(address),
        address.domain,
        address.kind,
        address.name,
        subjects if plain else (),
        _describe_stream(config),
        (),
        action,
    )


def _external_node(address: Address) -> Node:
    return Node(
        str(address), address.domain, "outside", address.stream, summary="not in this workspace"
    )


def _describe_stream(config: Mapping[str, Any]) -> str:
    """Describe a stream in short: retention, storage, limits, replicas."""
    retention, replicas = config.get("retention") or "limits", config.get("num_replicas") or 1
    words = [{"workqueue": "work queue", "interest": "interest"}.get(retention, "")]
    words += ["in memory" if config.get("storage") == "memory" else ""]
    words += [format_duration(config["max_age"]) if (config.get("max_age") or 0) > 0 else ""]
    words += [format_size(config["max_bytes"]) if (config.get("max_bytes") or 0) > 0 else ""]
    words += [f"R{replicas}" if replicas > 1 else "", "sealed" if config.get("sealed") else ""]
    return " · ".join(word for word in words if word)


def _describe_consumer(config: Mapping[str, Any]) -> str:
    single = config.get("filter_subject")
    filters = [single] if single else list(config.get("filter_subjects") or ())
    push = f"to {config['deliver_subject']}" if config.get("deliver_subject") else ""
    acks = config.get("ack_policy") or "none"
    return " · ".join(
        word
        for word in (", ".join(filters), push, "no acks" if acks == "none" else f"ack {acks}")
        if word
    )


def _build_links(graph_input: _GraphInput, nodes: dict[Address, Node]) -> Iterator[Link]:
    """Yield the flows. An origin that is in neither files nor plan gets its own node."""
    for address, (config, action) in list(graph_input.resources.items()):
        if address.kind == "consumer":
            continue
        for kind, origin, change in _origin_changes(
            config, graph_input.before.get(address), action
        ):
            api = (origin.get("external") or {}).get("api")
            source = Address.of_stream(
                graph_input.resolve_prefix(address.domain, api) or str(api), origin["name"]
            )
            nodes.setdefault(source, _external_node(source))
            yield Link(str(source), str(address), kind, _origin_label(origin), change)


OriginConfig = tuple[Literal["mirror", "source"], Mapping[str, Any]]


def _origin_changes(
    after: Mapping[str, Any], before: Mapping[str, Any] | None, action: PlannedAction
) -> Iterator[tuple[*OriginConfig, PlannedAction]]:
    """Yield mirror and sources, each with the action of the stream, or its own in an update."""
    new, old = _origin_configs(after), _origin_configs(before) if before is not None else {}
    for key, (kind, origin) in new.items():
        yield kind, origin, action if before is None else None if key in old else "create"
    for key, (kind, origin) in old.items():
        if key not in new:
            yield kind, origin, "delete"


def _origin_configs(config: Mapping[str, Any]) -> dict[tuple[str, str], OriginConfig]:
    found: list[OriginConfig] = [("mirror", config["mirror"])] if config.get("mirror") else []
    found += [("source", source) for source in config.get("sources") or ()]
    return {(kind, origin_key(dict(origin))): (kind, origin) for kind, origin in found}


def _origin_label(origin: Mapping[str, Any]) -> str:
    """Describe filters and subject transforms; empty if all subjects pass unchanged."""
    shown = []
    transforms = {
        t.get("src") or ">": t.get("dest") or "" for t in origin.get("subject_transforms") or ()
    }
    for src, dest in subject_mappings(origin):
        mapped = transforms.get(src, "")
        if (src, dest) != (">", ">"):
            shown.append(f"{src} → {mapped}" if mapped and dest != src else src)
    return ", ".join(shown)


def _select_targets(graph: Graph, targets: Collection[str]) -> Graph:
    """Return the matching nodes with their origins and downstream streams."""
    if not targets:
        return graph
    named = {node.id for node in graph.nodes if matches_any(targets, node.id)}
    if not named:
        raise UsageError(
            f"--target {', '.join(targets)} names nothing in the graph",
            hint="A target is an address of a stream, or a glob.",
        )
    near = named | {
        end
        for link in graph.links
        for end in (link.origin, link.downstream)
        if {link.origin, link.downstream} & named
    }
    nodes = [node for node in graph.nodes if node.id in near]
    links = [
        link
        for link in graph.links
        if link.origin in near
        and link.downstream in near
        and {link.origin, link.downstream} & named
    ]
    clusters = [
        cluster
        for cluster in graph.domain_groups
        if any(node.domain == cluster.key for node in nodes)
    ]
    return Graph(graph.title, graph.planned, clusters, nodes, links)
