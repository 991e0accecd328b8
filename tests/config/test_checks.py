"""Rules between fields: what the files refuse, a real server refuses with the same number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jsplan.config import body, checks, checks_consumers
from jsplan.config.findings import Findings
from jsplan.config.node import Source
from jsplan.config.read import parse_document
from jsplan.resources import TABLES
from jsplan.sandbox import Server
from tests.config.conftest import Loader
from tests.support.raw import Raw

REFUSED_STREAMS = [
    ("mirror: {name: X}, subjects: [a]", "JS150", 10034),
    ("mirror: {name: X}, sources: [{name: Y}]", "JS150", 10031),
    ("mirror: {name: X}, first_seq: 5", "JS150", 10143),
    ("mirror: {name: X}, allow_atomic: true", "JS150", 10198),
    (
        "mirror: {name: X, filter_subject: a, subject_transforms: [{src: a, dest: b}]}",
        "JS151",
        10150,
    ),
    (
        "sources: [{name: X, filter_subject: a, subject_transforms: [{src: a, dest: b}]}]",
        "JS151",
        10144,
    ),
    ("mirror: {name: P}", "JS152", 10052),
    ("sources: [{name: X}, {name: X}]", "JS152", 10140),
    ("sources: [{name: X, opt_start_seq: 4}, {name: X}]", "JS152", 10140),
    ("subjects: [a], duplicate_window: 2m, max_age: 30s", "JS153", 10052),
    ("subjects: [a], duplicate_window: 50", "JS153", 10052),
    ("subjects: [a], max_age: 50ms", "JS153", 10052),
    ("subjects: [a], discard_new_per_subject: true, max_msgs_per_subject: 1", "JS154", 10052),
    ("subjects: [a], discard_new_per_subject: true, discard: new", "JS154", 10052),
    ('subjects: ["a.*", a.b]', "JS156", 10052),
    ("subjects: [a, a]", "JS156", 10052),
    ('subjects: ["a b"]', "JS156", 10052),
    ("subjects: [a..b]", "JS156", 10052),
    ('subjects: ["a.>.b"]', "JS156", 10052),
    ('subjects: [">"]', "JS157", 10052),
    ('subjects: ["$JS.>"]', "JS157", 10052),
    ("subjects: [a], placement: {preferred: x}", "JS158", 10052),
    ("subjects: [a], allow_rollup_hdrs: true, deny_purge: true", "JS160", 10052),
    ("subjects: [a], allow_msg_counter: true, discard: new, max_msgs: 4", "JS161", 10052),
    ("subjects: [a], allow_msg_counter: true, allow_msg_ttl: true", "JS161", 10052),
    ("subjects: [a], allow_msg_counter: true, retention: workqueue", "JS161", 10052),
    ("sources: [{name: X}], allow_msg_schedules: true", "JS162", 10187),
    ("subjects: [a], persist_mode: async, allow_atomic: true", "JS163", 10052),
    ("subjects: [a], persist_mode: async, storage: memory", "JS163", 10052),
    ("subjects: [a], subject_delete_marker_ttl: 500ms, max_age: 1m", "JS164", 10052),
    ("sources: [{name: X}, {name: X, filter_subject: '>'}]", "JS152", 10140),
    (
        "sources: [{name: X, subject_transforms: [{src: 'a.*', dest: 'x.$1'}, {src: a.b, dest: y}]}]",
        "JS151",
        10147,
    ),
    (
        "sources: [{name: X, subject_transforms: [{src: '>', dest: 'x.>'}, {src: '', dest: ''}]}]",
        "JS151",
        10147,
    ),
    (
        "mirror: {name: X, subject_transforms: [{src: 'a.*', dest: x}, {src: '*.b', dest: y}]}",
        "JS151",
        10152,
    ),
    (
        "mirror: {name: X, subject_transforms: [{src: a.b, dest: y}, {src: 'a.*', dest: 'x.$1'}]}",
        "JS151",
        10152,
    ),
    ("mirror: {name: X, filter_subject: a..b}", "JS151", 10049),
    ("subjects: [$SYS.a]", "JS157", 10052),
    ("subjects: ['>'], no_ack: true, num_replicas: 3", "JS157", 10052),
    (
        "subjects: [a], allow_rollup_hdrs: true, deny_purge: true, subject_delete_marker_ttl: 5s",
        "JS160",
        10052,
    ),
    (
        "mirror: {name: X, consumer: {name: c, deliver_subject: d}, opt_start_seq: 4}",
        "JS166",
        10213,
    ),
    (
        "sources: [{name: X, consumer: {name: c, deliver_subject: d}, filter_subject: a}]",
        "JS166",
        10215,
    ),
    ("mirror: {name: X, consumer: {name: c, deliver_subject: 'd.*'}}", "JS166", 10213),
    (
        """sources: [{name: X, consumer: {name: c, deliver_subject: d}},
        {name: X, consumer: {name: c, deliver_subject: e}, subject_transforms: [{dest: 't.>'}]}]""",
        "JS166",
        10216,
    ),
    ("subjects: [a], subject_transform: {src: 'a.>', dest: x}", "JS167", 10156),
    ("subjects: [a], subject_transform: {src: 'a.*', dest: 'x.*'}", "JS167", 10156),
    ("subjects: [a], subject_transform: {src: 'a.*', dest: 'x.$2'}", "JS167", 10156),
    ("subjects: [a], subject_transform: {src: 'a.*', dest: 'x.{{nothing(1)}}'}", "JS167", 10156),
    ("subjects: [a], subject_transform: {src: 'a.*', dest: 'x.{{wildcard()}}'}", "JS167", 10156),
    ("subjects: [a], subject_transform: {src: 'a.*', dest: 'x.{{split(1)}}'}", "JS167", 10156),
    ("subjects: [a], subject_transform: {src: a..b, dest: x}", "JS167", 10155),
    ("subjects: [a], subject_transform: {src: a, dest: x..y}", "JS167", 10156),
    ("sources: [{name: X, subject_transforms: [{src: a, dest: 'x.$1'}]}]", "JS167", 10146),
    ("mirror: {name: X, subject_transforms: [{src: a, dest: 'x.>'}]}", "JS167", 10154),
    ("subjects: ['a.>'], republish: {src: '>', dest: 'a.x.>'}", "JS168", 10052),
    ("subjects: [a], republish: {src: '>', dest: r}", "JS168", 10052),
    ("subjects: [a], republish: {src: '>', dest: '>'}", "JS168", 10052),
    ('mirror: {name: X, external: {api: "$JS.API"}}', "JS165", 10021),
    ('mirror: {name: X, external: {api: "$JS.h.API", deliver: "a.>"}}', "JS165", 10024),
]
ACCEPTED_STREAMS = [
    "sources: [{name: X, subject_transforms: [{src: '', dest: ''}, {src: a.b, dest: y}]}]",
    "mirror: {name: X}, duplicate_window: 5s",
    "sources: [{name: X, filter_subject: a}, {name: X, filter_subject: b}]",
    "mirror: {name: X, opt_start_seq: 4}",
    'subjects: [">"], no_ack: true',
    'subjects: ["$JS.EVENT.>"]',
    "subjects: [a], discard_new_per_subject: true, discard: new, max_msgs_per_subject: 5",
    "subjects: [a], subject_delete_marker_ttl: 5s, deny_purge: true",
    "subjects: [a], allow_msg_schedules: true, deny_purge: true",
    "subjects: [$SYS.ACCOUNT.a.b]",
    "sources: [{name: X}, {name: X, consumer: {name: c, deliver_subject: d}}]",
    "sources: [{name: X, consumer: {name: c, deliver_subject: d}}, {name: X, consumer: {name: e, deliver_subject: d}}]",
    "sources: [{name: X, consumer: {name: c, deliver_subject: d}}, {name: Y, consumer: {name: c, deliver_subject: d}}]",
    "sources: [{name: X, subject_transforms: [{src: a, dest: x}]}, {name: X, subject_transforms: [{src: a, dest: y}]}]",
    "sources: [{name: X, subject_transforms: [{src: 'a.*', dest: x}, {src: '*.b', dest: y}]}]",
    "mirror: {name: X, consumer: {name: c, deliver_subject: d}, subject_transforms: [{src: a, dest: b}]}",
    "subjects: [a], subject_transform: {src: 'a.*.*', dest: 'x.$2.{{wildcard(1)}}'}",
    "subjects: [a], subject_transform: {src: 'a.*', dest: 'x.{{partition(3,1)}}.{{split(1,-)}}.{{sliceFromLeft(1,2)}}'}",
    "subjects: [a], subject_transform: {src: '', dest: 'x.>'}",
    "subjects: [a], republish: {dest: 'r.>'}",
    "subjects: [a], republish: {src: '>', dest: '>'}, subject_transform: {src: a, dest: x}",
    "subjects: [a], retention: workqueue, discard: new",
    'subjects: ["a.*.c", "a.b"]',
    "subjects: [a], duplicate_window: 30s, max_age: 30s",
]
REFUSED_CONSUMERS = [
    ("filter_subject: s.a, filter_subjects: [s.b]", "JS170", 10136),
    ('filter_subjects: ["s.*", s.b]', "JS170", 10138),
    ("filter_subject: a b", "JS170", 10052),
    ("deliver_policy: by_start_sequence", "JS171", 10094),
    ("deliver_policy: by_start_time", "JS171", 10094),
    ("opt_start_seq: 4", "JS171", 10094),
    ('deliver_policy: new, opt_start_time: "2026-01-01T00:00:00Z"', "JS171", 10094),
    ("deliver_policy: last_per_subject", "JS171", 10094),
    ("deliver_subject: d, max_waiting: 4", "JS172", 10080),
    ('deliver_subject: "d.*"', "JS172", 10079),
    ("flow_control: true", "JS172", 10089),
    ("idle_heartbeat: 5s", "JS172", 10088),
    ("rate_limit_bps: 1000", "JS172", 10086),
    ("max_expires: 500us", "JS172", 10115),
    ("deliver_subject: d, ack_policy: flow_control, backoff: [1s]", "JS174", 10221),
    ("deliver_subject: d, ack_policy: flow_control, ack_wait: 9s", "JS174", 10221),
    ("deliver_subject: d, ack_policy: flow_control, max_deliver: 5", "JS174", 10222),
    ("ack_policy: flow_control", "JS172", 10218),
    ("direct: true", "JS172", 10090),
    ("deliver_subject: d, direct: true, durable_name: P", "JS172", 10091),
    ("deliver_subject: d, flow_control: true", "JS173", 10108),
    ("deliver_subject: d, idle_heartbeat: 5000", "JS173", 10083),
    ("ack_policy: explicit, max_deliver: 1, backoff: [1s, 2s, 3s]", "JS174", 10116),
    ("ack_policy: explicit, priority_policy: overflow", "JS175", 10159),
    (
        "ack_policy: explicit, deliver_subject: d, priority_policy: overflow, priority_groups: [a]",
        "JS175",
        10178,
    ),
]
ACCEPTED_CONSUMERS = [
    "ack_policy: explicit, max_deliver: 3, backoff: [1s, 2s, 3s]",
    'deliver_policy: last_per_subject, filter_subject: ">"',
    "deliver_subject: d, flow_control: true, idle_heartbeat: 1s",
    "ack_policy: flow_control, deliver_subject: d",
    "deliver_group: g",
    "ack_policy: none, ack_wait: 1s, max_ack_pending: 5",
    "ack_policy: explicit, priority_policy: pinned_client, priority_groups: [a]",
]


def fields(kind: str, text: str) -> dict[str, Any]:
    """Parse the fields into what the API expects."""
    findings = Findings()
    node = parse_document(Source(Path("x"), "x"), f"{{name: P, {text}}}".encode(), findings)
    assert node is not None
    out = body.parse(TABLES[kind], node.value, findings)  # type: ignore[index]
    assert findings.sorted() == ()
    return out


def create_stream(raw: Raw, config: dict[str, Any]) -> int | None:
    """Create and delete a stream; return the err_code, or None if the server accepted it."""
    answer = raw.api(f"$JS.API.STREAM.CREATE.{config['name']}", config)
    if "error" in answer:
        return int(answer["error"]["err_code"])
    raw.api(f"$JS.API.STREAM.DELETE.{config['name']}")
    return None


def create_consumer(raw: Raw, stream: str, config: dict[str, Any]) -> int | None:
    """Create and delete a consumer; return the err_code, or None if the server accepted it."""
    request = {
        "stream_name": stream,
        "action": "create",
        "config": config | {"durable_name": config["name"]},
    }
    answer = raw.api(f"$JS.API.CONSUMER.CREATE.{stream}.{config['name']}", request)
    if "error" in answer:
        return int(answer["error"]["err_code"])
    raw.api(f"$JS.API.CONSUMER.DELETE.{stream}.{config['name']}")
    return None


@pytest.mark.parametrize(("text", "code", "number"), REFUSED_STREAMS)
def test_a_stream_that_is_refused_here_is_refused_by_the_server(
    text: str, code: str, number: int, server: Server
) -> None:
    """The server refuses each case of a rule for streams with the number that the finding names."""
    config = fields("stream", text)
    problems = list(checks.check_stream(config))
    assert [problem.code for problem in problems] == [code]
    assert str(number) in problems[0].summary
    with Raw(server.url) as raw:
        assert create_stream(raw, config) == number


@pytest.mark.parametrize("text", ACCEPTED_STREAMS)
def test_a_stream_that_the_server_accepts_is_accepted_here(text: str, server: Server) -> None:
    """Streams near the limit of a rule are accepted by the files and by the server."""
    config = fields("stream", text)
    assert list(checks.check_stream(config)) == []
    with Raw(server.url) as raw:
        assert create_stream(raw, config) is None


@pytest.mark.parametrize(("text", "code", "number"), REFUSED_CONSUMERS)
def test_a_consumer_that_is_refused_here_is_refused_by_the_server(
    text: str, code: str, number: int, server: Server
) -> None:
    """The server refuses each case of a rule for consumers with the number of the finding."""
    config = fields("consumer", text)
    problems = list(checks_consumers.check_consumer(config))
    assert [problem.code for problem in problems] == [code]
    with Raw(server.url) as raw:
        raw.create("L", subjects=["s.>"])
        assert create_consumer(raw, "L", config) == number


@pytest.mark.parametrize("text", ACCEPTED_CONSUMERS)
def test_a_consumer_that_the_server_accepts_is_accepted_here(text: str, server: Server) -> None:
    """Consumers near the limit of a rule are accepted by the files and by the server."""
    config = fields("consumer", text)
    assert list(checks_consumers.check_consumer(config)) == []
    with Raw(server.url) as raw:
        raw.create("L", subjects=["s.>"])
        assert create_consumer(raw, "L", config) is None


@pytest.mark.parametrize(
    ("consumers", "words"),
    [
        ("[{name: A}]", "needs ack_policy: explicit"),
        ("[{name: A, ack_policy: all}]", "needs ack_policy: explicit"),
        ("[{name: A, ack_policy: explicit, deliver_policy: new}]", "delivers all"),
        ("[{name: A, ack_policy: explicit}, {name: B, ack_policy: explicit}]", "this one and A"),
        (
            "[{name: A, ack_policy: explicit, filter_subject: q.a}, {name: B, ack_policy: explicit, filter_subjects: ['q.*']}]",
            "this one and A",
        ),
    ],
)
def test_a_work_queue_refuses_consumers_that_do_not_fit(
    consumers: str, words: str, workspace: Loader
) -> None:
    """Consumers of a work queue acknowledge explicitly, deliver all, and do not overlap."""
    found = workspace.single_finding(
        f'streams:\n  - {{name: Q, subjects: ["q.>"], retention: workqueue, consumers: {consumers}}}\n'
    )
    assert found.code == "JS176"
    assert words in found.summary


def test_a_work_queue_takes_consumers_with_filters_of_their_own(workspace: Loader) -> None:
    """Consumers with disjoint filters share a work queue."""
    loaded = workspace(
        """
        streams:
          - name: Q
            subjects: ["q.>"]
            retention: workqueue
            consumers:
              - {name: A, ack_policy: explicit, filter_subject: q.a}
              - {name: B, ack_policy: explicit, filter_subject: q.b}
        """
    )
    assert len(loaded.resources) == 3


def test_a_finding_points_at_the_field(workspace: Loader) -> None:
    """A contradiction is reported at its field, with the address of the resource."""
    found = workspace.single_finding(
        "streams:\n  - name: A\n    max_age: 30s\n    duplicate_window: 2m\n"
    )
    assert (found.code, str(found.range), found.address) == (
        "JS153",
        "jsplan.yaml:7:5",
        "hub/stream/A",
    )
