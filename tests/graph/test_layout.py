"""The layout of a graph: nothing overlaps, and most flows go to the right."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from jsplan.documents.graph import DomainGroup, Graph, Link, Node
from jsplan.render.graph_fold import fold_graph
from jsplan.render.graph_layout import (
    MAX_WIDTH,
    Box,
    arrange,
    assign_columns,
    build_card,
    text_width,
    truncate_middle,
)
from tests.graph.support import STORES, build_graph

if TYPE_CHECKING:
    from pathlib import Path


def apart(one: Box, other: Box) -> bool:
    return (
        one.right <= other.x
        or other.right <= one.x
        or one.bottom <= other.y
        or other.bottom <= one.y
    )


def inside(small: Box, large: Box) -> bool:
    return (
        small.x >= large.x
        and small.right <= large.right
        and small.y >= large.y
        and small.bottom <= large.bottom
    )


def check(graph: Graph) -> None:
    layout = arrange(graph)
    assert layout.boxes.keys() == {node.id for node in graph.nodes}
    for one, other in combinations(layout.clusters.values(), 2):
        assert apart(one, other)
    for one, other in combinations(layout.boxes.values(), 2):
        assert apart(one, other)
    for node in graph.nodes:
        assert inside(layout.boxes[node.id], layout.clusters[node.domain])
    for box in layout.clusters.values():
        assert inside(box, Box(0, 0, layout.width, layout.height))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw any few domains with any few streams and any flows, circles included."""
    domains = [f"d{n}" for n in range(draw(st.integers(1, 5)))]
    nodes = [
        Node(
            f"{domain}/stream/S{n}",
            domain,
            "stream",
            f"S{n}",
            tuple(draw(st.lists(st.sampled_from(["a.>", "b.*.c"]), max_size=3))),
        )
        for domain in domains
        for n in range(draw(st.integers(0, 5)))
    ]
    used = [domain for domain in domains if any(node.domain == domain for node in nodes)]
    ids = st.sampled_from([node.id for node in nodes] or ["none"])
    pairs = draw(st.lists(st.tuples(ids, ids), max_size=12)) if nodes else []
    links = [
        Link(a, b, draw(st.sampled_from(["mirror", "source"])), draw(st.sampled_from(["", "a.x"])))
        for a, b in pairs
        if a != b
    ]
    return Graph("any", False, [DomainGroup(key, key) for key in used], nodes, links)


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_nothing_lies_on_anything_else(graph: Graph) -> None:
    """Cards are inside their domain, and neither cards nor domains overlap, for any graph."""
    check(graph)


def test_a_fleet_is_laid_out(tmp_path: Path) -> None:
    """Two hundred stores that all differ have a place each."""
    domains = {"hub": {"connection": "acc"}} | {
        f"store-{n:03}": {"connection": "acc", "labels": ["edge"], "vars": {"keep": f"{n}d"}}
        for n in range(1, 201)
    }
    graph = fold_graph(build_graph(tmp_path, **(STORES | {"domains": domains})))

    assert len(graph.domain_groups) == 201
    check(graph)


def test_origins_are_left_of_a_collecting_hub(tmp_path: Path) -> None:
    """Stores are left of the hub that sources them, also if they mirror the hub."""
    layout = arrange(fold_graph(build_graph(tmp_path, **STORES)))

    assert layout.clusters["store-{001..200}"].right < layout.clusters["hub"].x


def test_copies_are_right_of_their_origins(tmp_path: Path) -> None:
    """A chain of downstream streams within a domain is read from left to right."""
    layout = arrange(
        build_graph(
            tmp_path,
            streams=[
                {"name": "C", "mirror": {"name": "B"}},
                {"name": "B", "mirror": {"name": "A"}},
                {"name": "A", "subjects": ["a"]},
            ],
        )
    )
    a, b, c = (layout.boxes[f"hub/stream/{name}"] for name in "ABC")

    assert a.right < b.x < b.right < c.x


def test_columns_follow_the_flows() -> None:
    """Each key is right of those that flow into it; the last flow of a circle is turned."""
    assert assign_columns("abcd", [("a", "b"), ("b", "c"), ("a", "c")]) == [
        ["a", "d"],
        ["b"],
        ["c"],
    ]
    assert assign_columns("abc", [("a", "b"), ("b", "c"), ("c", "a")]) == [["a"], ["b"], ["c"]]
    assert assign_columns("ab", [("b", "a"), ("a", "b")]) == [["b"], ["a"]]
    assert assign_columns("", []) == []


def test_a_long_chain_is_no_recursion() -> None:
    """A chain of ten thousand keys that is closed to a circle is laid out without recursion."""
    keys = list(range(10_000))
    edges = [*((n, n + 1) for n in keys[:-1]), (9_999, 0)]

    assert assign_columns(keys[:2_000], [edge for edge in edges if max(edge) < 2_000])[-1] == [
        1_999
    ]
    assert len(assign_columns(keys, edges[:-1])) == 10_000


def test_long_texts_are_cut_in_their_middle() -> None:
    """A card has a greatest width; both ends of a long subject are kept."""
    subject = "factory.north.line.7.machine.42.sensor.temperature.celsius.raw.unfiltered"
    found = build_card(Node("a", "d", "stream", "N" * 200, (subject,)))
    shown = found.rows[1].text

    assert found.width <= MAX_WIDTH
    assert shown.startswith("factory.")
    assert shown.endswith("unfiltered")
    assert "…" in shown
    assert found.rows[1].full_text == subject
    assert truncate_middle("", 10, 10) == ""
    assert text_width("漢字", 10) > text_width("ab", 10)


def test_many_subjects_are_counted() -> None:
    """A card lists a few subjects and the number of the others."""
    rows = build_card(Node("a", "d", "stream", "A", tuple(f"s{n}" for n in range(40)))).rows

    assert len(rows) == 10
    assert rows[-1].text == "and 32 more subjects"
