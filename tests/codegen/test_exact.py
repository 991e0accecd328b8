"""A generated file means exactly what was found, for every reader of YAML."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jsplan.address import Address
from jsplan.codegen import CodegenContext, ResourceToWrite, bucket_resource, generate_document
from jsplan.codegen.layout import format_flow
from jsplan.config.checks import check_stream
from jsplan.config.checks_consumers import check_consumer
from jsplan.planning.merge import expected_new
from jsplan.planning.server_rules import ServerContext, find_consumer_problems, find_stream_problems
from jsplan.resources import CONSUMER, STREAM
from jsplan.resources.buckets import lower
from jsplan.resources.server_features import NEWEST_LEVEL
from tests.codegen.read_back import config_on_server, domains, planned_configs, read_back, workspace
from tests.fields import strategies

if TYPE_CHECKING:
    from collections.abc import Iterator

TWO = CodegenContext(domains("hub", "leaf"))
#: What some reader of YAML takes for something else than text, and what ends a text too early.
ODD = [
    "on", "NO", "y", "~", "null", "true", "1e3", "010", "0o17", "0x1F", "12:30", "1_000", "2026-01-01", "-", "-1", "+.5", ".5", ".inf",
    ">", "*", "ORDERS.*", "> x", "| x", "& a", "!x", "%a", "@a", "`a`", "a: b", "a #b", "#a", "{a}", "[a]", "a,b", "'", '"', "\\", " a",
    "a ", "", "=", "<<", "---", "...", "?", "? a", "a\nb", "a\tb", "\u0007", "\u0085", "\u2028", "\ufeff", "ü", "日本", "🐇", "${a}",
    "$${a}", "$JS.FC.>", "$",
    "label:edge", "a:", ":a", "1.5GiB", "00", "1.", "0b1", "=a", "Köln Süd", "x" * 200,
]  # fmt: skip


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=strategies.streams("S", NEWEST_LEVEL))
def test_any_stream(body: dict[str, Any]) -> None:
    """Any stream that the server takes is written so that the plan after it is empty."""
    after = expected_new(STREAM, body, NEWEST_LEVEL, {})
    if [
        *check_stream(body),
        *find_stream_problems(None, after, ServerContext(NEWEST_LEVEL, standalone=True)),
    ]:
        return
    with TemporaryDirectory() as folder:
        read_back(Path(folder), [config_on_server(Address("hub", "stream", "S"), body)], TWO)


#: A value or two of every field of a stream that is not its default.
VALUES: dict[str, list[Any]] = {
    "description": ["d"], "retention": ["interest", "workqueue"],
    "discard": ["new", "old"], "storage": ["memory"], "compression": ["s2", "none"],
    "max_consumers": [3], "max_msgs": [5], "max_bytes": [1 << 20], "max_age": [3_600_000_000_000], "max_msgs_per_subject": [1, 7, 70],
    "max_msg_size": [100], "num_replicas": [3], "duplicate_window": [60_000_000_000], "placement": [{"tags": ["a"]}], "first_seq": [9],
    "republish": [{"dest": "r.>"}], "subject_transform": [{"src": ">", "dest": "t.>"}], "metadata": [{"a": "b"}],
    "consumer_limits": [{"max_ack_pending": 5}], "subject_delete_marker_ttl": [5_000_000_000], "persist_mode": ["async"],
    "subjects": [["odd"], []], "sealed": [True],
    "mirror": [{"name": "KV_O"}, {"name": "KV_O", "external": {"api": "$JS.leaf.API"}}],
    "sources": [[{"name": "KV_O"}], [{"name": "KV_O", "filter_subject": "a"}],
                [{"name": "KV_O", "subject_transforms": [{"src": "$KV.O.>", "dest": "$KV.B.>"}]}]],
}  # fmt: skip


def every_pair(name: str) -> Iterator[dict[str, Any]]:
    """Return streams with each two values of two fields that the server would take.

    They also have what clients give the bucket of that name.
    """
    values = [
        (row.name, value)
        for row in STREAM.rows
        if row.name != "name"
        for value in VALUES.get(row.name, [True, False])
    ]
    usual = (
        lower(Address.of_stream("hub", name), {})
        if not name.startswith("S")
        else {"subjects": ["s"]}
    )
    for (one, first), (other, second) in combinations(values, 2):
        body = (
            {key: value for key, value in usual.items() if value is not None}
            | {"name": name}
            | {one: first, other: second}
        )
        if body.get("mirror"):
            body.pop("subjects", None)
        sealed = body.pop("sealed", False)
        after = expected_new(STREAM, body, NEWEST_LEVEL, {})
        if not [
            *check_stream(after),
            *find_stream_problems(None, after, ServerContext(NEWEST_LEVEL, standalone=True)),
        ]:
            yield (
                expected_new(STREAM, after | {"sealed": True}, NEWEST_LEVEL, {})
                if sealed
                else after
            )


@pytest.mark.parametrize("kind", ["S", "KV_B", "OBJ_B"])
def test_every_two_fields(kind: str, tmp_path: Path) -> None:
    """Any two fields of a bucket or stream are written, also where clients would choose others."""
    configs = {json.dumps(config, sort_keys=True): config for config in every_pair(kind)}
    found = [
        ResourceToWrite(
            Address.of_stream("hub", f"{kind}{number}"),
            STREAM.with_defaults(_rename_stream(config, kind, f"{kind}{number}"), NEWEST_LEVEL),
            complete=True,
        )
        for number, config in enumerate(configs.values())
    ]
    assert len(found) > 500
    read_back(tmp_path, found, TWO)


def test_a_bucket_that_copies_a_stream_is_named(tmp_path: Path) -> None:
    """A bucket entry names buckets alone; an origin of another kind is kept, with a note."""
    found = config_on_server(
        Address("hub", "kv", "B"),
        {"name": "KV_B", "mirror": {"name": "O"}, "deny_delete": True, "allow_rollup_hdrs": True},
    )
    written = generate_document([found], TWO)
    assert [note.partition(":")[0] for note in written.notes] == ["hub/kv/B"]
    assert "its mirror reads a stream that is not a bucket" in written.notes[0]
    assert "ignore_changes: [mirror]" in written.text


def _rename_stream(config: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """Rename the stream, and its name in subjects and transforms."""
    text = (
        json.dumps(config)
        .replace(f"$KV.{old[3:]}.", f"$KV.{new[3:]}.")
        .replace(f"$O.{old[4:]}.", f"$O.{new[4:]}.")
    )
    renamed: dict[str, Any] = json.loads(text)
    return (
        renamed | {"name": new} | ({"subjects": [new]} if renamed.get("subjects") == [old] else {})
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=strategies.consumers("C", "S", NEWEST_LEVEL))
@example(body={"name": "C", "deliver_policy": "last_per_subject", "filter_subject": ">"})
def test_any_consumer(body: dict[str, Any]) -> None:
    """Any consumer of a stream, with limits for consumers or without, is written exactly."""
    limits = {"inactive_threshold": 6000 * strategies.SECOND, "max_ack_pending": 50}
    for around in ({}, limits):
        stream = STREAM.compact({"name": "S", "subjects": ["S.>"], "consumer_limits": around})
        place = ServerContext(NEWEST_LEVEL, standalone=True, stream=stream)
        if [
            *check_consumer(body),
            *find_consumer_problems(
                None, expected_new(CONSUMER, body, NEWEST_LEVEL, around), place
            ),
        ]:
            continue
        address = Address("hub", "consumer", "S/C")
        one = ResourceToWrite(
            address, expected_new(CONSUMER, body, NEWEST_LEVEL, around), complete=True
        )
        with TemporaryDirectory() as folder:
            read_back(
                Path(folder), [config_on_server(Address("hub", "stream", "S"), stream), one], TWO
            )


def test_text_survives_every_reader(tmp_path: Path) -> None:
    """Text that looks like a number, a date or a reference is read as text, by YAML 1.1 too."""
    for text in ODD:
        assert yaml.safe_load(format_flow({"a": [text], text: text})) == {
            "a": [text],
            text: text,
        }, text
    metadata = {f"k{number}": text for number, text in enumerate(ODD)}
    keys = {text: "v" for text in ODD if "${" not in text}
    written = read_back(
        tmp_path,
        [
            config_on_server(
                Address("hub", "stream", "010"),
                {"name": "010", "subjects": [">"], "no_ack": True, "metadata": metadata | keys},
            )
        ],
        TWO,
    )
    assert '"1e3"' in written


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=20))
def test_any_text(text: str) -> None:
    """Any text of UTF-8 is read back from YAML unchanged."""
    assert yaml.safe_load(format_flow([text])) == [text]


def test_units_are_exact(tmp_path: Path) -> None:
    """Times and sizes that fit no unit are written exactly."""
    ages = [1, 999, 1_000_000_001, 90_061_000_000_001, 86_400_000_000_000 * 365]
    sizes = [1, 1000, 1023, 1024, 1536, 1024**3 + 1, 3 * 1024**4]
    found = [
        config_on_server(
            Address("hub", "stream", f"S{age}"),
            {"name": f"S{age}", "max_age": age + 10**8, "max_bytes": size},
        )
        for age, size in zip(ages, [*sizes], strict=False)
    ]
    found += [
        config_on_server(
            Address("hub", "stream", f"B{size}"), {"name": f"B{size}", "max_bytes": size}
        )
        for size in sizes
    ]
    text = read_back(tmp_path, found, TWO)
    assert "max_bytes: 3TiB" in text
    assert "max_bytes: 1000}" in text
    assert "max_bytes: 1536}" in text


def test_buckets_in_their_own_words(tmp_path: Path) -> None:
    """A bucket is one line; only what differs from a client's choice is named."""
    words = {"history": 5, "ttl": 7 * 86_400 * 10**9}
    found = [
        bucket_resource(Address("hub", "kv", "CONFIG"), words),
        bucket_resource(
            Address("hub", "kv", "OLD"), words | {"allow_direct": False, "allow_msg_ttl": True}
        ),
        bucket_resource(
            Address("hub", "kv", "ALL"),
            {"sources": [{"name": "CONFIG"}, {"name": "OLD", "external": {"api": "$JS.leaf.API"}}]},
        ),
        bucket_resource(
            Address("leaf", "kv", "COPY"), {"mirror": {"name": "CONFIG", "domain": "hub"}}
        ),
        bucket_resource(
            Address("hub", "kv", "DEEP"), {"max_msgs_per_subject": 100, "deny_delete": False}
        ),
        bucket_resource(
            Address("hub", "object_store", "ASSETS"), {"max_bytes": 1024**3, "compression": True}
        ),
    ]
    written = generate_document(found, TWO)
    assert written.notes == ()
    expected = {one.address: expected_new(STREAM, one.config, NEWEST_LEVEL, {}) for one in found}
    expected[Address("leaf", "kv", "COPY")]["mirror"] = {
        "name": "KV_CONFIG",
        "external": {"api": "$JS.hub.API"},
    }
    assert planned_configs(workspace(tmp_path, written.text, TWO)) == expected
    assert "{bucket: CONFIG, history: 5, ttl: 1w}" in written.text
    assert (
        "{bucket: OLD, history: 5, ttl: 1w, allow_direct: false, allow_msg_ttl: true}"
        in written.text
    )
    assert "{bucket: COPY, domain: leaf, mirror: {name: CONFIG, domain: hub}}" in written.text
    assert "{bucket: DEEP, deny_delete: false, x_raw: {max_msgs_per_subject: 100}}" in written.text
    assert "{bucket: ASSETS, max_bytes: 1GiB, compression: true}" in written.text


def test_fields_of_newer_servers(tmp_path: Path) -> None:
    """A field of a newer server is passed through; inside of an object it is named in a note."""
    config = {
        "name": "S",
        "subjects": ["s"],
        "new_field": {"on": ["${x}", 1, True, None]},
        "placement": {"tags": ["a"], "zone": "b"},
    }
    found = config_on_server(Address("hub", "stream", "S"), config)
    written = generate_document([found], TWO)
    read = planned_configs(workspace(tmp_path, written.text, TWO))[found.address]
    assert read["new_field"] == config["new_field"]
    assert written.notes == (
        "hub/stream/S: placement.zone is not known to this release: it stays on the server, and is not in the file",
    )
