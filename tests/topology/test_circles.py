from __future__ import annotations

import pytest

from tests.topology.conftest import DOMAINS, Resolved


def stream(name: str, domain: str, *sources: str, **more: str) -> str:
    """Return one line of `streams:`."""
    extra = "".join(f", {key}: {value}" for key, value in more.items())
    return f"  - {{name: {name}, domain: {domain}, sources: [{', '.join(sources)}]{extra}}}\n"


PLAIN = stream("A", "hub", "{name: A, domain: leaf}") + stream(
    "A", "leaf", "{name: A, domain: hub}"
)
CASES = {
    "a message goes round two domains without end": (PLAIN, [("error", "JS407")]),
    "an id may stop it": (PLAIN.replace("}]}", "}], duplicate_window: 2m}"), [("warning", "JS408")]),
    "filters that share nothing": (
        stream("A", "hub", "{name: A, domain: leaf, filter_subject: leaf.>}")
        + stream("A", "leaf", "{name: A, domain: hub, filter_subject: hub.>}"),
        [],
    ),
    "filters that share something": (
        stream("A", "hub", "{name: A, domain: leaf, filter_subject: '*.a'}")
        + stream("A", "leaf", "{name: A, domain: hub, filter_subject: hub.>}"),
        [("warning", "JS408")],
    ),
    "a transform that leads out": (
        stream("A", "hub", "{name: A, domain: leaf, subject_transforms: [{src: x.>, dest: y.>}]}")
        + stream("A", "leaf", "{name: A, domain: hub, filter_subject: x.>}"),
        [],
    ),
    "a transform that leads back": (
        stream("A", "hub", "{name: A, domain: leaf, subject_transforms: [{src: x.*, dest: 'y.{{wildcard(1)}}'}]}")
        + stream("A", "leaf", "{name: A, domain: hub, subject_transforms: [{src: y.*, dest: 'x.{{wildcard(1)}}'}]}"),
        [("warning", "JS408")],
    ),
    "three streams, one of them beside another": (
        stream("A", "hub", "{name: B, domain: hub}") + stream("B", "hub", "{name: C, domain: leaf}")
        + stream("C", "leaf", "{name: A, domain: hub}"),
        [("error", "JS407")],
    ),
    "inside one JetStream the server refuses it": (stream("A", "hub", "{name: B}") + stream("B", "hub", "{name: A}"), [("error", "JS407")]),
    "over an import and back": (
        stream("A", "hub-imp", "{name: A, domain: hub}")
        + stream("A", "hub", "{name: A, external: {api: JS.imp.API, deliver: d.x}}"),
        [("error", "JS407")],
    ),
    "mirrors of each other": (
        "  - {name: M, domain: hub, mirror: {name: M, domain: leaf}}\n  - {name: M, domain: leaf, mirror: {name: M, domain: hub}}\n",
        [("error", "JS406")],
    ),
    "a mirror and a source": (
        "  - {name: M, domain: hub, mirror: {name: A, domain: leaf}}\n" + stream("A", "leaf", "{name: M, domain: hub}"),
        [("error", "JS407")],
    ),
    "a chain is none": (stream("A", "hub", "{name: A, domain: leaf}") + "  - {name: A, domain: leaf}\n", []),
}  # fmt: skip
BACK = "imports: [{from: hub, into: hub-imp, api: JS.acc@hub.API, deliver: d}, {from: hub-imp, into: hub, api: JS.imp.API, deliver: d}]\n"


@pytest.mark.parametrize("name", CASES)
def test_circles_of_copies(name: str, resolved: Resolved) -> None:
    """A circle of flows is an error if it surely copies nothing or without end.

    It is a warning where it may, and nothing where filters part it.
    """
    text, expected = CASES[name]
    topology = resolved("streams:\n" + text, DOMAINS + BACK)
    assert [(d.severity, d.code) for d in topology.diagnostics] == expected
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
