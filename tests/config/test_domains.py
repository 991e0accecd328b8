"""Connections, domains, ranges, selectors, backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsplan.config.expand import expand_range
from jsplan.config.model import Tls
from jsplan.units import SECOND
from tests.config.conftest import HEAD, Loader, body_of

FLEET = """\
connections: {hub: {}, b: {}}
domains:
  hub: {connection: hub}
  "store-{001..004}": {connection: hub, labels: [edge], vars: {size: 1GiB}}
  store-003: {connection: hub, labels: [edge, big], vars: {size: 50GiB}}
  hub-by-b: {connection: b, api_prefix: "JS.acc@hub.API.", same_as: hub, labels: [edge]}
"""
STORES = ["store-001", "store-002", "store-003", "store-004"]


def test_connections_have_all_their_keys(workspace: Loader) -> None:
    """All keys of a connection are read; relative paths start at their file and `~` is HOME."""
    files = {
        "net/c.yaml": """
            connections:
              edge: {url: "tls://edge:4222", creds: ./a.creds, tls: {ca: ca.pem, cert: c.pem, key: k.pem, handshake_first: true},
                     inbox_prefix: _IN.x, timeout: 2s, account: ACC}
              key: {url: u, nkey: ~/seed.nk}
              ngs: {context: ngs}
            """
    }
    loaded = workspace(
        "include: [net/c.yaml]\ndomains: {hub: {connection: edge}}\n",
        head=HEAD,
        files=files,
        environ={"HOME": "/home/me"},
    )
    net = workspace.root / "net"
    edge = loaded.connections["edge"]
    assert (edge.url, edge.creds, edge.inbox_prefix, edge.timeout, edge.account) == (
        "tls://edge:4222",
        net / "a.creds",
        "_IN.x",
        2 * 10**9,
        "ACC",
    )
    assert edge.tls == Tls(net / "ca.pem", net / "c.pem", net / "k.pem", handshake_first=True)
    assert loaded.connections["key"].nkey == Path("/home/me/seed.nk")
    assert (loaded.connections["ngs"].context, str(loaded.connections["ngs"].range)) == (
        "ngs",
        "net/c.yaml:6:8",
    )


def test_no_connections_at_all_mean_one(workspace: Loader) -> None:
    """Without `connections:`, there is one empty connection with the name that the domains use."""
    loaded = workspace("domains: {hub: {connection: main}, leaf: {}}\n", head=HEAD)
    assert list(loaded.connections) == ["main"]
    assert loaded.domains["leaf"].connection == "main"
    assert (loaded.connections["main"].url, loaded.connections["main"].context) == (None, None)


def test_a_connection_may_be_empty(workspace: Loader) -> None:
    """A connection may be empty, written as `hub: {}` or `hub:`."""
    assert list(
        workspace(
            "connections: {hub: {}, b: }\ndomains: {x: {connection: b}}\n", head=HEAD
        ).connections
    ) == ["hub", "b"]


def test_without_domains_the_missing_lines_are_printed(workspace: Loader) -> None:
    """A workspace without domains is an error with the YAML that is missing."""
    found = workspace.single_finding("connections: {ngs: {}}\n", head=HEAD)
    assert found.code == "JS126"
    assert "  domains:\n    hub: {connection: ngs}" in found.detail
    assert "js_domain: null" in found.detail


def test_a_default_domain_alone_is_a_domain(workspace: Loader) -> None:
    """A workspace with `defaults.domain` needs no `domains:`."""
    loaded = workspace("defaults: {domain: hub}\nstreams: [{name: S}]\n", head=HEAD)
    assert (loaded.domains["hub"].api_prefix, loaded.domains["hub"].connection) == (
        "$JS.hub.API",
        "default",
    )
    assert list(map(str, loaded.resources)) == ["hub/stream/S"]


def test_a_domain_knows_its_prefix(workspace: Loader) -> None:
    """The key of a domain is its JetStream domain unless `js_domain` says otherwise."""
    loaded = workspace(
        "domains: {hub: {}, plain: {js_domain: null}, x: {js_domain: y}, z: {api_prefix: my.API}}\n",
        head=HEAD,
    )
    assert [(d.js_domain, d.api_prefix) for d in loaded.domains.values()] == [
        ("hub", "$JS.hub.API"),
        (None, "$JS.API"),
        ("y", "$JS.y.API"),
        ("z", "my.API"),
    ]


def test_a_range_stands_for_many_domains(workspace: Loader) -> None:
    """A range becomes one domain per number, and an exact name replaces its entry."""
    loaded = workspace("", head=HEAD + FLEET)
    assert list(loaded.domains) == [
        "hub",
        "store-001",
        "store-002",
        "store-004",
        "store-003",
        "hub-by-b",
    ]
    assert loaded.domains["store-004"].api_prefix == "$JS.store-004.API"
    assert [loaded.domains[key].vars["size"] for key in STORES] == ["1GiB", "1GiB", "50GiB", "1GiB"]
    by_b = loaded.domains["hub-by-b"]
    assert (by_b.same_as, by_b.js_domain, by_b.api_prefix) == ("hub", "hub", "JS.acc@hub.API")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a", ["a"]),
        ("a{1..3}", ["a1", "a2", "a3"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("r{1..2}-{1..2}", ["r1-1", "r1-2", "r2-1", "r2-2"]),
    ],
)
def test_ranges_are_expanded(pattern: str, found: list[str]) -> None:
    """Ranges keep leading zeros, and several ranges multiply."""
    assert expand_range(pattern) == found


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("hub", ["hub"]),
        ("hub-by-b", ["hub-by-b"]),
        ("[hub, store-002]", ["hub", "store-002"]),
        ('"*"', ["hub", *STORES]),
        ('"store-*"', STORES),
        ('"store-00[12]"', ["store-001", "store-002"]),
        ('"store-{001..002}"', ["store-001", "store-002"]),
        ("label:edge", STORES),
        ("label:big", ["store-003"]),
        ('["label:edge", "!store-002"]', ["store-001", "store-003", "store-004"]),
        ('["!store-002", "label:edge", "!label:big"]', ["store-001", "store-004"]),
        ('"!label:edge"', ["hub"]),
        ('"${var.one}"', ["store-001"]),
        ("[hub, hub]", ["hub"]),
    ],
)
def test_a_selector_gives_one_resource_per_match(
    selector: str, found: list[str], workspace: Loader
) -> None:
    """A selector matches by name, list, glob, label and exclusion.

    Domains with `same_as` match only by their exact name.
    """
    loaded = workspace(
        f"vars: {{one: store-001}}\nstreams: [{{name: S, domain: {selector}}}]\n", head=HEAD + FLEET
    )
    assert sorted(address.domain for address in loaded.resources) == sorted(found)


def test_each_domain_of_a_fleet_has_its_own_values(workspace: Loader) -> None:
    """`${domain}` and `${domain.size}` have the values of each domain."""
    text = """
        streams:
          - {name: S, domain: label:edge, subjects: ["s.${domain}.>"], max_bytes: "${domain.size}", consumers: [{name: "C-${domain}"}]}
        """
    loaded = workspace(text, head=HEAD + FLEET)
    assert body_of(loaded, "store-003/stream/S") == {
        "name": "S",
        "subjects": ["s.store-003.>"],
        "max_bytes": 50 * 2**30,
    }
    assert body_of(loaded, "store-001/stream/S")["max_bytes"] == 2**30
    assert "store-004/consumer/S/C-store-004" in map(str, loaded.resources)


@pytest.mark.parametrize("selector", ["label:egde", '"shop-*"', '"store-{900..901}"'])
def test_a_pattern_that_matches_nothing_is_a_warning(selector: str, workspace: Loader) -> None:
    """A label or glob that matches no domain is a warning."""
    loaded = workspace(f"streams: [{{name: S, domain: {selector}}}]\n", head=HEAD + FLEET)
    assert loaded.resources == {}
    assert [(d.severity, d.code) for d in loaded.diagnostics] == [("warning", "JS124")]


def test_one_mistake_in_a_fleet_is_reported_once(workspace: Loader) -> None:
    """A mistake in an entry for many domains is reported once."""
    assert (
        workspace.single_finding(
            "streams: [{name: S, domain: label:edge, max_aeg: 1d}]\n", head=HEAD + FLEET
        ).code
        == "JS105"
    )


def test_the_domain_of_a_resource_must_be_clear(workspace: Loader) -> None:
    """Without `domain:`, the default or the only domain is used; several are an error."""
    assert list(map(str, workspace("streams: [{name: S}]\n").resources)) == ["hub/stream/S"]
    found = workspace.single_finding("streams: [{name: S}]\n", head=HEAD + FLEET)
    assert found.code == "JS127"
    loaded = workspace("defaults: {domain: label:big}\nstreams: [{name: S}]\n", head=HEAD + FLEET)
    assert list(map(str, loaded.resources)) == ["store-003/stream/S"]


def test_sources_are_expanded_per_domain(workspace: Loader) -> None:
    """Each domain that a source matches becomes one source with the same fields."""
    text = """
        streams:
          - name: ALL
            domain: hub
            sources:
              - {name: SALES, domain: label:edge, filter_subject: "sales.>", deliver: d.x}
              - {name: LOCAL}
              - {name: RAW, external: {api: "$JS.x.API"}}
        """
    sources = body_of(workspace(text, head=HEAD + FLEET), "hub/stream/ALL")["sources"]
    assert sources == [
        *(
            {"name": "SALES", "domain": key, "filter_subject": "sales.>", "deliver": "d.x"}
            for key in ["store-001", "store-002", "store-004", "store-003"]
        ),
        {"name": "LOCAL"},
        {"name": "RAW", "external": {"api": "$JS.x.API"}},
    ]


def test_a_stream_is_no_source_of_itself(workspace: Loader) -> None:
    """A stream is left out of the sources that a pattern gives it."""
    text = 'streams: [{name: A, domain: "store-*", sources: [{name: A, domain: "store-*"}]}]\n'
    sources = body_of(workspace(text, head=HEAD + FLEET), "store-002/stream/A")["sources"]
    assert isinstance(sources, list)
    assert sorted(origin["domain"] for origin in sources) == ["store-001", "store-003", "store-004"]


def test_a_mirror_has_one_origin(workspace: Loader) -> None:
    """A mirror may use a selector that matches exactly one domain."""
    loaded = workspace(
        "streams: [{name: M, domain: hub, mirror: {name: A, domain: label:big}}]\n",
        head=HEAD + FLEET,
    )
    assert body_of(loaded, "hub/stream/M")["mirror"] == {"name": "A", "domain": "store-003"}
    found = workspace.single_finding(
        "streams: [{name: M, domain: hub, mirror: {name: A, domain: label:edge}}]\n",
        head=HEAD + FLEET,
    )
    assert (found.code, "store-001" in found.detail) == ("JS125", True)


def test_the_backend_is_below_the_workspace(workspace: Loader) -> None:
    """The default backend is a file below the workspace, and a path is relative to it."""
    assert workspace("").backend.path == workspace.root / "state" / "shop.json"
    assert (
        workspace("backend: {local: {path: ../s.json}}\n").backend.path
        == workspace.root / ".." / "s.json"
    )


def test_the_backend_is_a_bucket(workspace: Loader) -> None:
    """The domain of a KV backend is its own, the default or the only one."""
    two = HEAD + "connections: {c: {}}\ndomains: {hub: {connection: c}, leaf: {connection: c}}\n"
    named = workspace("backend: {kv: {domain: leaf, bucket: S, lock_ttl: 5m}}\n", head=two).backend
    usual = workspace("backend: {kv: {bucket: S}}\ndefaults: {domain: leaf}\n", head=two).backend
    only = workspace(
        "backend: {kv: {bucket: S}}\n",
        head=HEAD + "connections: {c: {}}\ndomains: {hub: {connection: c}}\n",
    ).backend

    assert (named.kind, named.domain, named.bucket, named.lock_ttl) == (
        "kv",
        "leaf",
        "S",
        300 * SECOND,
    )
    assert (usual.domain, usual.lock_ttl) == ("leaf", 60 * SECOND)
    assert only.domain == "hub"
    assert [p.code for p in workspace.findings("backend: {kv: {bucket: S}}\n", head=two)] == [
        "JS128"
    ]


def test_an_environment_that_is_no_valid_bucket_key(workspace: Loader) -> None:
    """An environment whose name is invalid in a bucket key is an error with a KV backend."""
    text = "environments: {'a b': {}}\nbackend: {kv: {bucket: S}}\n"
    assert "JS131" in [p.code for p in workspace.findings(text, environment="a b")]


@pytest.mark.parametrize(
    "declared", ["kv: [{bucket: S, domain: hub}]", "streams: [{name: KV_S, domain: hub}]"]
)
def test_the_bucket_of_the_state_is_no_resource(declared: str, workspace: Loader) -> None:
    """A workspace cannot manage the bucket of its own state."""
    head = (
        HEAD
        + "connections: {c: {}}\ndomains: {hub: {connection: c}, leaf: {connection: c}}\nbackend: {kv: {domain: hub, bucket: S}}\n"
    )

    assert {p.code for p in workspace.findings(declared + "\n", head=head)} & {"JS128", "JS132"}
    assert workspace("kv: [{bucket: S, domain: leaf}]\n", head=head).diagnostics == ()
