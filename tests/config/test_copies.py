"""`copy_of:`: the fields that a stream takes from another one, and invalid bases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import Address

if TYPE_CHECKING:
    from tests.config.conftest import Loader

HEAD = """\
jsplan: 1
workspace: shop
domains: {hub: {}, leaf: {labels: [edge]}, leaf2: {labels: [edge]}}
"""
HOUR = 3_600_000_000_000


def body(workspace: Loader, text: str, address: str) -> dict[str, Any]:
    """Return the body of one stream."""
    return dict(workspace(text, head=HEAD).resources[Address.parse(address)].body)


def test_a_copy_has_all_fields_but_name_and_subjects(workspace: Loader) -> None:
    """A copy has all fields of its base but name and subjects; its own fields win.

    Unknown fields are taken too. null means the default of the server.
    """
    found = body(
        workspace,
        """
        streams:
          - {name: NEW, domain: hub, copy_of: hub/stream/OLD, subjects: [new], max_msgs: 5, storage: null}
          - {name: OLD, domain: hub, subjects: [old], max_age: 1h, max_msgs: 9, storage: memory, x_raw: {later: 1}}
        """,
        "hub/stream/NEW",
    )
    assert found == {
        "name": "NEW",
        "subjects": ["new"],
        "max_age": HOUR,
        "max_msgs": 5,
        "storage": None,
        "later": 1,
    }


def test_layers_of_the_base(workspace: Loader) -> None:
    """A copy takes the final fields of its base, with defaults, config_file and overrides."""
    workspace.write({"old.json": '{"config": {"name": "X", "max_msgs": 7, "num_replicas": 1}}'})
    found = body(
        workspace,
        """
        defaults: {stream: {max_age: 2h, num_replicas: 3}}
        streams:
          - {name: OLD, domain: hub, subjects: [old], config_file: old.json}
          - {name: NEW, domain: leaf, copy_of: hub/stream/OLD, subjects: [new]}
        overrides:
          - {address: hub/stream/OLD, max_bytes: 1KiB}
          - {address: leaf/**, max_msg_size: 10}
        """,
        "leaf/stream/NEW",
    )
    expected = {
        "max_age": 2 * HOUR,
        "num_replicas": 1,
        "max_msgs": 7,
        "max_bytes": 1024,
        "max_msg_size": 10,
    }
    assert found == {"name": "NEW", "subjects": ["new"]} | expected


def test_lifecycle_and_consumers_are_not_taken(workspace: Loader) -> None:
    """Lifecycle, lint settings and consumers of the base are not taken."""
    loaded = workspace(
        """
        streams:
          - name: OLD
            domain: hub
            lifecycle: {prevent_destroy: true}
            lint: {ignore: [{code: JS220, reason: known}]}
            consumers: [{name: C}]
          - {name: NEW, domain: hub, copy_of: hub/stream/OLD}
        """,
        head=HEAD,
    )
    copy = loaded.resources[Address.parse("hub/stream/NEW")]
    assert (copy.lifecycle.prevent_destroy, dict(copy.lint_ignore), dict(copy.body)) == (
        None,
        {},
        {"name": "NEW"},
    )
    assert Address.parse("hub/consumer/NEW/C") not in loaded.resources


def test_chains_and_fleets(workspace: Loader) -> None:
    """Copies of copies are resolved in any order and for each domain."""
    loaded = workspace(
        """
        streams:
          - {name: THIRD, domain: label:edge, copy_of: "${domain}/stream/SECOND", subjects: ["third.${domain}"]}
          - {name: SECOND, domain: label:edge, copy_of: hub/stream/FIRST, subjects: ["second.${domain}"], max_msgs: 2}
          - {name: FIRST, domain: hub, subjects: [first], max_age: 1h}
        """,
        head=HEAD,
    )
    assert [str(address) for address in loaded.resources][:2] == [
        "leaf/stream/THIRD",
        "leaf2/stream/THIRD",
    ]
    for key in ("leaf", "leaf2"):
        found = dict(loaded.resources[Address(key, "stream", "THIRD")].body)
        assert found == {
            "name": "THIRD",
            "subjects": [f"third.{key}"],
            "max_age": HOUR,
            "max_msgs": 2,
        }


@pytest.mark.parametrize(
    ("domain", "origin"), [("hub", {"name": "A"}), ("leaf", {"name": "A", "domain": "hub"})]
)
def test_an_origin_stays_the_same_stream(
    workspace: Loader, domain: str, origin: dict[str, str]
) -> None:
    """A copy of a mirror mirrors the same stream, also from another domain."""
    text = f"""
        streams:
          - {{name: A, domain: hub, subjects: [a]}}
          - {{name: OLD, domain: hub, mirror: {{name: A}}, max_age: 1h}}
          - {{name: NEW, domain: {domain}, copy_of: hub/stream/OLD}}
        """
    assert body(workspace, text, f"{domain}/stream/NEW") == {
        "name": "NEW",
        "mirror": origin,
        "max_age": HOUR,
    }


def test_a_mirror_of_its_base(workspace: Loader) -> None:
    """A mirror may be a copy of its origin."""
    found = body(
        workspace,
        """
        streams:
          - {name: A, domain: hub, subjects: [a], max_age: 1h}
          - {name: A, domain: leaf, copy_of: hub/stream/A, mirror: {name: A, domain: hub}}
        """,
        "leaf/stream/A",
    )
    assert found == {"name": "A", "mirror": {"name": "A", "domain": "hub"}, "max_age": HOUR}


def test_only_streams_are_copied(workspace: Loader) -> None:
    """Only streams have `copy_of`."""
    for text in (
        "kv: [{bucket: B, domain: hub, copy_of: hub/kv/C}]",
        "consumers: [{stream: S, name: C, domain: hub, copy_of: hub/consumer/S/D}]",
        "defaults: {stream: {copy_of: hub/stream/A}}",
        "overrides: [{address: hub/stream/A, copy_of: hub/stream/B}]\nstreams: [{name: A, domain: hub}]",
    ):
        assert workspace.single_finding(text, head=HEAD).code == "JS105", text
