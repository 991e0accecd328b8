"""Makes a graph small enough to look at: domains that are alike are one, and so are streams that differ in a number.

Which names are a run (`store-{001..200}`) is `collapse`'s to say; drawing is left to the views.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from jsplan.address import compressed
from jsplan.documents.graph import Cluster, Graph, Link, Node
from jsplan.render.collapse import ENOUGH, anonymous

_NUMBER = re.compile(r"\d+")
#: Stands for the number in the names of streams that are drawn as one.
_N = "#"


def folded(graph: Graph) -> Graph:
    """The graph with what is alike as one."""
    return _streams(_domains(graph))


# --- domains -------------------------------------------------------------------------------------------------


def _domains(graph: Graph) -> Graph:
    alike: dict[str, list[Cluster]] = {}
    inside, touching = _inside(graph), _touching(graph)
    for cluster in graph.clusters:
        shape = _shape_of_domain(cluster.key, inside.get(cluster.key, []), touching.get(cluster.key, []))
        alike.setdefault(shape, []).append(cluster)
    names = {member.key: _together(members) for members in alike.values() if len(members) >= ENOUGH for member in members}
    clusters = list(dict.fromkeys(names.get(cluster.key, cluster) for cluster in graph.clusters))
    ids = {node.id: _moved(node, names) for node in graph.nodes if node.domain in names}
    nodes = dict.fromkeys(ids.get(node.id, node) for node in graph.nodes)
    moved = {old: node.id for old, node in ids.items()}
    ours = {node.id: node.domain for node in graph.nodes}
    links = _merged(_renamed(link, moved, _words(link, ours, names)) for link in graph.links)
    return Graph(graph.title, graph.planned, clusters, list(nodes), links)


def _inside(graph: Graph) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        found.setdefault(node.domain, []).append(node)
    return found


def _touching(graph: Graph) -> dict[str, list[Link]]:
    found: dict[str, list[Link]] = {}
    domain = {node.id: node.domain for node in graph.nodes}
    for link in graph.links:
        for key in {domain[link.origin], domain[link.copy]}:
            found.setdefault(key, []).append(link)
    return found


def _shape_of_domain(key: str, nodes: list[Node], links: list[Link]) -> str:
    """What is drawn of a domain, but for its name: equal text for equal pictures."""
    shown: list[Any] = [node.to_json() for node in nodes] + [link.to_json() for link in links]
    return str(sorted(str(anonymous(item, key)) for item in shown))


def _together(members: list[Cluster]) -> Cluster:
    title = compressed([member.key for member in members])
    return Cluster(title, title, len(members))


def _moved(node: Node, names: dict[str, Cluster]) -> Node:
    """The node as one of all alike domains."""
    group, rest = names[node.domain], node.id.partition("/")[2]
    readers = tuple(replace(r, name=anonymous(r.name, node.domain), words=anonymous(r.words, node.domain)) for r in node.readers)
    return replace(
        node, id=f"{group.key}/{anonymous(rest, node.domain)}", domain=group.key, name=anonymous(node.name, node.domain),
        subjects=anonymous(node.subjects, node.domain), facts=anonymous(node.facts, node.domain), readers=readers, count=group.count,
    )  # fmt: skip


def _words(link: Link, domains: dict[str, str], names: dict[str, Cluster]) -> Callable[[str], str]:
    ends = [domains[end] for end in (link.origin, link.copy) if domains[end] in names]

    def without(text: str) -> str:
        for end in ends:
            text = anonymous(text, end)
        return text

    return without


# --- streams -------------------------------------------------------------------------------------------------


def _streams(graph: Graph) -> Graph:
    """Streams of one domain whose names differ in a number alone, and whose pictures do not differ."""
    around: dict[str, list[Link]] = {}
    for link in graph.links:
        around.setdefault(link.origin, []).append(link)
        around.setdefault(link.copy, []).append(link)
    alike: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if _NUMBER.search(node.name):
            alike.setdefault(_shape_of_stream(node, around.get(node.id, [])), []).append(node)
    groups = {member.id: _one_of(members) for members in alike.values() if len(members) >= ENOUGH for member in members}
    if not groups:
        return graph
    nodes = dict.fromkeys(groups.get(node.id, node) for node in graph.nodes)
    moved = {old: node.id for old, node in groups.items()}
    names = {node.id: node.name for node in graph.nodes if node.id in groups}
    links = _merged(
        _renamed(link, moved, _numberless([names[end] for end in (link.origin, link.copy) if end in names])) for link in graph.links
    )
    return Graph(graph.title, graph.planned, graph.clusters, list(nodes), links)


def _shape_of_stream(node: Node, links: list[Link]) -> str:
    """What is drawn of a stream, but for its number. Its limits are compared as they are: a number in them is no name."""
    without = _numberless([node.name])
    words = [*node.subjects, *(f"{reader.name} {reader.words} {reader.fate}" for reader in node.readers)]
    flows = sorted(f"{link.kind} {link.origin} {link.copy} {link.label} {link.fate}" for link in links)
    what = [node.domain, node.kind, node.facts, node.fate, _NUMBER.sub(_N, node.name)]
    return str([*what, *map(without, words), *map(without, flows)])


def _numberless(names: Iterable[str], number: str = _N) -> Callable[[str], str]:
    """Takes the name of a stream, and the number in it where it stands alone, out of a text; `number` is put in its place."""
    patterns = [re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])") for name in names for word in (name, *_forms(name))]

    def without(text: str) -> str:
        for pattern in patterns:
            text = pattern.sub(number, text)
        return text

    return without


def _forms(name: str) -> list[str]:
    numbers = _NUMBER.findall(name)
    return [name.lower(), name.upper(), numbers[-1]]


def _one_of(members: list[Node]) -> Node:
    """What speaks for them: the run of their names, and the run of their numbers where one stands alone."""
    first, name = members[0], compressed([member.name for member in members])
    numbers = compressed([_NUMBER.findall(member.name)[-1] for member in members])
    without = _numberless([first.name], numbers if "," not in numbers else _N)
    readers = tuple(replace(reader, name=without(reader.name), words=without(reader.words)) for reader in first.readers)
    subjects, count = tuple(map(without, first.subjects)), first.count * len(members)
    return replace(first, id=f"{first.domain}/{first.kind}/{name}", name=name, subjects=subjects, readers=readers, count=count)


# --- links ---------------------------------------------------------------------------------------------------


def _renamed(link: Link, moved: dict[str, str], words: Callable[[str], str]) -> Link:
    return replace(link, origin=moved.get(link.origin, link.origin), copy=moved.get(link.copy, link.copy), label=words(link.label))


def _merged(links: Iterable[Link]) -> list[Link]:
    """Equal flows as one, with their number."""
    found: dict[Link, int] = {}
    for link in links:
        key = replace(link, count=1)
        found[key] = found.get(key, 0) + link.count
    return [replace(link, count=number) for link, number in found.items()]
