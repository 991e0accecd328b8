"""The graph in the language of Graphviz."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.documents.graph import Graph, Link, Node
from jsplan.render.escape import safe
from jsplan.render.graph_fold import fold_graph
from jsplan.render.graph_svg import ACTION_STYLES

_SHAPES = {"stream": "box", "kv": "folder", "object_store": "box3d", "outside": "box"}


def render(graph: Graph) -> str:
    """Render a digraph from left to right; domains are clusters, consumers link to their stream."""
    graph = fold_graph(graph)
    lines = [
        "digraph jsplan {",
        (
            f"  graph [label={_quoted(graph.title)}, labelloc=t, rankdir=LR, fontname=sans, "
            "compound=true];"
        ),
        "  node [fontname=sans, fontsize=11, shape=box, style=rounded];",
        "  edge [fontname=sans, fontsize=10];",
    ]
    for number, cluster in enumerate(graph.domain_groups):
        title = _quoted(cluster.shown_title)
        lines += [
            f"  subgraph cluster_{number} {{",
            f"    label={title}; style=filled; color=lightgrey; fillcolor=whitesmoke;",
        ]
        for node in graph.nodes:
            if node.domain == cluster.key:
                lines += _node(node)
        lines.append("  }")
    return "\n".join([*lines, *map(_link, graph.links), "}"]) + "\n"


def _node(node: Node) -> Iterator[str]:
    words = [
        node.name,
        *node.subjects,
        node.summary,
        ACTION_STYLES[node.action][0] if node.action else "",
    ]
    style = "rounded,filled"
    if node.kind == "outside" or node.action == "deferred":
        style = "rounded,dashed"
    looks = (
        f"shape={_SHAPES[node.kind]}, style={_quoted(style)}, fillcolor=white{_color(node.action)}"
    )
    yield f"    {_quoted(node.id)} [label={_lines(words)}, {looks}];"
    for reader in node.consumers:
        name, words = (
            f"{node.id} {reader.name}",
            [reader.name, reader.summary, ACTION_STYLES[reader.action][0] if reader.action else ""],
        )
        yield (
            f"    {_quoted(name)} [label={_lines(words)}, shape=cds, "
            f"style=solid{_color(reader.action)}];"
        )
        yield f"    {_quoted(node.id)} -> {_quoted(name)} [arrowhead=none, color=grey];"


def _link(link: Link) -> str:
    words = link.shown_kind
    style = "solid" if link.kind == "mirror" else "dashed"
    return (
        f"  {_quoted(link.origin)} -> {_quoted(link.downstream)} [label={_quoted(words)}, "
        f"style={style}{_color(link.action)}];"
    )


def _color(fate: str | None) -> str:
    return f', color="{ACTION_STYLES[fate][1]}", penwidth=2' if fate else ""


def _lines(words: list[str]) -> str:
    return _quoted("\n".join(safe(word) for word in words if word))


def _quoted(text: str) -> str:
    """Quote a string; line breaks are kept."""
    return (
        '"'
        + "\\n".join(
            safe(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n")
        )
        + '"'
    )
