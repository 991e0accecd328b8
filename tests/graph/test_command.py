"""`jsplan graph` as a command: its formats, and the plans that it draws."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from jsplan.cli.main import main
from jsplan.documents.base import dumps
from jsplan.workflows.plan import save_plan
from jsplan.workflows.validate import build_plan_graph
from tests.graph.support import STORES, write_workspace
from tests.support.schemas import validator
from tests.support.workspaces import hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

Capture = pytest.CaptureFixture[str]


def test_each_format_is_made(tmp_path: Path, capsys: Capture) -> None:
    """Each format is printed when asked for, and Mermaid is the default."""
    folder = str(write_workspace(tmp_path, **STORES))
    out = {}
    for name in ("", "mermaid", "dot", "svg", "json"):
        assert main(["-C", folder, "graph", *(["--format", name] if name else [])]) == 0
        out[name] = capsys.readouterr().out

    assert out[""] == out["mermaid"]
    assert out["mermaid"].startswith("flowchart LR")
    assert out["dot"].startswith("digraph")
    assert ET.fromstring(out["svg"]).tag.endswith("svg")  # noqa: S314 - our own
    document = json.loads(out["json"])
    validator("graph").validate(document)
    assert set(document) == set(validator("graph").schema["properties"])
    assert (document["kind"], len(document["domains"]), len(document["links"])) == (
        "graph",
        201,
        400,
    )
    assert main(["-C", folder, "graph", "--format", "html"]) == 64


def test_json_goes_into_a_file_too(tmp_path: Path, capsys: Capture) -> None:
    """--json-into writes the data beside the picture."""
    folder = write_workspace(tmp_path, streams=[{"name": "A", "subjects": ["a"]}])
    assert (
        main(
            [
                "-C",
                str(folder),
                "graph",
                "--format",
                "svg",
                "--json-into",
                str(tmp_path / "graph.json"),
            ]
        )
        == 0
    )

    assert capsys.readouterr().out.startswith("<svg")
    assert json.loads((tmp_path / "graph.json").read_bytes())["nodes"][0]["id"] == "hub/stream/A"


def test_a_target_is_drawn_alone(tmp_path: Path, capsys: Capture) -> None:
    """--target draws what its glob matches; one that matches nothing is wrong usage."""
    folder = str(
        write_workspace(
            tmp_path, streams=[{"name": "A", "subjects": ["a"]}, {"name": "B", "subjects": ["b"]}]
        )
    )
    assert main(["-C", folder, "graph", "--target", "*/stream/A", "--json"]) == 0
    assert [node["name"] for node in json.loads(capsys.readouterr().out)["nodes"]] == ["A"]

    assert main(["-C", folder, "graph", "--target", "*/stream/Z"]) == 64


def test_a_file_that_is_no_plan_is_reported(tmp_path: Path, capsys: Capture) -> None:
    """A file that is no saved plan is an error that names it, and no traceback."""
    (tmp_path / "x.plan").write_text("{}")
    assert main(["graph", str(tmp_path / "x.plan")]) == 1

    assert "is not a jsplan plan document" in capsys.readouterr().err


def test_a_plan_is_drawn_with_its_actions(
    clean_hub_leaf: Sandbox, tmp_path: Path, capsys: Capture
) -> None:
    """A plan is drawn with the created, updated, replaced, deleted and deferred resources.

    Of the flows of an updated stream only those that come or go are marked.
    """
    space = hub_leaf_space(tmp_path, clean_hub_leaf)

    def streams(**more: Any) -> list[dict[str, Any]]:
        return [
            {"name": "A", "domain": "leaf", "subjects": ["a"]},
            {"name": "B", "domain": "hub", "subjects": ["b"]} | more.get("b", {}),
            {
                "name": "T",
                "domain": "hub",
                "subjects": ["t"],
                "lifecycle": {"on_replace": "recreate"},
            }
            | more.get("t", {}),
            {
                "name": "ALL",
                "domain": "hub",
                "sources": more.get("sources", [{"name": "A", "domain": "leaf"}, {"name": "T"}]),
                "consumers": more.get("consumers", [{"name": "OLD", "ack_policy": "explicit"}]),
            },
            *more.get("others", [{"name": "GONE", "domain": "hub", "subjects": ["gone"]}]),
        ]

    space.write(streams=streams()).apply()
    clean_hub_leaf["leaf"].stop()
    changed = streams(
        b={"max_age": "1d"},
        t={"storage": "memory"},
        sources=[{"name": "A", "domain": "leaf"}, {"name": "B"}],
        consumers=[{"name": "NEW", "ack_policy": "explicit"}],
        others=[{"name": "M", "domain": "hub", "mirror": {"name": "B"}}],
    )
    path = tmp_path / "x.plan"
    save_plan(space.write(streams=changed).plan(), path)
    graph = build_plan_graph(path)

    assert {node.id: node.action for node in graph.nodes} == {
        "leaf/stream/A": "deferred",
        "hub/stream/B": "update",
        "hub/stream/T": "replace",
        "hub/stream/ALL": "update",
        "hub/stream/M": "create",
        "hub/stream/GONE": "delete",
    }
    (collected,) = (node for node in graph.nodes if node.name == "ALL")
    assert {reader.name: reader.action for reader in collected.consumers} == {
        "NEW": "create",
        "OLD": "delete",
    }
    assert {(link.origin, link.downstream): link.action for link in graph.links} == {
        ("leaf/stream/A", "hub/stream/ALL"): None,
        ("hub/stream/B", "hub/stream/ALL"): "create",
        ("hub/stream/T", "hub/stream/ALL"): "delete",
        ("hub/stream/B", "hub/stream/M"): "create",
    }
    validator("graph").validate(orjson.loads(dumps(graph.to_json())))
    assert main(["graph", str(path), "--format", "svg"]) == 0
    picture = capsys.readouterr().out
    for words in (
        "test: planned changes",
        "+ create",
        "~ update",
        "± replace",
        "− delete",
        "… deferred",
        "+ NEW",
        "− OLD",
    ):
        assert words in picture, words
