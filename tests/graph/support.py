"""Graphs of workspaces that are written for a test, and of random shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from jsplan.config.model import LoadOptions
from jsplan.workflows.validate import build_workspace_graph

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.graph import Graph

HEAD: dict[str, Any] = {
    "jsplan": 1,
    "workspace": "drawn",
    "connections": {"acc": {"url": "nats://127.0.0.1:1"}},
    "domains": {"hub": {"connection": "acc"}, "leaf": {"connection": "acc"}},
    "defaults": {"domain": "hub"},
}
STORES: dict[str, Any] = {
    "domains": {"hub": {"connection": "acc"}, "store-{001..200}": {"connection": "acc", "labels": ["edge"], "vars": {"keep": "30d"}}},
    "streams": [
        {"name": "SALES", "domain": "label:edge", "subjects": ["sales.${domain}.>"], "max_age": "${domain.keep}",
         "consumers": [{"name": "PRINTER", "ack_policy": "explicit", "filter_subject": "sales.${domain}.receipts"}]},
        {"name": "ALL", "sources": [{"name": "SALES", "domain": "label:edge", "filter_subject": "sales.*.done"}]},
        {"name": "PRICES", "subjects": ["prices.>"]},
        {"name": "PRICES", "domain": "label:edge", "mirror": {"name": "PRICES", "domain": "hub"}},
    ],
}  # fmt: skip


def write_workspace(folder: Path, **sections: Any) -> Path:
    """Write a workspace with these sections over the head."""
    (folder / "jsplan.yaml").write_text(
        yaml.safe_dump(HEAD | sections, sort_keys=False), encoding="utf-8"
    )
    return folder


def build_graph(folder: Path, *targets: str, **sections: Any) -> Graph:
    """Return the graph of the workspace."""
    return build_workspace_graph(LoadOptions(write_workspace(folder, **sections)), targets)
