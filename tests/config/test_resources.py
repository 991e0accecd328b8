"""Streams, consumers and buckets as the files declare them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jsplan.config.model import AllowedHazard, Lifecycle
from jsplan.units import SECOND
from tests.config.conftest import HEAD, Loader, body_of

DAY = 86400 * SECOND
TWO = (
    HEAD
    + "domains: {hub: {}, leaf: {connection: default}}\nconnections: {default: {}}\ndefaults: {domain: hub}\n"
)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("max_age: 1y", 365 * DAY),
        ("max_age: 1M", 30 * DAY),
        ("max_age: 1w", 7 * DAY),
        ("max_age: 1h30m", 5400 * SECOND),
        ("max_age: 1000000000", SECOND),
        ("duplicate_window: 500ms", SECOND // 2),
        ("max_bytes: 10GiB", 10 * 2**30),
        ("max_bytes: 512MB", 512 * 2**20),
        ("max_bytes: 4096", 4096),
        ("max_msgs: -1", -1),
        ("subjects: [a, b]", ["a", "b"]),
        ("subjects: []", []),
        ("retention: interest", "interest"),
        ("num_replicas: 3", 3),
        ("metadata: {team: a, _nats.ver: '2.10'}", {"team": "a"}),
        ("max_age: null", None),
        ("max_age:", None),
        ("mirror: ~", None),
        ("placement: {cluster: c, tags: [x]}", {"cluster": "c", "tags": ["x"]}),
        (
            "republish: {src: a, dest: b, headers_only: true}",
            {"src": "a", "dest": "b", "headers_only": True},
        ),
        (
            "subject_transform: {src: 'a.*', dest: 'b.{{wildcard(1)}}'}",
            {"src": "a.*", "dest": "b.{{wildcard(1)}}"},
        ),
        ("consumer_limits: {inactive_threshold: 1h}", {"inactive_threshold": 3600 * SECOND}),
        (
            "mirror: {name: X, opt_start_time: '2026-01-01T01:00:00+01:00', external: ~}",
            {"name": "X", "opt_start_time": "2026-01-01T00:00:00Z"},
        ),
    ],
)
def test_a_field_has_the_units_of_the_api(written: str, value: Any, workspace: Loader) -> None:
    """Durations become nanoseconds and sizes become bytes, also in nested objects."""
    declared = workspace.single_resource(f"streams:\n  - name: S\n    {written}\n")
    assert declared.body[written.split(":")[0]] == value


def test_consumers_are_nested_or_at_the_top_level(workspace: Loader) -> None:
    """A nested consumer is in the domains of its stream; a top-level one names its stream."""
    text = """
        streams:
          - {name: S, domain: [hub, leaf], consumers: [{name: C, sample_freq: 100}]}
        consumers:
          - {domain: leaf, stream: OTHER, name: D, ack_wait: 5s}
        """
    loaded = workspace(text, head=TWO)
    assert sorted(map(str, loaded.resources)) == [
        "hub/consumer/S/C",
        "hub/stream/S",
        "leaf/consumer/OTHER/D",
        "leaf/consumer/S/C",
        "leaf/stream/S",
    ]
    assert body_of(loaded, "leaf/consumer/S/C") == {
        "name": "C",
        "durable_name": "C",
        "sample_freq": "100",
    }
    assert body_of(loaded, "leaf/consumer/OTHER/D")["ack_wait"] == 5 * SECOND


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("name: C", ("C", "C")),
        ("durable_name: C", ("C", "C")),
        ("name: C, durable_name: C", ("C", "C")),
        ("name: C, durable_name: ~, inactive_threshold: 1h", ("C", None)),
    ],
)
def test_a_declared_consumer_is_durable(
    written: str, names: tuple[str, str | None], workspace: Loader
) -> None:
    """`name` implies `durable_name` and the other way round, unless it is null."""
    body = body_of(workspace(f"consumers: [{{stream: S, {written}}}]\n"), "hub/consumer/S/C")
    assert (body["name"], body["durable_name"]) == names


def test_a_top_level_consumer_names_its_stream(workspace: Loader) -> None:
    """A top-level consumer needs `stream:`."""
    found = workspace.single_finding("consumers: [{name: C}]\n")
    assert (found.code, "stream" in found.summary) == ("JS106", True)


INFO = {
    "config": {
        "name": "OLD",
        "subjects": ["l.>"],
        "max_age": DAY,
        "duplicate_window": 120 * SECOND,
        "metadata": {"_nats.ver": "2.10"},
        "consumer_limits": {},
    },
    "created": "2026-01-01T00:00:00Z",
    "state": {"messages": 3},
}


@pytest.mark.parametrize(
    "document", [INFO, INFO["config"], {"stream_name": "OLD", "config": INFO["config"]}]
)
def test_a_config_file_may_have_three_shapes(document: object, workspace: Loader) -> None:
    """A config_file holds a configuration, an info document or a request; the entry wins."""
    files = {
        "s/legacy.json": json.dumps(document),
        "s/a.yaml": "streams: [{name: NEW, config_file: legacy.json, max_age: 2d, metadata: ~}]\n",
    }
    declared = workspace.single_resource("include: [s/a.yaml]\n", files=files)
    expected = {
        "name": "NEW",
        "subjects": ["l.>"],
        "max_age": 2 * DAY,
        "duplicate_window": 120 * SECOND,
        "consumer_limits": {},
        "metadata": None,
    }
    assert dict(declared.body) == expected
    assert str(declared.ranges["subjects"]).startswith("s/legacy.json:1:")
    assert str(declared.ranges["max_age"]) == "s/a.yaml:1:49"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"name": "X", "ack_policy": "all"}, {"name": "C", "ack_policy": "all"}),
        ({"durable_name": "X"}, {"name": "C", "durable_name": "C"}),
        ({"durable_name": "X", "name": "X"}, {"name": "C", "durable_name": "C"}),
    ],
)
def test_a_name_in_a_config_file_implies_no_durable_name(
    config: object, expected: object, workspace: Loader
) -> None:
    """`name` in a config_file does not imply `durable_name`."""
    files = {"c.json": json.dumps(config)}
    assert (
        dict(
            workspace.single_resource(
                "consumers: [{stream: S, name: C, config_file: c.json}]\n", files=files
            ).body
        )
        == expected
    )


@pytest.mark.parametrize(
    ("content", "code", "place"),
    [
        ('{"max_aeg": 1, "max_msgs": 1}', "JS105", "c.json:1:2"),
        ('{"max_aeg": 1}', "JS135", "c.json:1:1"),
        ('{"max_age": "x"}', "JS130", "c.json:1:13"),
        ("[1]", "JS135", "c.json:1:1"),
        ("", "JS135", "jsplan.yaml:4:34"),
        ("{", "JS101", "c.json:1:2"),
    ],
)
def test_a_wrong_config_file_is_shown_inside_the_file(
    content: str, code: str, place: str, workspace: Loader
) -> None:
    """A mistake in a config_file is reported at its line in that file."""
    found = workspace.single_finding(
        "streams: [{name: S, config_file: c.json}]\n", files={"c.json": content}
    )
    assert (found.code, str(found.range)) == (code, place)


def test_a_config_file_that_is_missing_is_shown_where_it_is_named(workspace: Loader) -> None:
    """A missing config_file is reported where it is named."""
    found = workspace.single_finding("streams: [{name: S, config_file: gone.json}]\n")
    assert (found.code, str(found.range)) == ("JS100", "jsplan.yaml:4:34")


def test_unknown_fields_pass_through_x_raw(workspace: Loader) -> None:
    """Fields of `x_raw` are in the body unchanged, and in `raw_fields`."""
    declared = workspace.single_resource(
        'streams: [{name: S, x_raw: {new_field: {a: [1, "${domain}"]}}}]\n'
    )
    assert dict(declared.body) == {"name": "S", "new_field": {"a": [1, "hub"]}}
    assert declared.raw_fields == {"new_field"}


def test_x_raw_is_not_for_known_fields(workspace: Loader) -> None:
    """A known field in `x_raw` is a warning, and given twice it is an error."""
    loaded = workspace("streams: [{name: S, x_raw: {max_age: 1d}}]\n")
    assert body_of(loaded, "hub/stream/S")["max_age"] == DAY
    assert [d.code for d in loaded.diagnostics] == ["JS136"]
    assert (
        workspace.single_finding("streams: [{name: S, max_age: 2d, x_raw: {max_age: 1d}}]\n").code
        == "JS136"
    )


def test_layers_have_their_order(workspace: Loader) -> None:
    """Defaults, config_file, entry and overrides apply in this order, field by field."""
    text = """
        defaults:
          stream: {max_msgs: 1, max_bytes: 1, max_age: 1s, max_consumers: 1, lifecycle: {prevent_destroy: true}}
          consumer: {max_deliver: 4}
        streams:
          - {name: S, config_file: s.json, max_age: 3s, max_consumers: 3, lifecycle: {on_replace: preserve}, consumers: [{name: C}]}
          - {name: T, max_msgs: null}
        overrides:
          - {address: "*/stream/S", max_consumers: 4}
          - {address: "hub/stream/S", lifecycle: {prevent_destroy: false}}
        """
    loaded = workspace(text, files={"s.json": '{"max_bytes": 2, "max_age": 2, "max_consumers": 2}'})
    body = body_of(loaded, "hub/stream/S")
    assert (body["max_msgs"], body["max_bytes"], body["max_age"], body["max_consumers"]) == (
        1,
        2,
        3 * SECOND,
        4,
    )
    assert body_of(loaded, "hub/consumer/S/C")["max_deliver"] == 4
    assert body_of(loaded, "hub/stream/T")["max_msgs"] is None
    found = {str(address): declared.lifecycle for address, declared in loaded.resources.items()}
    assert found["hub/stream/S"] == Lifecycle(prevent_destroy=False, on_replace="preserve")
    assert found["hub/stream/T"] == Lifecycle(prevent_destroy=True)
    assert found["hub/consumer/S/C"] == Lifecycle()


def test_an_override_or_dependency_without_a_match_is_a_warning(workspace: Loader) -> None:
    """An override or dependency that matches no resource is a warning."""
    text = 'streams: [{name: S, depends_on: [hub/stream/T, "hub/stream/*"]}]\noverrides: [{address: "x/**", max_age: 1d}]\n'
    assert [(d.severity, d.code) for d in workspace(text).diagnostics] == [("warning", "JS145")] * 2


def test_lifecycle_and_dependencies_are_read(workspace: Loader) -> None:
    """Lifecycle, ignored findings and dependencies are read."""
    text = """
        streams:
          - name: S
            lifecycle: {prevent_destroy: true, ignore_changes: [placement, new], on_replace: preserve,
                        allow_hazards: [{code: REMOVES_SUBJECTS, until: 2026-12-31, reason: "moved"}]}
            lint: {ignore: [{code: JS201, reason: "known"}]}
            depends_on: [hub/stream/T]
            x_raw: {new: 1}
          - name: T
        """
    declared = next(iter(workspace(text).resources.values()))
    hazards = (AllowedHazard("REMOVES_SUBJECTS", "moved", "2026-12-31"),)
    assert declared.lifecycle == Lifecycle(True, ("placement", "new"), "preserve", hazards)
    assert dict(declared.lint_ignore) == {"JS201": "known"}
    assert declared.depends_on == ("hub/stream/T",)


def test_each_field_has_a_location(workspace: Loader) -> None:
    """The entry and each of its fields have a location."""
    declared = workspace.single_resource(
        "streams:\n  - name: S\n    max_age: 1d\n    mirror:\n      name: X\n"
    )
    assert str(declared.range) == "jsplan.yaml:5:5"
    assert {name: str(place) for name, place in declared.ranges.items()} == {
        "name": "jsplan.yaml:5:5",
        "max_age": "jsplan.yaml:6:5",
        "mirror": "jsplan.yaml:7:5",
    }
    assert declared.ranges.get("storage") is None
    assert len(declared.ranges) == 3
