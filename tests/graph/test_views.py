"""The pictures as text: well-formed, complete, self-contained, and unharmed by odd names."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from jsplan.documents.graph import ConsumerNode, DomainGroup, Graph, Link, Node
from jsplan.render import graph_dot, graph_mermaid, graph_svg
from tests.graph.support import STORES, build_graph

if TYPE_CHECKING:
    from pathlib import Path

SVG = "{http://www.w3.org/2000/svg}"
#: What a name may be on a server, and each language would read as its own.
ODD = 'a"b<script>&\\#;{`$(x)\x1b[31m'
STRING = r'"(?:[^"\\]|\\.)*"'


def svg_texts(svg: str) -> list[str]:
    return ["".join(text.itertext()) for text in ET.fromstring(svg).iter(f"{SVG}text")]  # noqa: S314 - our own


@pytest.fixture
def odd() -> Graph:
    """Return a graph whose every word is odd."""
    node = Node(
        f"hub/stream/{ODD}",
        "hub",
        "stream",
        ODD,
        (ODD,),
        ODD,
        (ConsumerNode(ODD, ODD, "create"),),
        "delete",
    )
    other = Node("hub/stream/B", "hub", "outside", "B")
    return Graph(
        ODD,
        True,
        [DomainGroup("hub", ODD)],
        [node, other],
        [Link(node.id, other.id, "mirror", ODD, "delete")],
    )


def test_svg_is_complete_and_needs_nothing(tmp_path: Path) -> None:
    """The SVG has every stream, subject, consumer and filter, and no script, link or picture."""
    svg = graph_svg.render(build_graph(tmp_path, **STORES))
    found = svg_texts(svg)

    for word in (
        "drawn",
        "store-{001..200}  ×200",
        "SALES",
        "sales.${domain}.>",
        "PRICES",
        "prices.>",
        "mirror",
        "source",
    ):
        assert word in found, word
    assert any(text.startswith("▸ PRINTER") for text in found)
    assert any("200 flows" in text for text in found)
    assert re.findall(r"https?://[^\"' ]+", svg) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<script|<image|<foreignObject|@import|href=", svg)
    root = ET.fromstring(svg)  # noqa: S314 - our own
    assert (
        root.findtext(f"{SVG}desc")
        == "402 streams and buckets in 201 domains, 400 mirrors and sources."
    )


def test_svg_shows_planned_changes(odd: Graph) -> None:
    """A planned change is named on its stream or consumer and in the legend."""
    odd.nodes[0] = Node(
        "hub/stream/A",
        "hub",
        "stream",
        "A",
        consumers=(ConsumerNode("R", "", "create"),),
        action="replace",
    )
    odd.links = []
    found = svg_texts(graph_svg.render(odd))

    assert "± replace" in found
    assert "+ R" in found
    assert found.count("+ create") == 1


def test_svg_takes_odd_names(odd: Graph) -> None:
    """The SVG with odd names stays well-formed and escapes control characters."""
    svg = graph_svg.render(odd)

    ET.fromstring(svg)  # noqa: S314 - our own
    assert "\x1b" not in svg
    assert any('a"b<script>&' in text for text in svg_texts(svg))


def test_an_empty_workspace_is_an_empty_picture(tmp_path: Path) -> None:
    """An empty workspace is an empty picture in every language."""
    graph = build_graph(tmp_path)

    ET.fromstring(graph_svg.render(graph))  # noqa: S314 - our own
    assert graph_mermaid.render(graph).startswith("flowchart LR\n")
    assert graph_dot.render(graph).endswith("}\n")


def test_mermaid_has_subgraphs_nodes_and_flows(tmp_path: Path) -> None:
    """Mermaid has a subgraph for each domain, and only lines of known forms."""
    text = graph_mermaid.render(build_graph(tmp_path, **STORES))

    assert 'subgraph d0["store-{001..200} ×200"]' in text
    assert '-.->|"200 sources sales.*.done"|' in text
    assert '==>|"200 mirrors"|' in text
    check_mermaid(text)


def test_mermaid_takes_odd_names(odd: Graph) -> None:
    """Mermaid has quotes, entities and markup of names as entities, and colours as classes."""
    text = graph_mermaid.render(odd)

    check_mermaid(text)
    assert "<script" not in text
    assert "  class n0 delete" in text
    assert "  class n0c0 create" in text


def check_mermaid(text: str) -> None:
    quoted = r'"[^"\n]*"'
    forms = [
        r"flowchart LR",
        r"  %% .*",
        rf"  subgraph d\d+\[{quoted}\]",
        r"  end",
        rf"    n\d+(\[\({quoted}\)\]|\[\[{quoted}\]\]|\[{quoted}\])",
        rf"    n\d+c\d+\(\[{quoted}\]\)",
        r"    n\d+ --- n\d+c\d+",
        rf"  n\d+ (==>|-\.->)\|{quoted}\| n\d+",
        r"  classDef \w+ [-\w:#, ]+",
        r"  class [\w,]+ \w+",
    ]
    for line in text.splitlines():
        assert any(re.fullmatch(form, line) for form in forms), line
        assert not re.search(r"#(?!quot;|lt;|gt;|amp;|\d+;|[0-9a-f]{6})", line), line


def test_dot_has_clusters_nodes_and_flows(tmp_path: Path) -> None:
    """Dot has a cluster for each domain, and only statements of known forms."""
    text = graph_dot.render(build_graph(tmp_path, **STORES))

    assert 'label="store-{001..200} ×200"' in text
    assert 'label="200 sources sales.*.done", style=dashed' in text
    check_dot(text)


def test_dot_takes_odd_names(odd: Graph) -> None:
    """Dot has quotes and backslashes of names escaped."""
    text = graph_dot.render(odd)

    check_dot(text)
    assert "\x1b" not in text


def check_dot(text: str) -> None:
    attributes = rf"\[(\w+=({STRING}|\w+)(, )?)+\];"
    forms = [
        r"digraph jsplan \{",
        rf"  (graph|node|edge) {attributes}",
        r"  subgraph cluster_\d+ \{",
        r"  \}",
        r"\}",
        rf"    label={STRING}; style=filled; color=\w+; fillcolor=\w+;",
        rf"    {STRING} {attributes}",
        rf"  +{STRING} -> {STRING} {attributes}",
    ]
    for line in text.splitlines():
        assert any(re.fullmatch(form, line) for form in forms), line
