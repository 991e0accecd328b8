from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import Address
from tests.topology.conftest import DOMAINS, ROW, Resolved

if TYPE_CHECKING:
    from jsplan.topology import Topology


def mirror(topology: Topology, text: str) -> dict[str, Any]:
    """Return the mirror of one resource as the server gets it, but for a computed prefix."""
    found: dict[str, Any] = topology.bodies[Address.parse(text)]["mirror"]
    return found


def findings(topology: Topology) -> list[tuple[str, str]]:
    """Return code and severity of every finding."""
    return [(d.severity, d.code) for d in topology.diagnostics]


def test_a_domain_of_the_account_is_reached_by_its_name(resolved: Resolved) -> None:
    """Within an account an origin is `$JS.<domain>.API`, without a delivery prefix."""
    topology = resolved("streams: [{name: C, domain: leaf, mirror: {name: S, domain: hub}}]")
    assert mirror(topology, "leaf/stream/C") == {"name": "S", "external": {"api": "$JS.hub.API"}}
    assert topology.delivery_prefixes == {}
    assert findings(topology) == []


@pytest.mark.parametrize("domain", ["hub", "hub-by-b"])
def test_an_import_is_used_for_another_account(domain: str, resolved: Resolved) -> None:
    """Between accounts the imports row gives the prefix, however the origin's domain is named."""
    topology = resolved(
        f"streams: [{{name: C, domain: hub-imp, mirror: {{name: S, domain: {domain}}}}}]"
    )
    assert mirror(topology, "hub-imp/stream/C") == {
        "name": "S",
        "external": {"api": "JS.acc@hub.API"},
    }
    assert topology.delivery_prefixes == {
        Address.parse("hub-imp/stream/C"): {"S@JS.acc@hub.API": "deliver.acc.hub.imp.hub-imp.C"}
    }
    assert [(str(e.origin), str(e.downstream)) for e in topology.edges] == [
        ("hub/stream/S", "hub-imp/stream/C")
    ]
    assert findings(topology) == []


def test_sources_get_a_prefix_each(resolved: Resolved) -> None:
    """The prefix of a source ends with its origin, so that no two sources share one.

    Filters belong to the identity of a source.
    """
    topology = resolved("""
        streams:
          - name: C
            domain: hub-imp
            sources: [{name: S, domain: hub}, {name: T, domain: hub, filter_subject: t.a}, {name: KV_B, domain: hub}]
        """)
    assert topology.delivery_prefixes[Address.parse("hub-imp/stream/C")] == {
        "S@JS.acc@hub.API": "deliver.acc.hub.imp.hub-imp.C.S",
        "T@JS.acc@hub.API#t.a": "deliver.acc.hub.imp.hub-imp.C.T",
        "KV_B@JS.acc@hub.API": "deliver.acc.hub.imp.hub-imp.C.KV_B",
    }
    assert {str(e.origin) for e in topology.edges} == {"hub/stream/S", "hub/stream/T", "hub/kv/B"}


def test_a_written_prefix_is_the_last_word(resolved: Resolved) -> None:
    """A written `deliver:` is sent unchanged, and nothing is computed."""
    topology = resolved(
        "streams: [{name: C, domain: hub-imp, mirror: {name: S, domain: hub, deliver: deliver.acc.hub.mine}}]"
    )
    assert mirror(topology, "hub-imp/stream/C")["external"] == {
        "api": "JS.acc@hub.API",
        "deliver": "deliver.acc.hub.mine",
    }
    assert topology.delivery_prefixes == {}


@pytest.mark.parametrize(
    ("own", "target"), [("hub", "hub"), ("hub", "hub-by-b"), ("hub-by-b", "hub")]
)
def test_the_own_domain_is_no_external(own: str, target: str, resolved: Resolved) -> None:
    """A reference to the stream's own JetStream is sent without `external`."""
    topology = resolved(
        f"streams: [{{name: C, domain: {own}, mirror: {{name: S, domain: {target}}}}}, {{name: S, domain: {own}}}]"
    )
    assert mirror(topology, f"{own}/stream/C") == {"name": "S"}
    assert [str(e.origin) for e in topology.edges] == [f"{own}/stream/S"]
    assert findings(topology) == []


def test_an_import_that_only_a_domain_names(resolved: Resolved) -> None:
    """Without a row the prefix is that of a domain over the same connection."""
    head = DOMAINS + '  theirs: {connection: imp, api_prefix: "JS.other.API", js_domain: far}\n'
    topology = resolved(
        "streams: [{name: C, domain: hub-imp, mirror: {name: S, domain: theirs, deliver: d.x}}]",
        head,
    )
    assert mirror(topology, "hub-imp/stream/C")["external"] == {
        "api": "JS.other.API",
        "deliver": "d.x",
    }


@pytest.mark.parametrize(
    ("api", "origin"),
    [
        ("JS.acc@hub.API", "hub/stream/S"),
        ("$JS.leaf.API", "leaf/stream/S"),
        ("$JS.hub.API", None),
        ("JS.unknown.API", None),
    ],
)
def test_a_raw_external_is_understood(api: str, origin: str | None, resolved: Resolved) -> None:
    """A written `external` is sent unchanged; its flow is drawn where the files know the origin."""
    external = f'{{api: "{api}", deliver: d.x}}'
    topology = resolved(
        f"streams: [{{name: C, domain: hub-imp, mirror: {{name: S, external: {external}}}}}]"
    )
    assert mirror(topology, "hub-imp/stream/C")["external"] == {"api": api, "deliver": "d.x"}
    assert [str(e.origin) for e in topology.edges] == ([origin] if origin else [])
    assert findings(topology) == ([("error", "JS409")] if api == "$JS.hub.API" else [])


NO_ROW = "streams: [{name: C, domain: hub-imp, mirror: {name: S, domain: %s}}]"


@pytest.mark.parametrize(
    ("head", "text", "expected"),
    [
        (DOMAINS, NO_ROW % "hub", [("error", "JS402")]),  # both call themselves hub
        (
            DOMAINS + "  plain: {connection: acc, js_domain: null}\n",
            NO_ROW % "plain",
            [("error", "JS402")],
        ),
        (DOMAINS, NO_ROW % "leaf", [("warning", "JS450")]),  # another account
        (
            DOMAINS + "imports: [{from: hub, into: hub-imp, api: JS.acc@hub.API}]\n",
            NO_ROW % "hub",
            [("warning", "JS451")],
        ),
        (DOMAINS + ROW, NO_ROW % "hub", []),
    ],
)
def test_unreachable_origins_are_reported(
    head: str, text: str, expected: list[tuple[str, str]], resolved: Resolved
) -> None:
    """An unknown way to an origin is an error; one that copies nothing is a warning."""
    topology = resolved(text, head)
    assert findings(topology) == expected
    assert all(d.range is not None and d.detail for d in topology.diagnostics)


def test_a_row_counts_only_for_its_own_domain(resolved: Resolved) -> None:
    """An import into one domain says nothing about another domain of the same account."""
    head = DOMAINS + "  leaf-imp: {connection: imp, js_domain: edge}\n" + ROW
    topology = resolved(
        "streams: [{name: C, domain: leaf-imp, mirror: {name: S, domain: hub}}]", head
    )
    assert mirror(topology, "leaf-imp/stream/C")["external"] == {"api": "$JS.hub.API"}
    assert findings(topology) == [("warning", "JS450")]
