"""Generated files are short: one entry for a fleet, defaults once, origins by domain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jsplan.address import Address
from jsplan.codegen import CodegenContext, ResourceToWrite, generate_document
from jsplan.codegen.references import shortest_selector
from jsplan.config.expand import DomainSelectors
from jsplan.config.findings import Findings
from jsplan.config.model import Domain
from jsplan.config.node import Source, from_plain
from jsplan.topology import build_topology
from tests.codegen.read_back import config_on_server, domains, planned_configs, read_back, workspace

STORES = tuple(f"store-{number:03d}" for number in range(1, 201))
FLEET = CodegenContext(domains("hub", *STORES, **dict.fromkeys(STORES, "edge")))
SALES = {
    "name": "SALES",
    "subjects": ["sales.>"],
    "max_age": 30 * 86_400 * 10**9,
    "max_bytes": 10 * 1024**3,
}


def stream_in_stores(
    name: str, config: dict[str, Any], *, without: tuple[str, ...] = ()
) -> list[ResourceToWrite]:
    """Return the same stream in the stores; `{}` in its subjects is the name of each store."""
    return [
        config_on_server(
            Address(key, "stream", name),
            config | {"subjects": [subject.replace("{}", key) for subject in config["subjects"]]},
        )
        for key in STORES
        if key not in without
    ]


def test_two_hundred_domains_are_a_few_lines(tmp_path: Path) -> None:
    """Equal streams in 200 domains, and a stream that sources them, are a dozen lines."""
    found = stream_in_stores("SALES", SALES | {"subjects": ["sales.{}.>"]}) + stream_in_stores(
        "AUDIT", {"name": "AUDIT", "subjects": ["audit"]}
    )
    found += [
        config_on_server(
            Address(key, "consumer", "SALES/UP"),
            {"name": "UP", "durable_name": "UP", "ack_policy": "explicit"},
        )
        for key in STORES
    ]
    sources = [{"name": "SALES", "external": {"api": f"$JS.{key}.API"}} for key in STORES]
    found.append(
        config_on_server(Address("hub", "stream", "ALL"), {"name": "ALL", "sources": sources})
    )
    written = generate_document(found, FLEET)

    assert written.notes == ()
    assert written.resource_count == 601
    assert written.text.count("\n") < 20
    assert "  - {name: AUDIT, domain: label:edge, subjects: [audit]}" in written.text
    assert (
        '    subjects: ["sales.${domain}.>"]\n    max_bytes: 10GiB\n    max_age: 30d\n'
        in written.text
    )
    assert "      - {name: SALES, domain: label:edge}" in written.text
    read = planned_configs(workspace(tmp_path, written.text, FLEET))
    assert read.keys() == {one.address for one in found}
    assert read[Address("store-017", "stream", "SALES")]["subjects"] == ["sales.store-017.>"]


def test_stores_that_differ_have_entries_of_their_own(tmp_path: Path) -> None:
    """Stores that differ have entries of their own, which say only what differs."""
    found = stream_in_stores("SALES", SALES, without=("store-017", "store-099"))
    found.append(
        config_on_server(
            Address("store-017", "stream", "SALES"), SALES | {"max_bytes": 50 * 1024**3}
        )
    )
    consumer = {"name": "UP", "durable_name": "UP", "ack_policy": "explicit"}
    found += [
        config_on_server(Address(key, "consumer", "SALES/UP"), consumer)
        for key in STORES
        if key not in ("store-004", "store-099")
    ]
    text = read_back(tmp_path, found, FLEET)

    assert 'domain: [label:edge, "!store-017", "!store-099"]' in text
    assert (
        '  - name: SALES\n    domain: store-017\n    subjects: ["sales.>"]\n    max_bytes: 50GiB\n    max_age: 30d\n    consumers:\n'
        in text
    )
    assert (
        '    name: UP\n    domain: [label:edge, "!store-004", "!store-017", "!store-099"]\n' in text
    )


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("hub",), "hub"),
        (("hub", "store-001"), ["hub", "store-001"]),
        (STORES, "label:edge"),
        (("hub", *STORES), "*"),
        (STORES[:50], "store-{001..050}"),
        (
            (*STORES[:50], *STORES[60:63], STORES[90], "hub"),
            ["hub", "store-{001..050}", "store-{061..063}", "store-091"],
        ),
        (STORES[1:], ["label:edge", "!store-001"]),
    ],
    ids=str,
)
def test_selectors_match_exactly(keys: tuple[str, ...], expected: str | list[str]) -> None:
    """A selector is short, in the workspace's words, and matches exactly its domains."""
    found = shortest_selector(keys, FLEET.domains)
    assert found == expected
    node = from_plain(found, (Source(Path("x"), "x"), 0, 0))
    assert sorted(DomainSelectors(FLEET.domains, Findings()).select(node)) == sorted(keys)


def test_a_default_is_written_once(tmp_path: Path) -> None:
    """A value of nearly all entries is in `defaults:`; the others name the server's own value."""
    found = [
        config_on_server(
            Address("hub", "stream", f"S{n}"),
            {"name": f"S{n}", "subjects": [f"s{n}"], "num_replicas": 3},
        )
        for n in range(9)
    ]
    found.append(
        config_on_server(Address("hub", "stream", "ONE"), {"name": "ONE", "subjects": ["one"]})
    )
    found.append(
        config_on_server(
            Address("leaf", "stream", "TWO"),
            {"name": "TWO", "subjects": ["two"], "num_replicas": 3},
        )
    )
    text = read_back(tmp_path, found, CodegenContext(domains("hub", "leaf")))

    assert text.startswith("defaults:\n  domain: hub\n  stream: {num_replicas: 3}\n")
    assert "- {name: ONE, subjects: [one], num_replicas: 1}" in text
    assert "- {name: S4, subjects: [s4]}" in text
    assert "- {name: TWO, domain: leaf, subjects: [two]}" in text


def test_defaults_of_the_workspace_are_kept(tmp_path: Path) -> None:
    """A workspace that has defaults gets no others; each entry says what differs from them."""
    standing = {"num_replicas": 3, "max_age": "1h", "storage": "${var.where}"}
    world = CodegenContext(
        domains("hub"), existing_defaults={"stream": standing}, extractable_kinds=frozenset()
    )
    found = [
        config_on_server(
            Address("hub", "stream", f"S{n}"),
            {"name": f"S{n}", "subjects": [f"s{n}"], "num_replicas": 3},
        )
        for n in range(5)
    ]
    found.append(
        config_on_server(
            Address("hub", "stream", "HOUR"),
            {"name": "HOUR", "max_age": 3600 * 10**9, "storage": "memory"},
        )
    )
    text = read_back(
        tmp_path, found, world, defaults={"stream": standing}, vars={"where": "memory"}
    )

    assert "defaults:" not in text
    assert "- {name: HOUR, storage: memory, num_replicas: 1}" in text
    assert "- {name: S0, subjects: [s0], max_age: 0s, storage: file}" in text


def test_origins_by_domain_and_otherwise(tmp_path: Path) -> None:
    """An origin in a domain of the workspace is named by it; another one keeps its `external`."""
    world = CodegenContext(domains("hub", "leaf"))
    origins = [
        {"name": "A", "external": {"api": "$JS.leaf.API"}},
        {"name": "B", "external": {"api": "$JS.leaf.API", "deliver": "deliver.b"}},
        {
            "name": "C",
            "external": {"api": "$JS.far.API", "deliver": "deliver.c"},
            "filter_subject": "c.>",
        },
        {"name": "D", "subject_transforms": [{"src": "d.*", "dest": "e.{{wildcard(1)}}"}]},
    ]
    text = read_back(
        tmp_path,
        [ResourceToWrite(Address("hub", "stream", "ALL"), {"name": "ALL", "sources": origins})],
        world,
    )
    assert (
        text
        == """\
streams:
  - name: ALL
    domain: hub
    sources:
      - {name: A, domain: leaf}
      - {name: B, domain: leaf, deliver: deliver.b}
      - {name: C, filter_subject: "c.>", external: {api: $JS.far.API, deliver: deliver.c}}
      - name: D
        subject_transforms:
          - {src: "d.*", dest: "e.{{wildcard(1)}}"}
"""
    )


def test_settings_and_comments_of_a_caller() -> None:
    """A converter may add guards and a comment to an entry."""
    one = ResourceToWrite(
        Address("hub", "stream", "A"),
        {"name": "A"},
        settings={"lifecycle": {"prevent_destroy": True}},
        comment=("was A.yaml",),
    )
    assert generate_document([one], CodegenContext(domains("hub", "leaf")), ["Title"]).text == (
        "# Title\n\nstreams:\n  # was A.yaml\n  - {name: A, domain: hub, lifecycle: {prevent_destroy: true}}\n"
    )


def test_an_empty_import_is_an_empty_text() -> None:
    """An import that finds nothing writes an empty text."""
    assert (
        generate_document(
            [], CodegenContext({"hub": Domain("hub", "hub", None, "$JS.API")})
        ).text.strip()
        == ""
    )


def test_names_and_texts_with_the_domain_in_them(tmp_path: Path) -> None:
    """A fleet is one entry also where the domain's name is part of names and texts."""
    keys = ("s1", "s2", "s3")
    found = [
        config_on_server(
            Address(key, "stream", f"SALES_{key}"),
            {
                "name": f"SALES_{key}",
                "subjects": [f"{key}.sales.>"],
                "description": f"Of {key} ${{x}}",
            },
        )
        for key in keys
    ]
    consumer = {"name": "UP", "durable_name": "UP", "ack_policy": "explicit"}
    found += [
        config_on_server(
            Address(key, "consumer", f"SALES_{key}/UP"),
            consumer | {"filter_subject": f"{key}.sales.a"},
        )
        for key in keys
    ]
    found.append(
        config_on_server(
            Address("s2", "consumer", "SALES_s2/ONLY"),
            consumer | {"name": "ONLY", "durable_name": "ONLY"},
        )
    )
    text = read_back(tmp_path, found, CodegenContext(domains(*keys)))
    assert (
        text
        == """\
streams:
  - name: "SALES_${domain}"
    domain: "*"
    description: "Of ${domain} $${x}"
    subjects: ["${domain}.sales.>"]
    consumers:
      - {name: UP, ack_policy: explicit, filter_subject: "${domain}.sales.a"}

consumers:
  - {stream: SALES_s2, name: ONLY, domain: s2, ack_policy: explicit}
"""
    )


def test_origins_in_other_accounts(tmp_path: Path) -> None:
    """An origin that an `imports` row reaches is named by its domain.

    Its usual delivery prefix is the row's; another one is written.
    """
    sections = {
        "connections": {"a": {"url": "nats://a"}, "b": {"url": "nats://b"}},
        "domains": {"hub": {"connection": "a"}, "mine": {"connection": "b"}},
        "imports": [{"from": "hub", "into": "mine", "api": "JS.a@hub.API", "deliver": "deliver.a"}],
    }
    base = workspace(tmp_path, "", CodegenContext({}), **sections)
    world = CodegenContext(base.domains, build_topology(base).routes)
    external = {"api": "JS.a@hub.API", "deliver": "deliver.a.mine.COPY"}
    found = [
        ResourceToWrite(
            Address("mine", "stream", "COPY"),
            {"name": "COPY", "mirror": {"name": "A", "external": external}},
        ),
        ResourceToWrite(
            Address("mine", "stream", "ALL"),
            {
                "name": "ALL",
                "sources": [{"name": "A", "external": external | {"deliver": "deliver.a.x"}}],
            },
        ),
        ResourceToWrite(
            Address("mine", "stream", "FAR"),
            {"name": "FAR", "sources": [{"name": "A", "external": {"api": "$JS.hub.API"}}]},
        ),
    ]
    text = generate_document(found, world).text
    assert "- {name: COPY, mirror: {name: A, domain: hub}}" in text
    assert "- {name: A, domain: hub, deliver: deliver.a.x}" in text
    assert "- {name: A, external: {api: $JS.hub.API}}" in text
    read = workspace(tmp_path, text, CodegenContext({}), **sections)
    assert build_topology(read).delivery_prefixes[Address("mine", "stream", "COPY")] == {
        "A@JS.a@hub.API": "deliver.a.mine.COPY"
    }
