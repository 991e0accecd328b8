from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.yaml_text import read_yaml
from tests.topology.conftest import DOMAINS, Resolved

CASES: dict[str, dict[str, Any]] = read_yaml(
    Path(__file__).with_name("circles.yaml").read_text("utf-8")
)
BACK = "imports: [{from: hub, into: hub-imp, api: JS.acc@hub.API, deliver: d}, {from: hub-imp, into: hub, api: JS.imp.API, deliver: d}]\n"


@pytest.mark.parametrize("name", CASES)
def test_circles_of_copies(name: str, resolved: Resolved) -> None:
    """A circle of flows is an error if it surely copies nothing or without end.

    It is a warning where it may, and nothing where filters part it.
    """
    topology = resolved("streams:\n" + CASES[name]["streams"], DOMAINS + BACK)
    assert [[d.severity, d.code] for d in topology.diagnostics] == CASES[name]["findings"]
    assert all(d.range is not None for d in topology.diagnostics)


def test_a_fleet_is_looked_through_quickly(resolved: Resolved) -> None:
    """Two hundred leaves that send and receive are no circle; each circle is named once."""
    head = 'jsplan: 1\nworkspace: test\ndomains: {hub: {}, "s-{001..200}": {labels: [edge]}}\n'
    apart = """
        streams:
          - {name: ALL, domain: hub, sources: [{name: SALES, domain: label:edge}]}
          - {name: SALES, domain: label:edge, subjects: [sales.>]}
          - {name: ORDERS, domain: hub, subjects: [orders.>]}
          - {name: ORDERS, domain: label:edge, mirror: {name: ORDERS, domain: hub}}
        """
    assert resolved(apart, head).diagnostics == []
    round_ = """
        streams:
          - {name: ALL, domain: hub, sources: [{name: ALL, domain: label:edge}]}
          - {name: ALL, domain: label:edge, sources: [{name: ALL, domain: hub}]}
        """
    assert [d.code for d in resolved(round_, head).diagnostics] == ["JS407"] * 200
