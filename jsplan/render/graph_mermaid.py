"""The graph as Mermaid, which GitHub, GitLab and mkdocs render."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.documents.graph import ConsumerNode, Graph, Link, Node
from jsplan.render.escape import safe
from jsplan.render.graph_fold import fold_graph
from jsplan.render.graph_svg import ACTION_STYLES

_SHAPES = {
    "stream": ('[("', '")]'),
    "kv": ('[["', '"]]'),
    "object_store": ('[["', '"]]'),
    "outside": ('["', '"]'),
}


def render(graph: Graph) -> str:
    """Render a flowchart from left to right.

    Domains are subgraphs; consumers have a line to their stream.
    """
    graph = fold_graph(graph)
    ids = {node.id: f"n{number}" for number, node in enumerate(graph.nodes)}
    lines = ["flowchart LR", f"  %% {_comment_text(graph.title)}"]
    for number, cluster in enumerate(graph.domain_groups):
        lines.append(f'  subgraph d{number}["{_text(cluster.shown_title)}"]')
        for node in graph.nodes:
            if node.domain == cluster.key:
                lines += _node(node, ids[node.id])
        lines.append("  end")
    lines += [_link(link, ids) for link in graph.links]
    return "\n".join([*lines, *_classes(graph, ids)]) + "\n"


def _node(node: Node, name: str) -> Iterator[str]:
    begin, end = _SHAPES[node.kind]
    words = [
        f"<b>{_text(node.name)}</b>",
        *(_text(subject) for subject in node.subjects),
        _text(node.summary),
        _fate(node.action),
    ]
    yield f"    {name}{begin}{'<br/>'.join(word for word in words if word)}{end}"
    for number, reader in enumerate(node.consumers):
        yield f'    {name}c{number}(["{_consumer(reader)}"])'
        yield f"    {name} --- {name}c{number}"


def _consumer(reader: ConsumerNode) -> str:
    return "<br/>".join(
        word for word in (_text(reader.name), _text(reader.summary), _fate(reader.action)) if word
    )


def _fate(fate: str | None) -> str:
    return f"<i>{_text(ACTION_STYLES[fate][0])}</i>" if fate else ""


def _link(link: Link, ids: dict[str, str]) -> str:
    arrow = "==>" if link.kind == "mirror" else "-.->"
    return f'  {ids[link.origin]} {arrow}|"{_text(link.shown_kind)}"| {ids[link.downstream]}'


def _classes(graph: Graph, ids: dict[str, str]) -> Iterator[str]:
    """Return a class for each fate that occurs, and one for outside nodes."""
    used: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.action or node.kind == "outside":
            used.setdefault(node.action or "outside", []).append(ids[node.id])
        for number, reader in enumerate(node.consumers):
            if reader.action:
                used.setdefault(reader.action, []).append(f"{ids[node.id]}c{number}")
    for fate, names in used.items():
        color = ACTION_STYLES[fate][1] if fate in ACTION_STYLES else "#8c959f"
        dashes = ",stroke-dasharray:4 3" if fate in ("outside", "deferred") else ""
        yield f"  classDef {fate} stroke:{color},stroke-width:2px{dashes}"
        yield f"  class {','.join(names)} {fate}"


def _text(text: str) -> str:
    """Escape text inside quotes: characters of Mermaid or HTML become entities."""
    named = {
        "&": "#amp;",
        '"': "#quot;",
        "<": "#lt;",
        ">": "#gt;",
        "#": "#35;",
        "`": "#96;",
        ";": "#59;",
        "\\": "#92;",
    }
    return "".join(named.get(letter, letter) for letter in safe(text))


def _comment_text(text: str) -> str:
    """Escape text for a comment, in which braces would begin a directive."""
    return _text(text).replace("{", "").replace("}", "")
