"""The data of a graph, before it is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.documents.graph import ConsumerNode, Link, Node
from jsplan.errors import ConfigError, UsageError
from jsplan.render.graph_fold import fold_graph
from tests.graph.support import STORES, build_graph

if TYPE_CHECKING:
    from pathlib import Path


def test_the_data_have_streams_consumers_and_flows(tmp_path: Path) -> None:
    """The data have each stream with its consumers and flows, and both ends of each flow."""
    graph = build_graph(
        tmp_path,
        streams=[
            {
                "name": "A",
                "domain": "leaf",
                "subjects": ["a.*"],
                "max_age": "30d",
                "max_bytes": "1GiB",
                "num_replicas": 3,
            },
            {
                "name": "B",
                "retention": "interest",
                "storage": "memory",
                "sources": [{"name": "A", "domain": "leaf", "filter_subject": "a.x"}],
                "consumers": [
                    {"name": "C", "ack_policy": "explicit", "filter_subject": "a.x"},
                    {"name": "D", "deliver_subject": "out"},
                ],
            },
            {"name": "M", "mirror": {"name": "B"}},
        ],
    )

    assert {node.id: node for node in graph.nodes} == {
        "leaf/stream/A": Node("leaf/stream/A", "leaf", "stream", "A", ("a.*",), "30d · 1GiB · R3"),
        "hub/stream/B": Node(
            "hub/stream/B",
            "hub",
            "stream",
            "B",
            (),
            "interest · in memory",
            (ConsumerNode("C", "a.x · ack explicit"), ConsumerNode("D", "to out · no acks")),
        ),
        "hub/stream/M": Node("hub/stream/M", "hub", "stream", "M"),
    }
    assert graph.links == [
        Link("leaf/stream/A", "hub/stream/B", "source", "a.x"),
        Link("hub/stream/B", "hub/stream/M", "mirror"),
    ]


def test_buckets_are_shown_without_subjects(tmp_path: Path) -> None:
    """A bucket has no subjects; a bucket that sources another one is a flow between buckets."""
    graph = build_graph(
        tmp_path,
        kv=[{"bucket": "K", "ttl": "1h"}, {"bucket": "L", "sources": [{"name": "K"}]}],
        object_stores=[{"bucket": "O"}],
    )

    assert [(node.kind, node.name, node.subjects, node.summary) for node in graph.nodes] == [
        ("kv", "K", (), "1h"),
        ("kv", "L", (), ""),
        ("object_store", "O", (), ""),
    ]
    assert [(link.origin, link.downstream) for link in graph.links] == [("hub/kv/K", "hub/kv/L")]


def test_undeclared_streams_are_drawn_outside(tmp_path: Path) -> None:
    """Streams and origins that the workspace does not declare are drawn outside of it."""
    graph = build_graph(
        tmp_path,
        consumers=[{"stream": "THEIRS", "name": "TAP", "ack_policy": "none"}],
        streams=[
            {
                "name": "A",
                "sources": [
                    {"name": "X", "domain": "leaf"},
                    {"name": "Y", "external": {"api": "JS.far.API"}},
                ],
            }
        ],
    )

    assert {(node.id, node.kind) for node in graph.nodes} == {
        ("hub/stream/A", "stream"),
        ("hub/stream/THEIRS", "outside"),
        ("leaf/stream/X", "outside"),
        ("JS.far.API/stream/Y", "outside"),
    }
    assert {cluster.key for cluster in graph.domain_groups} == {"hub", "leaf", "JS.far.API"}


def test_a_second_name_of_a_domain_is_that_domain(tmp_path: Path) -> None:
    """A resource that is declared over `same_as` stands in the domain that it really is in."""
    domains = {
        "hub": {"connection": "acc"},
        "by-b": {"connection": "b", "api_prefix": "JS.hub.API", "same_as": "hub"},
    }
    connections = {
        "acc": {"url": "nats://127.0.0.1:1"},
        "b": {"url": "nats://127.0.0.1:1", "user": "b"},
    }
    graph = build_graph(
        tmp_path,
        connections=connections,
        domains=domains,
        streams=[{"name": "A", "domain": "by-b", "subjects": ["a"]}],
    )

    assert [node.id for node in graph.nodes] == ["hub/stream/A"]


def test_a_transform_is_shown_on_the_flow(tmp_path: Path) -> None:
    """The label of a flow names the subjects that pass, and what a transform makes of them."""
    transforms = [{"src": "a.*", "dest": "b.{{wildcard(1)}}"}]
    graph = build_graph(
        tmp_path,
        streams=[
            {"name": "A", "subjects": ["a.*"]},
            {"name": "B", "sources": [{"name": "A", "subject_transforms": transforms}]},
            {"name": "C", "mirror": {"name": "A"}},
        ],
    )

    assert [link.label for link in graph.links] == ["a.* → b.{{wildcard(1)}}", ""]


def test_targets_are_drawn_with_their_neighbours(tmp_path: Path) -> None:
    """A target is drawn with its origins and downstream streams; an unknown one is wrong usage."""
    streams: list[dict[str, Any]] = [
        {"name": "A", "domain": "leaf", "subjects": ["a"]},
        {"name": "B", "mirror": {"name": "A", "domain": "leaf"}},
        {"name": "C", "mirror": {"name": "B"}},
        {"name": "D", "mirror": {"name": "C"}},
        {"name": "E", "subjects": ["e"]},
    ]
    graph = build_graph(tmp_path, "hub/stream/B", streams=streams)

    assert {node.name for node in graph.nodes} == {"A", "B", "C"}
    assert len(graph.links) == 2
    with pytest.raises(UsageError, match="names nothing"):
        build_graph(tmp_path, "hub/stream/Z", streams=streams)


def test_wrong_files_are_reported(tmp_path: Path) -> None:
    """A workspace that is not valid is not drawn."""
    with pytest.raises(ConfigError):
        build_graph(tmp_path, streams=[{"name": "A", "max_ages": 1}])


# --- folding -------------------------------------------------------------------------------------------------


def test_two_hundred_stores_are_one(tmp_path: Path) -> None:
    """Domains that differ in their names alone are one node with their number.

    So are their flows.
    """
    graph = fold_graph(build_graph(tmp_path, **STORES))

    assert [(c.title, c.count) for c in graph.domain_groups] == [
        ("store-{001..200}", 200),
        ("hub", 1),
    ]
    sales = next(node for node in graph.nodes if node.name == "SALES")
    assert (sales.subjects, sales.consumers[0].summary) == (
        ("sales.${domain}.>",),
        "sales.${domain}.receipts · ack explicit",
    )
    assert [(link.kind, link.label, link.count) for link in graph.links] == [
        ("source", "sales.*.done", 200),
        ("mirror", "", 200),
    ]


def test_a_store_that_differs_stands_alone(tmp_path: Path) -> None:
    """A domain with another limit is drawn apart, and the others have a gap in their range."""
    other = {"store-017": {"connection": "acc", "labels": ["edge"], "vars": {"keep": "90d"}}}
    graph = fold_graph(build_graph(tmp_path, **(STORES | {"domains": STORES["domains"] | other})))

    assert {(c.title, c.count) for c in graph.domain_groups} == {
        ("store-{001..016}, store-{018..200}", 199),
        ("store-017", 1),
        ("hub", 1),
    }
    assert sorted(link.count for link in graph.links) == [1, 1, 199, 199]


def test_few_domains_are_written_out(tmp_path: Path) -> None:
    """Three domains that are alike are drawn as three."""
    domains = {
        "hub": {"connection": "acc"},
        "store-{1..3}": {"connection": "acc", "labels": ["edge"], "vars": {"keep": "1d"}},
    }

    assert (
        len(fold_graph(build_graph(tmp_path, **(STORES | {"domains": domains}))).domain_groups) == 4
    )


def test_numbered_streams_are_one(tmp_path: Path) -> None:
    """Streams that differ in a number are one node, if their limits and flows agree."""
    streams: list[dict[str, Any]] = [
        {"name": f"S{n}", "subjects": [f"s.{n}.>"], "max_age": "1d"} for n in range(1, 9)
    ]
    streams[6]["max_age"] = "2d"
    streams.append({"name": "COPY", "mirror": {"name": "S8"}})
    graph = fold_graph(build_graph(tmp_path, streams=streams))

    assert [(node.name, node.subjects, node.count) for node in graph.nodes] == [
        ("S{1..6}", ("s.{1..6}.>",), 6),
        ("S7", ("s.7.>",), 1),
        ("S8", ("s.8.>",), 1),
        ("COPY", (), 1),
    ]


def test_sources_of_numbered_streams_are_one_flow(tmp_path: Path) -> None:
    """A stream that sources numbered streams has one flow, with their number."""
    streams: list[dict[str, Any]] = [
        {"name": f"S{n}", "subjects": [f"s.{n}.>"]} for n in range(1, 6)
    ]
    streams.append({"name": "ALL", "sources": [{"name": f"S{n}"} for n in range(1, 6)]})

    assert [
        (link.origin, link.downstream, link.count)
        for link in fold_graph(build_graph(tmp_path, streams=streams)).links
    ] == [("hub/stream/S{1..5}", "hub/stream/ALL", 5)]
