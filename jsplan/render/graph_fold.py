"""Folding of a graph: alike domains become one, as do streams that differ in a number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from jsplan.address import compress_names
from jsplan.documents.base import plain
from jsplan.documents.graph import DomainGroup, Graph, Link, Node
from jsplan.group_domains import MIN_GROUP, replace_domain

_NUMBER = re.compile(r"\d+")
#: Replaces the number in the names of streams that are drawn as one.
_NUMBER_PLACEHOLDER = "#"


def fold_graph(graph: Graph) -> Graph:
    """Return the graph with alike domains and streams folded."""
    return _fold_streams(_fold_domains(graph))


# --- domains --------------------------------------------------------------------------------------


def _fold_domains(graph: Graph) -> Graph:
    alike: dict[str, list[DomainGroup]] = {}
    inside, touching = _nodes_by_domain(graph), _links_by_domain(graph)
    for cluster in graph.domain_groups:
        shape = _domain_signature(
            cluster.key, inside.get(cluster.key, []), touching.get(cluster.key, [])
        )
        alike.setdefault(shape, []).append(cluster)
    names = {
        member.key: _merge_domains(members)
        for members in alike.values()
        if len(members) >= MIN_GROUP
        for member in members
    }
    clusters = list(
        dict.fromkeys(names.get(cluster.key, cluster) for cluster in graph.domain_groups)
    )
    ids = {node.id: _generalize_node(node, names) for node in graph.nodes if node.domain in names}
    nodes = dict.fromkeys(ids.get(node.id, node) for node in graph.nodes)
    moved = {old: node.id for old, node in ids.items()}
    domains = {node.id: node.domain for node in graph.nodes}
    links = _merge_links(
        _relink(link, moved, _label_generalizer(link, domains, names)) for link in graph.links
    )
    return Graph(graph.title, graph.planned, clusters, list(nodes), links)


def _nodes_by_domain(graph: Graph) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        found.setdefault(node.domain, []).append(node)
    return found


def _links_by_domain(graph: Graph) -> dict[str, list[Link]]:
    found: dict[str, list[Link]] = {}
    domain = {node.id: node.domain for node in graph.nodes}
    for link in graph.links:
        for key in {domain[link.origin], domain[link.downstream]}:
            found.setdefault(key, []).append(link)
    return found


def _domain_signature(key: str, nodes: list[Node], links: list[Link]) -> str:
    """Return what is drawn of a domain except its name: equal text for equal pictures."""
    shown: list[Any] = [*map(plain, nodes), *map(plain, links)]
    return str(sorted(str(replace_domain(item, key)) for item in shown))


def _merge_domains(members: list[DomainGroup]) -> DomainGroup:
    title = compress_names([member.key for member in members])
    return DomainGroup(title, title, len(members))


def _generalize_node(node: Node, names: dict[str, DomainGroup]) -> Node:
    """Return the node as one of all alike domains."""
    group, rest = names[node.domain], node.id.partition("/")[2]
    readers = tuple(
        replace(
            r,
            name=replace_domain(r.name, node.domain),
            summary=replace_domain(r.summary, node.domain),
        )
        for r in node.consumers
    )
    return replace(
        node,
        id=f"{group.key}/{replace_domain(rest, node.domain)}",
        domain=group.key,
        name=replace_domain(node.name, node.domain),
        subjects=replace_domain(node.subjects, node.domain),
        summary=replace_domain(node.summary, node.domain),
        consumers=readers,
        count=group.count,
    )


def _label_generalizer(
    link: Link, domains: dict[str, str], names: dict[str, DomainGroup]
) -> Callable[[str], str]:
    ends = [domains[end] for end in (link.origin, link.downstream) if domains[end] in names]

    def without(text: str) -> str:
        for end in ends:
            text = replace_domain(text, end)
        return text

    return without


# --- streams --------------------------------------------------------------------------------------


def _fold_streams(graph: Graph) -> Graph:
    """Fold streams of one domain that differ only in a number of their names."""
    around: dict[str, list[Link]] = {}
    for link in graph.links:
        around.setdefault(link.origin, []).append(link)
        around.setdefault(link.downstream, []).append(link)
    alike: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if _NUMBER.search(node.name):
            alike.setdefault(_stream_signature(node, around.get(node.id, [])), []).append(node)
    groups = {
        member.id: merged
        for members in alike.values()
        if len(members) >= MIN_GROUP
        for merged in [_merge_nodes(members)]
        for member in members
    }
    if not groups:
        return graph
    nodes = dict.fromkeys(groups.get(node.id, node) for node in graph.nodes)
    moved = {old: node.id for old, node in groups.items()}
    names = {node.id: node.name for node in graph.nodes if node.id in groups}
    links = _merge_links(
        _relink(
            link,
            moved,
            _number_remover([names[end] for end in (link.origin, link.downstream) if end in names]),
        )
        for link in graph.links
    )
    return Graph(graph.title, graph.planned, graph.domain_groups, list(nodes), links)


def _stream_signature(node: Node, links: list[Link]) -> str:
    """Return what is drawn of a stream except its number.

    Limits are compared unchanged: a number in them is not part of a name.
    """
    without = _number_remover([node.name])
    words = [
        *node.subjects,
        *(f"{reader.name} {reader.summary} {reader.action}" for reader in node.consumers),
    ]
    flows = sorted(
        f"{link.kind} {link.origin} {link.downstream} {link.label} {link.action}" for link in links
    )
    what = [
        node.domain,
        node.kind,
        node.summary,
        node.action,
        _NUMBER.sub(_NUMBER_PLACEHOLDER, node.name),
    ]
    return str([*what, *map(without, words), *map(without, flows)])


def _number_remover(
    names: Iterable[str], number: str = _NUMBER_PLACEHOLDER
) -> Callable[[str], str]:
    """Return a function that replaces stream names, and their numbers, in a text by `number`.

    A number is replaced only where it is a word of its own.
    """
    patterns = [
        re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
        for name in names
        for word in (name, *_name_variants(name))
    ]

    def without(text: str) -> str:
        for pattern in patterns:
            text = pattern.sub(number, text)
        return text

    return without


def _name_variants(name: str) -> list[str]:
    numbers = _NUMBER.findall(name)
    return [name.lower(), name.upper(), numbers[-1]]


def _merge_nodes(members: list[Node]) -> Node:
    """Return the node that represents all, with the run of their names and numbers."""
    first, name = members[0], compress_names([member.name for member in members])
    numbers = compress_names([_NUMBER.findall(member.name)[-1] for member in members])
    without = _number_remover([first.name], numbers if "," not in numbers else _NUMBER_PLACEHOLDER)
    readers = tuple(
        replace(reader, name=without(reader.name), summary=without(reader.summary))
        for reader in first.consumers
    )
    subjects, count = tuple(map(without, first.subjects)), first.count * len(members)
    return replace(
        first,
        id=f"{first.domain}/{first.kind}/{name}",
        name=name,
        subjects=subjects,
        consumers=readers,
        count=count,
    )


# --- links ----------------------------------------------------------------------------------------


def _relink(link: Link, moved: dict[str, str], words: Callable[[str], str]) -> Link:
    return replace(
        link,
        origin=moved.get(link.origin, link.origin),
        downstream=moved.get(link.downstream, link.downstream),
        label=words(link.label),
    )


def _merge_links(links: Iterable[Link]) -> list[Link]:
    """Merge equal flows into one, with their number."""
    found: dict[Link, int] = {}
    for link in links:
        key = replace(link, count=1)
        found[key] = found.get(key, 0) + link.count
    return [replace(link, count=number) for link, number in found.items()]
