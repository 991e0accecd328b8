"""graph: what a workspace declares, or what a saved plan would make of it, as a picture's data. Asks no server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jsplan.address import Address, matches
from jsplan.documents.graph import ConsumerNode, DomainGroup, Graph, Link, Node, PlannedAction
from jsplan.errors import UsageError
from jsplan.resources.nested import origin_key
from jsplan.topology import build_topology
from jsplan.topology.replication_graph import subject_mappings
from jsplan.units import format_duration, format_size
from jsplan.workflows.plan import load_plan
from jsplan.workflows.validate import validate

if TYPE_CHECKING:
    from jsplan.config.model import LoadOptions
    from jsplan.documents.plan import Plan

#: The domain whose JetStream an API prefix leads to, as seen from a domain; no prefix is its own.
ResolvePrefix = Callable[[str, "str | None"], "str | None"]
_FATE_BY_ACTIONS: Mapping[tuple[str, ...], PlannedAction] = {
    ("create",): "create", ("update",): "update", ("delete",): "delete", ("forget",): "forget",
    ("delete", "create"): "replace", ("create", "delete"): "replace",
}  # fmt: skip


@dataclass(slots=True)
class _GraphInput:
    """Things as they are declared or planned, by address, with their configuration in the server's terms.

    `before` is that of what is updated, whose flows may stay, come or go.
    """

    title: str
    resolve_prefix: ResolvePrefix
    planned: bool = False
    resources: dict[Address, tuple[Mapping[str, Any], PlannedAction]] = field(default_factory=dict)
    before: dict[Address, Mapping[str, Any]] = field(default_factory=dict)


def build_workspace_graph(options: LoadOptions, targets: Collection[str] = ()) -> Graph:
    """What the files declare. Raises ConfigError when they are wrong, UsageError for a target that names nothing."""
    workspace = validate(options)
    topology = build_topology(workspace)
    drawing = _GraphInput(workspace.state_name, topology.routes.resolve_prefix)
    for address, body in topology.bodies.items():
        drawing.resources[topology.canonicalize(address)] = (body, "")
    return _select_targets(_build_graph(drawing), targets)


def build_plan_graph(path: Path, targets: Collection[str] = ()) -> Graph:
    """What a saved plan would do. Raises DocumentError for anything else, UsageError for a target that names nothing."""
    plan = load_plan(path)
    drawing = _GraphInput(_plan_title(plan), _plan_prefix_resolver(plan), planned=True)
    for change in plan.resource_changes:
        config = change.change.after if change.change.after is not None else change.change.before
        fate: PlannedAction = _FATE_BY_ACTIONS.get(tuple(change.change.actions), "")
        drawing.resources[Address.parse(change.address)] = (
            config or {},
            fate or ("import" if change.change.importing else ""),
        )
        if fate == "update":
            drawing.before[Address.parse(change.address)] = change.change.before or {}
    for deferred in plan.deferred:
        drawing.resources.setdefault(Address.parse(deferred.address), ({}, "deferred"))
    return _select_targets(_build_graph(drawing), targets)


def _plan_title(plan: Plan) -> str:
    return f"{plan.workspace}.{plan.environment}" if plan.environment else plan.workspace


def _plan_prefix_resolver(plan: Plan) -> ResolvePrefix:
    """A plan says of each domain its prefix and what it imports under which one."""

    def leads_to(domain: str, api: str | None) -> str | None:
        imported = plan.domains.get(domain, {}).get("imports", {})
        if api is None or api in imported:
            return domain if api is None else str(imported[api])
        called = [key for key, facts in plan.domains.items() if facts.get("api_prefix") == api]
        own = plan.domains.get(domain, {}).get("connection")
        near = [key for key in called if plan.domains[key].get("connection") == own]
        return next(iter([*near, *called]), None)

    return leads_to


def _build_graph(drawing: _GraphInput) -> Graph:
    nodes: dict[Address, Node] = {}
    for address, (config, fate) in drawing.resources.items():
        if address.kind != "consumer":
            nodes[address] = _build_node(address, config, fate)
    for address, (config, fate) in sorted(drawing.resources.items()):
        if address.kind == "consumer":
            parent = address.parent
            assert parent is not None
            known = nodes.setdefault(parent, _external_node(parent))
            nodes[parent] = replace(
                known,
                consumers=(
                    *known.consumers,
                    ConsumerNode(address.consumer, _describe_consumer(config), fate),
                ),
            )
    links = list(_build_links(drawing, nodes))
    clusters = [
        DomainGroup(key, key) for key in dict.fromkeys(node.domain for node in nodes.values())
    ]
    return Graph(drawing.title, drawing.planned, clusters, list(nodes.values()), links)


def _build_node(address: Address, config: Mapping[str, Any], fate: PlannedAction) -> Node:
    assert address.kind != "consumer"
    copies = config.get("mirror") or config.get("sources")
    plain = address.kind == "stream"
    subjects = tuple(
        config.get("subjects") or (() if copies or not (plain and config) else (address.name,))
    )
    return Node(
        str(address),
        address.domain,
        address.kind,
        address.name,
        subjects if plain else (),
        _describe_stream(config),
        (),
        fate,
    )


def _external_node(address: Address) -> Node:
    return Node(
        str(address), address.domain, "outside", address.stream, facts="not in this workspace"
    )


def _describe_stream(config: Mapping[str, Any]) -> str:
    """What one wants to know of a stream at a glance: what it is for, how long and how much it keeps, how many copies."""
    retention, copies = config.get("retention") or "limits", config.get("num_replicas") or 1
    words = [{"workqueue": "work queue", "interest": "interest"}.get(retention, "")]
    words += ["in memory" if config.get("storage") == "memory" else ""]
    words += [format_duration(config["max_age"]) if (config.get("max_age") or 0) > 0 else ""]
    words += [format_size(config["max_bytes"]) if (config.get("max_bytes") or 0) > 0 else ""]
    words += [f"R{copies}" if copies > 1 else "", "sealed" if config.get("sealed") else ""]
    return " · ".join(word for word in words if word)


def _describe_consumer(config: Mapping[str, Any]) -> str:
    one = config.get("filter_subject")
    filters = [one] if one else list(config.get("filter_subjects") or ())
    push = f"to {config['deliver_subject']}" if config.get("deliver_subject") else ""
    acks = config.get("ack_policy") or "none"
    return " · ".join(
        word
        for word in (", ".join(filters), push, "no acks" if acks == "none" else f"ack {acks}")
        if word
    )


def _build_links(drawing: _GraphInput, nodes: dict[Address, Node]) -> Iterator[Link]:
    """The flows; an origin that is in neither files nor plan is drawn where it is, or as one that nobody knows."""
    for address, (config, fate) in list(drawing.resources.items()):
        if address.kind == "consumer":
            continue
        for kind, origin, becomes in _origin_changes(config, drawing.before.get(address), fate):
            api = (origin.get("external") or {}).get("api")
            there = Address.of_stream(
                drawing.resolve_prefix(address.domain, api) or str(api), origin["name"]
            )
            nodes.setdefault(there, _external_node(there))
            yield Link(str(there), str(address), kind, _origin_label(origin), becomes)


OriginConfig = tuple[Literal["mirror", "source"], Mapping[str, Any]]


def _origin_changes(
    after: Mapping[str, Any], before: Mapping[str, Any] | None, fate: PlannedAction
) -> Iterator[tuple[*OriginConfig, PlannedAction]]:
    """Mirror and sources with what becomes of each: that of the stream, or for an update whether it stays, comes or goes."""
    now, was = _origin_configs(after), _origin_configs(before) if before is not None else {}
    for key, (kind, origin) in now.items():
        yield kind, origin, fate if before is None else "" if key in was else "create"
    for key, (kind, origin) in was.items():
        if key not in now:
            yield kind, origin, "delete"


def _origin_configs(config: Mapping[str, Any]) -> dict[tuple[str, str], OriginConfig]:
    found: list[OriginConfig] = [("mirror", config["mirror"])] if config.get("mirror") else []
    found += [("source", source) for source in config.get("sources") or ()]
    return {(kind, origin_key(dict(origin))): (kind, origin) for kind, origin in found}


def _origin_label(origin: Mapping[str, Any]) -> str:
    """The filter, and what subjects become; nothing where everything passes as it is."""
    shown = []
    transforms = {
        t.get("src") or ">": t.get("dest") or "" for t in origin.get("subject_transforms") or ()
    }
    for src, dest in subject_mappings(origin):
        becomes = transforms.get(src, "")
        shown += (
            [f"{src} → {becomes}" if becomes and dest != src else src]
            if (src, dest) != (">", ">")
            else []
        )
    return ", ".join(shown)


def _select_targets(graph: Graph, targets: Collection[str]) -> Graph:
    """What the globs name, with what it copies and who copies it."""
    if not targets:
        return graph
    named = {node.id for node in graph.nodes if any(matches(target, node.id) for target in targets)}
    if not named:
        raise UsageError(
            f"--target {', '.join(targets)} names nothing in the graph",
            hint="A target is an address of a stream, or a glob.",
        )
    near = named | {
        end
        for link in graph.links
        for end in (link.origin, link.copy)
        if {link.origin, link.copy} & named
    }
    nodes = [node for node in graph.nodes if node.id in near]
    links = [
        link
        for link in graph.links
        if link.origin in near and link.copy in near and {link.origin, link.copy} & named
    ]
    clusters = [
        cluster
        for cluster in graph.domain_groups
        if any(node.domain == cluster.key for node in nodes)
    ]
    return Graph(graph.title, graph.planned, clusters, nodes, links)
