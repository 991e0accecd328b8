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


@pytest.mark.parametrize(
    ("written", "code", "place", "words"),
    [
        ("max_age: 30 days", "JS130", "6:14", "30d"),
        ("max_age: 1.5", "JS130", "6:14", "30d"),
        ("max_bytes: 1 parsec", "JS130", "6:16", "10GiB"),
        ("retention: WorkQueue", "JS130", "6:16", 'Did you mean "workqueue"?'),
        ("storage: disk", "JS130", "6:14", "file"),
        ("num_replicas: 6", "JS130", "6:19", "at most 5"),
        ("num_replicas: '3'", "JS130", "6:19", "whole number"),
        ("description: 5", "JS130", "6:18", '"5"'),
        ("subjects: a.>", "JS130", "6:15", '["a.>"]'),
        ("subjects: [a, 5]", "JS130", "6:19", '"5"'),
        ("metadata: {a: 1.10}", "JS130", "6:19", '"1.10"'),
        ("no_ack: NO", "JS130", "6:13", "true or false"),
        ("maxAge: 1d", "JS105", "6:5", '"max_age"'),
        ("max_aeg: 1d", "JS105", "6:5", '"max_age"'),
        ("replicas: 3", "JS105", "6:5", '"num_replicas"'),
        ("max_msg: 3", "JS105", "6:5", '"max_msgs"'),
        ("preventDelete: true", "JS105", "6:5", "prevent_destroy"),
        ("brand_new_field: 1", "JS105", "6:5", "x_raw"),
        ("mirror: {domain: hub}", "JS106", "6:13", "name"),
        ("mirror: {name: ~, domain: hub}", "JS106", "6:13", "name"),
        ("sources: [{name: ~, domain: hub}]", "JS106", "6:15", "name"),
        ("sources: [{name: ~}]", "JS106", "6:15", "name"),
        ("republish: {src: ~, dest: ~}", "JS106", "6:16", "dest"),
        ("mirror: {name: X, external: {api: ~}}", "JS106", "6:33", "api"),
        ("mirror: X", "JS104", "6:13", "mirror: {"),
        ("sources: {name: X}", "JS104", "6:14", "sources: [{"),
        ("sources: [X]", "JS104", "6:15", "sources: {"),
        ("mirror: {name: X, start_seq: 5}", "JS105", "6:23", '"opt_start_seq"'),
        ("republish: {source: a, dest: 'b.>'}", "JS105", "6:17", '"src"'),
        ("mirror: {name: X.Y}", "JS131", "6:20", "another name"),
    ],
)
def test_a_wrong_field_has_location_and_correction(
    written: str, code: str, place: str, words: str, workspace: Loader
) -> None:
    """A wrong field is one finding at its location, with the correction if it is known."""
    found = workspace.single_finding(f"streams:\n  - name: S\n    {written}\n")
    assert (found.code, str(found.range)) == (code, f"jsplan.yaml:{place}")
    assert words in found.summary + found.detail


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("delivery_subject: d", '"deliver_subject"'),
        ("target: d", '"deliver_subject"'),
        ("deliver_all: true", "deliver_policy: all"),
        ("deliver_last: true", "deliver_policy: last"),
        ("deliver: all", "deliver_policy"),
        ("ack: explicit", '"ack_policy"'),
        ("start_time: x", "opt_start_time"),
        ("start_seq: 5", "opt_start_seq"),
        ("durable: C", '"durable_name"'),
        ("filter: x", '"filter_subject"'),
        ("replicas: 1", '"num_replicas"'),
        ("replay: instant", '"replay_policy"'),
        ("sample: 100", '"sample_freq"'),
        ("ackPolicy: explicit", '"ack_policy"'),
        ("FilterSubject: x", '"filter_subject"'),
        ("max-deliver: 3", '"max_deliver"'),
        ("domain: hub", "top-level"),
        ("stream: S", "top-level"),
    ],
)
def test_names_of_other_tools_are_translated(written: str, words: str, workspace: Loader) -> None:
    """Field names of other tools lead to the name in the API."""
    found = workspace.single_finding(
        f"streams: [{{name: S, consumers: [{{name: C, {written}}}]}}]\n"
    )
    assert found.code == "JS105"
    assert words in found.detail


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("A.B", "JS131", "dots"),
        ('"A B"', "JS131", "blanks"),
        ('"A*"', "JS131", "wildcards"),
        ("A/B", "JS131", "slashes"),
        ('"A>"', "JS131", "wildcards"),
        ('""', "JS131", "name"),
        ("KV_CONFIG", "JS132", "`kv:` with bucket: CONFIG"),
        ("OBJ_A", "JS132", "`object_stores:` with bucket: A"),
        ("$MQTT_msgs", "JS133", "another name"),
        ("7", "JS130", '"7"'),
        ("x" * 256, "JS131", "255"),
        ("~", "JS106", "name"),
        ("[a]", "JS130", "quotes"),
    ],
)
def test_an_invalid_stream_name_is_refused(
    name: str, code: str, words: str, workspace: Loader
) -> None:
    """Stream names that the server or jsplan reserves are errors."""
    found = workspace.single_finding(f"streams: [{{name: {name}}}]\n")
    assert found.code == code
    assert words in found.detail


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


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ("name: C, durable_name: D", "JS134"),
        ("name: C, durable_name: ~", "JS134"),
        ("name: JS_SRC_abc", "JS133"),
        ("durable_name: ~", "JS106"),
        ("name: A.B", "JS131"),
    ],
)
def test_an_invalid_consumer_name_is_refused(written: str, code: str, workspace: Loader) -> None:
    """Two different names, a missing expiry and names of the server are errors."""
    assert workspace.single_finding(f"consumers: [{{stream: S, {written}}}]\n").code == code


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


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("overrides: [{address: hub/stream/S, max_aeg: 1d}]", "JS105"),
        ("overrides: [{address: hub/stream/S, name: T}]", "JS105"),
        ("overrides: [{max_age: 1d}]", "JS106"),
        ("overrides: [{address: hub/S, max_age: 1d}]", "JS143"),
        ("defaults: {stream: {name: X}}", "JS105"),
        ("defaults: {streams: {}}", "JS105"),
        ("defaults: {stream: {max_aeg: 1}}", "JS105"),
        ("defaults: {stream: [1]}", "JS104"),
    ],
)
def test_wrong_defaults_and_overrides_are_errors(text: str, code: str, workspace: Loader) -> None:
    """Mistakes in defaults and overrides are errors, and they cannot rename a resource."""
    assert workspace.single_finding(f"streams: [{{name: S}}]\n{text}\n").code == code


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


@pytest.mark.parametrize(
    ("written", "code", "words"),
    [
        ("lifecycle: {prevent_delete: true}", "JS105", '"prevent_destroy"'),
        ("lifecycle: {prevent_destroy: 'yes'}", "JS104", "quotes"),
        ("lifecycle: {ignore_changes: [plcement]}", "JS140", '"placement"'),
        ("lifecycle: {on_replace: keep}", "JS130", "preserve"),
        (
            "lifecycle: {allow_hazards: [{code: DELETES_MESSAGE, reason: x}]}",
            "JS141",
            '"DELETES_MESSAGES"',
        ),
        ("lifecycle: {allow_hazards: [{code: MOVES_DATA}]}", "JS106", "reason"),
        (
            "lifecycle: {allow_hazards: [{code: MOVES_DATA, reason: x, until: 2026-02-30}]}",
            "JS142",
            "2026-12-31",
        ),
        (
            "lifecycle: {allow_hazards: [{code: MOVES_DATA, reason: x, until: tomorrow}]}",
            "JS142",
            "2026-12-31",
        ),
        ("lint: {ignore: [{code: JS201}]}", "JS106", "reason"),
        ("lint: {ignore: [{code: 201, reason: x}]}", "JS104", "quotes"),
        ("lint: {ignore: [{code: X201, reason: x}]}", "JS140", "JS201"),
        ("depends_on: [S]", "JS143", "hub/stream/ORDERS"),
        ("depends_on: [hub/strem/S]", "JS143", "hub/stream/ORDERS"),
    ],
)
def test_wrong_lifecycles_and_dependencies_are_errors(
    written: str, code: str, words: str, workspace: Loader
) -> None:
    """A mistake in lifecycle, lint settings or dependencies is an error."""
    found = workspace.single_finding(f"streams: [{{name: S, {written}}}]\n")
    assert found.code == code
    assert words in found.detail


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
