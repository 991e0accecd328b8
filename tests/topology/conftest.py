"""Workspaces without a server: references are resolved from the files alone."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Protocol

import pytest

from jsplan.config import load
from jsplan.config.model import LoadOptions
from jsplan.topology import Topology, build_topology

if TYPE_CHECKING:
    from pathlib import Path

#: Account ACC on hub and leaf; account IMP on the hub, which imports from it; and B, which only uses what ACC exports.
DOMAINS = """\
jsplan: 1
workspace: test
connections:
  acc: {url: "nats://hub:4222", user: acc, account: ACC}
  imp: {url: "nats://hub:4222", user: imp, account: IMP}
  b: {url: "nats://hub:4222", user: b, account: B}
domains:
  hub: {connection: acc}
  leaf: {connection: acc}
  hub-imp: {connection: imp, js_domain: hub}
  hub-by-b: {connection: b, api_prefix: JS.acc@hub.API, same_as: hub}
"""
ROW = """\
imports: [{from: hub, into: hub-imp, api: JS.acc@hub.API, deliver: deliver.acc.hub.imp}]
"""


class Resolved(Protocol):
    """Resolves the references of a workspace: `DOMAINS`, and what is given below it."""

    def __call__(self, text: str, head: str = DOMAINS + ROW) -> Topology: ...


@pytest.fixture
def resolved(tmp_path: Path) -> Resolved:
    """Resolve a workspace that is written for this test."""

    def call(text: str, head: str = DOMAINS + ROW) -> Topology:
        (tmp_path / "jsplan.yaml").write_text(head + textwrap.dedent(text), encoding="utf-8")
        return build_topology(load(LoadOptions(tmp_path)))

    return call
